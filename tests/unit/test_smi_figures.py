"""What `plimsoll smi` works out: bars, quantiles between two looks, counters that began anew."""

from __future__ import annotations

import bisect
import io
import json
import math
from datetime import UTC, datetime
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from service.smi.bar import segment_widths
from service.smi.buckets import Buckets, increase
from service.smi.document import document
from service.smi.look import Look, view
from service.smi.page import Page, PageError
from service.smi.picture import picture
from service.smi.view import ServerView
from service.telemetry.catalog import METRICS, Label, Metric, cache, gpu, memory, requests, server

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
BOUNDS = (0.1, 0.5, 1.0, 10.0, math.inf)
AMOUNTS = st.lists(st.one_of(st.just(0), st.integers(1, 2**48)), min_size=1, max_size=9)


def line(metric: Metric, value: float, suffix: str = "", **labels: object) -> str:
    told = ",".join(f'{name}="{each}"' for name, each in {"model": "m", **labels}.items())
    return f"{metric.name}{suffix}{{{told}}} {value}\n"


def look(text: str, at_seconds: float = 0.0, before: Look | None = None) -> Look:
    return Look.after(before, Page.parse(text), 1000.0 + at_seconds, at_seconds)


def observed(values: list[float]) -> Buckets:
    places = [bisect.bisect_left(BOUNDS, value) for value in values]
    counts = accumulate(float(places.count(index)) for index in range(len(BOUNDS)))
    return Buckets(BOUNDS, tuple(counts))


@given(AMOUNTS, st.integers(0, 200))
def test_a_bar_is_full_and_hides_nobody(amounts: list[int], width: int) -> None:
    widths = segment_widths(amounts, width)
    assert sum(widths) == (width if any(amounts) else 0)
    present = [columns for amount, columns in zip(amounts, widths, strict=True) if amount]
    assert sum(1 for columns in present if columns) == min(width, len(present))
    assert not any(columns for amount, columns in zip(amounts, widths, strict=True) if not amount)


@given(AMOUNTS, st.integers(20, 200))
def test_a_larger_part_is_never_narrower(amounts: list[int], width: int) -> None:
    pairs = sorted(zip(amounts, segment_widths(amounts, width), strict=True))
    for (amount, columns), (other, others_columns) in pairwise(pairs):
        assert amount == other or columns <= others_columns


def test_a_bar_without_small_parts_is_in_proportion() -> None:
    assert segment_widths([50, 30, 20], 60) == [30, 18, 12]
    assert segment_widths([2**40, 1, 0], 10) == [9, 1, 0]


@given(
    st.lists(st.floats(0.001, 9.9), max_size=50),
    st.lists(st.floats(0.001, 9.9), min_size=1, max_size=50),
    st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]),
)
def test_a_quantile_is_in_the_bucket_of_the_one_of_that_rank(
    before: list[float], later: list[float], share: float
) -> None:
    quantile = observed(before + later).since(observed(before)).quantile(share)
    exact = sorted(later)[max(0, math.ceil(share * len(later)) - 1)]
    place = bisect.bisect_left(BOUNDS, exact)
    assert quantile is not None
    low = BOUNDS[place - 1] if place else 0.0
    assert low <= quantile <= BOUNDS[place] * (1 + 1e-9)


def test_quantiles_are_those_of_prometheus() -> None:
    # histogram_quantile over 4 observations up to 0.1, 4 from there to 0.5 and 2 beyond 10.
    buckets = Buckets(BOUNDS, (4.0, 8.0, 8.0, 8.0, 10.0))
    assert buckets.quantile(0.2) == pytest.approx(0.05)
    assert buckets.quantile(0.6) == pytest.approx(0.3)
    assert buckets.quantile(0.99) == 10.0
    assert Buckets(BOUNDS, (0.0,) * 5).quantile(0.5) is None


def test_a_histogram_that_began_anew_is_taken_whole() -> None:
    now = observed([0.2, 0.2, 0.7])
    assert now.since(None) == now
    assert now.since(observed([0.2] * 9)) == now
    assert now.since(observed([5.0])) == now  # it fell in one bucket only
    assert observed([0.05]).since(observed([0.05] * 2)).counts[0] == 1  # in all by the same
    assert now.since(observed([0.2])).counts == (0.0, 1.0, 2.0, 2.0, 2.0)
    assert now.since(Buckets((1.0, math.inf), (0.0, 0.0))) == now


def test_a_counter_that_fell_began_at_0() -> None:
    assert increase(7, None) == 7
    assert increase(7, 5) == 2
    assert increase(3, 5) == 3


def test_counts_are_since_the_last_look_and_in_all() -> None:
    def page(recomputed: int, retries: int) -> str:
        preempted = line(cache.PREEMPTIONS, recomputed, mode="recompute", reason="oom")
        return (
            preempted
            + line(cache.PREEMPTIONS, 1, mode="trim", reason="kv_full")
            + line(memory.ALLOCATOR_RETRIES, retries)
            + line(server.STARTED, 500)
        )

    first = view("s", look(page(4, 9)), None)
    assert first.counts["preemptions"].since_last_look is None
    assert first.counts["preemptions"].total == 5
    then = view("s", look(page(7, 2), 5), look(page(4, 9)))
    assert then.counts["preemptions"].since_last_look == 3
    assert then.counts["allocator_retries"].since_last_look == 2
    assert sum(then.counts["preemptions"].by_kind.values()) == 8


def test_another_server_process_is_looked_at_for_the_first_time() -> None:
    def page(started: int, tokens: int) -> str:
        return (
            line(server.STARTED, started)
            + line(requests.OUTPUT_TOKENS, tokens)
            + line(server.RESTARTS, 1)
        )

    before = look(page(500, 100))
    same = view("s", look(page(500, 140), 4), before)
    assert (same.load.window_seconds, same.load.recent_tokens_per_second) == (4, 10)
    # It has more tokens already than the one before it, which is no reason to subtract.
    other = view("s", look(page(984, 200), 4), before)
    assert (other.load.window_seconds, other.load.recent_tokens_per_second) == (20, 10)
    assert other.counts["engine_restarts"].since_last_look is None


def stale_at(looks: dict[float, float]) -> list[bool]:
    """What looks tell that find a sample of the second time at the first one."""
    before, told = None, []
    for at_seconds, sampled in looks.items():
        text = line(memory.SAMPLED, sampled) + line(server.STARTED, 1)
        now = look(text, at_seconds, before)
        told.append(view("s", now, before).memory.is_stale)
        before = now
    return told


def test_memory_that_nobody_looks_at_is_told() -> None:
    """However often the server is looked at, and whatever its clock says."""
    assert stale_at({0: 990.0, 2: 990.000004, 4: 990.000002}) == [False, False, True]
    assert stale_at({0: 10.0, 60: 10.0}) == [False, True]
    often = stale_at({n / 2: 7000.0 for n in range(9)})
    assert often == [False] * 6 + [True] * 3
    assert stale_at({0: 990.0, 4: 990.0, 5: 995.0, 6: 995.0}) == [False, True, False, False]


def test_a_server_that_is_idle_looks_at_its_memory_often_enough() -> None:
    """Two looks in one second find the same sample, which is no sign of anything."""
    assert not any(stale_at({n / 5: float(n // 5) for n in range(50)}))


def test_an_owner_and_a_state_of_a_newer_server_are_shown() -> None:
    text = line(memory.OWNED, 5, owner="adapters") + line(memory.OWNED, 7, owner="weights")
    shown = view("s", look(text + line(cache.BLOCKS, 3, state="lent")), None)
    assert list(shown.memory.owned_bytes.items()) == [("weights", 7), ("adapters", 5)]
    assert shown.kv.blocks == {"lent": 3}


def test_waste_is_a_share_of_the_slots_that_sequences_hold() -> None:
    states = {"active": 6, "reserved": 2, "cached": 5, "free": 7}
    text = "".join(line(cache.BLOCKS, count, state=state) for state, count in states.items())
    text += line(cache.CAPACITY, 20) + line(cache.SLACK_TOKENS, 32)
    kv = view("s", look(text + line(cache.BLOCK_TOKENS, 16)), None).kv
    assert (kv.slack_tokens, kv.slack_ratio, kv.used_ratio) == (32, 0.25, 0.4)
    assert view("s", look(text), None).kv.slack_ratio is None


def test_gpus_are_in_order_and_a_process_that_is_not_told_has_no_bytes() -> None:
    text = "".join(
        line(gpu.USED, 5, gpu=name)
        + line(gpu.PROCESS_MEMORY, 3, gpu=name)
        + line(gpu.PROCESS_MEMORY_KNOWN, name == "2", gpu=name)
        for name in ("10", "2", "2:1")
    )
    gpus = view("s", look(text.replace("True", "1").replace("False", "0")), None).gpus
    assert [(each.gpu, each.process_bytes) for each in gpus] == [
        ("2", 3),
        ("2:1", None),
        ("10", None),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<html><body>Not here</body></html>", "not a page of metrics"),
        ("", "not those of a Plimsoll server"),
        ("node_load1 0.5\n", "not those of a Plimsoll server"),
    ],
)
def test_other_pages_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(PageError, match=complaint):
        Page.parse(text)


def test_what_is_no_number_is_not_known() -> None:
    text = (
        line(memory.HEADROOM, math.nan) + line(memory.DEMAND, math.inf) + line(server.RESTARTS, 0)
    )
    shown = view("s", look(text), None)
    assert shown.memory.headroom_bytes is None
    (told,) = json.loads(document([shown], datetime.now(UTC), "1"))["servers"]
    assert told["memory"]["headroom_bytes"] is None
    assert told["memory"]["demand_bytes"] is None


@pytest.mark.parametrize("amount", ["NaN", "+Inf", "-Inf", "1e300"])
def test_what_is_no_amount_is_not_known(amount: str) -> None:
    known = line(server.STARTED, 1.0)
    every = "".join(
        f'{each.name}{suffix}{{model="m",{label.name}="{value}",le="1"}} {amount}\n'
        for each in METRICS.values()
        for label in each.labels or (Label("none", None),)
        for value in label.values or ("0",)
        for suffix in ("", "_bucket")
    )
    page = look(known + every)
    shown, without = view("a:1", page, page), view("a:1", look(known), look(known))
    assert document([shown], NOON, "1") == document([without], NOON, "1")
    assert drawn(shown) == drawn(without)


@pytest.mark.parametrize("bound", ["", "abc", "NaN"])
def test_a_bucket_without_a_bound_is_no_bucket(bound: str) -> None:
    metric = requests.FIRST_TOKEN
    buckets = line(server.STARTED, 1) + line(metric, 1, "_bucket", le="1")
    buckets += line(metric, 2, "_bucket", le="+Inf")
    odd = line(metric, 5, "_bucket", le=bound) + line(metric, 5, "_bucket")
    assert look(buckets + odd).page.buckets(metric) == look(buckets).page.buckets(metric)


def test_a_server_does_not_steer_the_terminal() -> None:
    text = line(server.INFO, 1, version="\x1b]0;title\x07\x1b[2J\u202e1") + line(
        memory.OWNED, 5, owner="\x1b[31m"
    )
    shown = view("a:1", look(text), None)
    assert shown.version == "?]0;title??[2J?1"
    assert "\x1b" not in drawn(shown)


def drawn(shown: ServerView) -> str:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        console.print(picture([shown], NOON, "1"))
    return capture.get()


@pytest.mark.parametrize("labels", ['model="m", ="b"', "{", 'model="m'])
def test_labels_that_are_none_make_no_page(labels: str) -> None:
    with pytest.raises(PageError):
        Page.parse(f"{server.STARTED.name}{{{labels}}} 1\n")


def test_a_gpu_may_have_any_name() -> None:
    long = "9" * 5000
    text = "".join(line(gpu.USED, 1, gpu=name) for name in (long, "²", "", "10", "2"))
    assert {each.gpu for each in view("a:1", look(text), None).gpus} == {long, "²", "", "10", "2"}
