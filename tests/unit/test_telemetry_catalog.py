"""A linter over the catalogue: names follow the conventions, and labels the code they are of."""

from __future__ import annotations

import ast
import itertools
import re
import sys
from pathlib import Path

import pytest

from service.api.validation import MAX_TIME_LIMIT_SECONDS
from service.device.owner import Owner
from service.engine.figures import GovernorAction, OomRung
from service.engine.messages import FinishReason
from service.front.admin_actions import AdminAction
from service.front.events import RequestError
from service.front.state import FrontState
from service.telemetry import catalog
from service.telemetry.catalog import METRICS, Kind, Metric
from service.telemetry.request_metrics import OUTCOMES, REASONS

MODULES = (
    catalog.admin,
    catalog.requests,
    catalog.tenants,
    catalog.cache,
    catalog.memory,
    catalog.gpu,
    catalog.server,
    catalog.vllm,
)
OURS = [metric for metric in METRICS.values() if metric not in catalog.vllm.METRICS]
UNITS = {"seconds", "bytes", "tokens", "blocks", "ratio"}
# Of other units, and of what a query works out. See Prometheus, "Metric and label naming".
BAD_WORDS = {
    *("ms", "milliseconds", "microseconds", "minutes", "hours", "kb", "mb", "gb", "kib", "mib"),
    *("gib", "percent", "perc", "rate", "average", "avg", "min", "max", "p99", "gauge"),
    *("counter", "histogram", "metric"),
}
SUFFIXES = ("_total", "_count", "_sum", "_bucket", "_created", "_info")
RESERVED_LABELS = {"le", "quantile", "job", "instance", "namespace", "pod", "model", "model_name"}

OPEN_LABELS = (catalog.tenants.TENANT, catalog.gpu.GPU)

by_name = pytest.mark.parametrize("metric", OURS, ids=lambda metric: metric.name)


@by_name
def test_a_name_follows_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"plimsoll(_[a-z0-9]+)+", metric.name)
    words = metric.name.split("_")
    assert not BAD_WORDS & set(words)
    assert len(words) == len(set(words)), "a word comes twice"
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert not metric.family.endswith(("_total", "_count", "_sum", "_bucket", "_created"))


@by_name
def test_a_unit_is_the_end_of_the_name(metric: Metric) -> None:
    last_word = metric.family.rsplit("_", 1)[1]
    assert metric.unit == (last_word if last_word in UNITS else "")


@by_name
def test_a_help_text_is_sentences(metric: Metric) -> None:
    assert re.fullmatch(r"[A-Z0-9][^\n]{15,}\.", metric.help)


@by_name
def test_labels_are_few_and_told(metric: Metric) -> None:
    assert metric.model_label == "model"
    assert len(set(metric.label_names)) == len(metric.labels) <= 5
    assert not RESERVED_LABELS & set(metric.label_names)
    for label in metric.labels:
        assert re.fullmatch(r"[a-z][a-z_]*", label.name)
        if label.values is None:
            assert metric.name.endswith("_info") or label in OPEN_LABELS
        else:
            assert len(set(label.values)) == len(label.values) > 1
            assert all(re.fullmatch(r"[a-z][a-z_]*", value) for value in label.values)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_buckets_rise_from_a_millisecond_to_the_longest_request(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert all(low < high < float("inf") for low, high in itertools.pairwise(metric.buckets))
    if metric.unit == "seconds" and metric.buckets and metric is not catalog.server.LOOP_LAG:
        assert metric.buckets[0] <= 0.001
        assert metric.buckets[-1] >= MAX_TIME_LIMIT_SECONDS


def test_every_metric_is_listed_once() -> None:
    listed = [metric for module in MODULES for metric in module.METRICS]
    assert len({metric.name for metric in listed}) == len(listed) == len(METRICS)
    for module in MODULES:
        made = {value for value in vars(module).values() if isinstance(value, Metric)}
        assert made <= set(module.METRICS)


def test_no_family_is_taken_for_a_part_of_another() -> None:
    families = {metric.family for metric in METRICS.values()}
    assert len(families) == len(METRICS)
    for family in families:
        assert not families & {family + suffix for suffix in SUFFIXES}


def test_vllm_names_have_their_prefix_and_label() -> None:
    for metric in catalog.vllm.METRICS:
        assert re.fullmatch(r"vllm:[a-z0-9_]+", metric.name)
        assert metric.model_label == "model_name"
        assert metric.unit == "", "its names do not always end with the unit"


def test_an_alias_is_of_the_same_kind() -> None:
    for alias, metric in catalog.vllm.ALIASES.items():
        assert (alias.kind, alias.labels, alias.buckets) == (metric.kind, (), metric.buckets)


def test_the_catalogue_imports_nothing_but_the_standard_library() -> None:
    for file in Path(catalog.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                root = module.partition(".")[0]
                assert root in sys.stdlib_module_names or module.startswith(catalog.__name__)


def values(metric: Metric) -> set[str]:
    (label,) = metric.labels
    assert label.values is not None
    return set(label.values)


def test_every_error_has_its_outcome_or_its_reason() -> None:
    errors = set(RequestError.__subclasses__())
    assert errors == OUTCOMES.keys() | REASONS.keys()
    assert values(catalog.requests.FINISHED) == {*OUTCOMES.values(), "completed", "cancelled"}
    assert values(catalog.requests.REFUSED) == set(REASONS.values())
    assert len(set(OUTCOMES.values())) == len(OUTCOMES)
    assert len(set(REASONS.values())) == len(REASONS)


def test_label_values_are_those_of_the_enums() -> None:
    reasons = {reason.name.lower() for reason in FinishReason}
    assert values(catalog.requests.CANDIDATES_FINISHED) == {*reasons, "none"}
    assert values(catalog.server.STATE) == {state.value for state in FrontState}
    assert values(catalog.memory.OWNED) == {owner.value for owner in Owner}
    assert values(catalog.memory.OOM_RUNGS) == {rung.name.lower() for rung in OomRung}
    assert values(catalog.admin.ACTIONS) == {action.value for action in AdminAction}
    assert values(catalog.memory.GOVERNOR_ACTIONS) == {a.name.lower() for a in GovernorAction}
