"""Options of a request: every limit from both sides, and nothing else than typed errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given, settings
from hypothesis import strategies as st

from service.api.errors import ContextLengthExceeded, FeatureDisabled, InvalidRequest
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.validation import (
    CheckedOptions,
    ServingLimits,
    check_options,
    check_prompt_ids,
    check_prompt_logprobs,
    take_prompt_ids,
)
from service.engine.messages import SamplingParams

VOCAB = 1000
CONTEXT = 64
DEFAULTS = SamplingParams(temperature=0.6, top_k=40, top_p=0.9, repetition_penalty=1.1)
LIMITS = ServingLimits(VOCAB, CONTEXT, DEFAULTS)
NAN, INF = math.nan, math.inf
SEED = 77


def check(options: pb.GenerationOptions, limits: ServingLimits = LIMITS) -> CheckedOptions:
    return check_options(options, limits, fallback_seed=SEED)


def violations(options: pb.GenerationOptions) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        check(options)
    return [violation.path for violation in caught.value.violations]


def sampling(**fields: object) -> pb.GenerationOptions:
    return pb.GenerationOptions(sampling=pb.SamplingParams(**fields))


def stopping(**fields: object) -> pb.GenerationOptions:
    return pb.GenerationOptions(stopping=pb.StopConditions(**fields))


def output(**fields: object) -> pb.GenerationOptions:
    return pb.GenerationOptions(output=pb.OutputOptions(**fields))


def cache(**fields: object) -> pb.GenerationOptions:
    return pb.GenerationOptions(cache=pb.CacheOptions(**fields))


REFUSED: list[tuple[pb.GenerationOptions, str]] = [
    *(
        (sampling(**{name: value}), f"options.sampling.{name}")
        for name, values in {
            "temperature": (-0.001, 2.001, NAN, INF, -INF),
            "top_p": (0.0, -0.1, 1.001, NAN, INF),
            "min_p": (-0.001, 1.001, NAN),
            "presence_penalty": (-2.001, 2.001, NAN),
            "frequency_penalty": (-2.001, 2.001, NAN, -INF),
            "repetition_penalty": (0.0, 0.0099, 2.001, NAN, INF),
            "candidate_count": (0, 17),
        }.items()
        for value in values
    ),
    (sampling(logit_bias={3: 100.5}), "options.sampling.logit_bias[3]"),
    (sampling(logit_bias={3: -100.5}), "options.sampling.logit_bias[3]"),
    (sampling(logit_bias={3: NAN}), "options.sampling.logit_bias[3]"),
    (sampling(logit_bias={VOCAB: 1.0}), "options.sampling.logit_bias.key"),
    (
        sampling(logit_bias=dict.fromkeys(range(1025), 1.0)),
        "options.sampling.logit_bias.length",
    ),
    (stopping(max_tokens=0), "options.stopping.max_tokens"),
    (stopping(max_tokens=3, min_tokens=4), "options.stopping.min_tokens"),
    (stopping(stop=["x"] * 17), "options.stopping.stop.length"),
    (stopping(stop=["x"] * 50_000), "options.stopping.stop.length"),
    (stopping(stop=["ok", "é" * 128 + "x"]), "options.stopping.stop[1]"),
    (stopping(stop=["ok", ""]), "options.stopping.stop[1]"),
    (stopping(stop_token_ids=[1] * 65), "options.stopping.stop_token_ids.length"),
    (stopping(stop_token_ids=[1, VOCAB, 2]), "options.stopping.stop_token_ids[1]"),
    (stopping(time_limit=Duration()), "options.stopping.time_limit"),
    (stopping(time_limit=Duration(seconds=-1)), "options.stopping.time_limit"),
    (stopping(time_limit=Duration(seconds=86401)), "options.stopping.time_limit"),
    (output(logprobs=21), "options.output.logprobs"),
    (output(prompt_logprobs=21), "options.output.prompt_logprobs"),
    (output(stream_interval_tokens=1025), "options.output.stream_interval_tokens"),
    (cache(salt="é" * 64 + "x"), "options.cache.salt"),
    (pb.GenerationOptions(priority=101), "options.priority"),
    (pb.GenerationOptions(priority=-101), "options.priority"),
    (pb.GenerationOptions(priority=-(2**31)), "options.priority"),
]


@pytest.mark.parametrize(("options", "path"), REFUSED)
def test_beyond_a_limit_is_refused_with_its_path(options: pb.GenerationOptions, path: str) -> None:
    assert violations(options) == [path]


ACCEPTED = [
    sampling(temperature=2.0, top_p=1.0, min_p=1.0, presence_penalty=2.0, candidate_count=16),
    sampling(frequency_penalty=-2.0, repetition_penalty=0.01, candidate_count=1),
    sampling(repetition_penalty=2.0, seed=2**64 - 1, top_k=2**32 - 1, top_p=1e-30),
    sampling(logit_bias={i: 100.0 - i % 2 * 200.0 for i in range(1000)}),
    stopping(stop=["é" * 128] * 16, stop_token_ids=[VOCAB - 1] * 64),
    stopping(max_tokens=1, min_tokens=1),
    stopping(max_tokens=2**32 - 1),
    stopping(time_limit=Duration(nanos=1)),
    stopping(time_limit=Duration(seconds=86400)),
    output(logprobs=20, prompt_logprobs=20, stream_interval_tokens=1024),
    cache(salt="é" * 64),
    pb.GenerationOptions(priority=100),
    pb.GenerationOptions(priority=-100),
    pb.GenerationOptions(constraint=pb.OutputConstraint()),
]


@pytest.mark.parametrize("options", ACCEPTED)
def test_at_a_limit_is_accepted(options: pb.GenerationOptions) -> None:
    check(options)


def test_all_violations_are_told_at_once() -> None:
    options = pb.GenerationOptions(
        sampling=pb.SamplingParams(temperature=NAN, top_p=2.0),
        stopping=pb.StopConditions(stop=[""]),
        priority=1000,
    )
    assert len(violations(options)) == 4


def test_the_message_of_a_violation_names_field_value_and_limit() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(sampling(temperature=3.0))
    assert str(caught.value.violations[0]) == (
        "options.sampling.temperature = 3.0: must be in [0, 2]"
    )


@pytest.mark.parametrize(
    "kind",
    [
        {"json_schema": "{}"},
        {"json_object": False},
        {"regex": "a"},
        {"ebnf": "x"},
        {"choice": pb.ChoiceConstraint(choices=["a"])},
    ],
)
def test_constraints_are_not_served(kind: dict[str, object]) -> None:
    options = pb.GenerationOptions(constraint=pb.OutputConstraint(**kind))
    with pytest.raises(FeatureDisabled) as caught:
        check(options)
    assert caught.value.feature == f"options.constraint.{next(iter(kind))}"


def test_ignore_eos_needs_leave() -> None:
    with pytest.raises(FeatureDisabled) as caught:
        check(stopping(ignore_eos=True))
    assert caught.value.feature == "options.stopping.ignore_eos"
    allowing = ServingLimits(VOCAB, CONTEXT, DEFAULTS, allow_ignore_eos=True)
    assert check(stopping(ignore_eos=True), allowing).ignore_eos


def test_the_server_may_allow_fewer_candidates() -> None:
    limits = ServingLimits(VOCAB, CONTEXT, DEFAULTS, max_candidates=2)
    assert check(sampling(candidate_count=2), limits).candidate_count == 2
    with pytest.raises(InvalidRequest):
        check(sampling(candidate_count=3), limits)


def test_unset_fields_take_the_defaults_of_the_model() -> None:
    checked = check(pb.GenerationOptions())
    assert checked.sampling == SamplingParams(
        temperature=0.6, top_k=40, top_p=0.9, repetition_penalty=1.1, seed=SEED
    )
    assert (checked.candidate_count, checked.max_tokens, checked.min_tokens) == (1, None, 0)
    assert (checked.stream_interval_tokens, checked.time_limit_seconds) == (1, None)


def test_set_fields_win_also_when_they_are_zero() -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 0,
        "top_p": 0.25,
        "min_p": 0.125,
        "presence_penalty": -1.5,
        "frequency_penalty": 0.75,
        "repetition_penalty": 1.25,
        "seed": 0,
    }
    checked = check(sampling(**fields, logit_bias={5: -1.5}))
    assert checked.sampling == SamplingParams(**fields, logit_bias={5: -1.5})


@pytest.mark.parametrize("temperature", [0.0, 0.0009])
def test_greedy_forgets_what_has_no_effect(temperature: float) -> None:
    checked = check(sampling(temperature=temperature, top_k=5, top_p=0.5, min_p=0.5, seed=3))
    assert checked.sampling == SamplingParams(temperature=0.0, repetition_penalty=1.1, seed=3)


def test_top_k_of_the_whole_vocabulary_is_off() -> None:
    assert check(sampling(top_k=VOCAB)).sampling.top_k == 0
    assert check(sampling(top_k=VOCAB - 1)).sampling.top_k == VOCAB - 1


def test_every_other_field_is_carried_over() -> None:
    checked = check(
        pb.GenerationOptions(
            sampling=pb.SamplingParams(candidate_count=3),
            stopping=pb.StopConditions(
                max_tokens=9,
                min_tokens=2,
                stop=["a", "b"],
                stop_token_ids=[4, 5],
                include_stop=True,
                time_limit=Duration(seconds=1, nanos=500_000_000),
            ),
            output=pb.OutputOptions(
                token_ids=True,
                logprobs=0,
                prompt_logprobs=2,
                skip_text=True,
                stream_interval_tokens=7,
                keep_special_tokens=True,
            ),
            cache=pb.CacheOptions(salt="s", skip_insert=True),
            priority=-3,
            truncate_prompt_tokens=12,
        )
    )
    assert (checked.candidate_count, checked.max_tokens, checked.min_tokens) == (3, 9, 2)
    assert (checked.stop, checked.stop_ids, checked.include_stop) == (("a", "b"), (4, 5), True)
    assert checked.time_limit_seconds == 1.5
    assert (checked.sampling.logprobs, checked.sampling.prompt_logprobs) == (0, 2)
    assert (checked.want_token_ids, checked.skip_text, checked.keep_special_tokens) == (
        True,
        True,
        True,
    )
    assert (checked.stream_interval_tokens, checked.salt, checked.skip_insert) == (7, "s", True)
    assert (checked.priority, checked.truncate_prompt_tokens) == (-3, 12)


def test_prompt_logprobs_need_a_computed_prompt() -> None:
    assert check(output(prompt_logprobs=0)).skip_lookup
    assert not check(output(logprobs=0)).skip_lookup
    assert check(cache(skip_lookup=True)).skip_lookup


def test_prompt_logprobs_are_bounded_with_the_prompt() -> None:
    options = check(output(prompt_logprobs=20))
    check_prompt_logprobs(65536 // 21, options)
    with pytest.raises(InvalidRequest) as caught:
        check_prompt_logprobs(65536 // 21 + 1, options)
    assert caught.value.violations[0].path == "options.output.prompt_logprobs"
    check_prompt_logprobs(10**6, check(pb.GenerationOptions()))


# --- the prompt ---


def test_a_prompt_that_leaves_room_is_kept() -> None:
    ids = list(range(CONTEXT - 1))
    assert take_prompt_ids(ids, check(pb.GenerationOptions()), LIMITS) == ids


@pytest.mark.parametrize(("prompt_tokens", "min_tokens"), [(CONTEXT, 0), (CONTEXT - 4, 5)])
def test_a_prompt_that_leaves_no_room_is_refused(prompt_tokens: int, min_tokens: int) -> None:
    options = check(stopping(min_tokens=min_tokens))
    with pytest.raises(ContextLengthExceeded) as caught:
        take_prompt_ids(range(prompt_tokens), options, LIMITS)
    assert caught.value.prompt_tokens == prompt_tokens
    assert caught.value.min_tokens == max(1, min_tokens)
    assert caught.value.max_context_tokens == CONTEXT


def test_min_tokens_may_fill_the_context() -> None:
    options = check(stopping(min_tokens=5))
    assert len(take_prompt_ids(range(CONTEXT - 5), options, LIMITS)) == CONTEXT - 5


def test_truncation_keeps_the_last_tokens() -> None:
    options = check(pb.GenerationOptions(truncate_prompt_tokens=3))
    assert take_prompt_ids(range(10**6), options, LIMITS) == [999_997, 999_998, 999_999]
    assert take_prompt_ids([1, 2], options, LIMITS) == [1, 2]


def test_truncation_beyond_the_context_does_not_help() -> None:
    options = check(pb.GenerationOptions(truncate_prompt_tokens=CONTEXT))
    with pytest.raises(ContextLengthExceeded):
        take_prompt_ids(range(CONTEXT + 1), options, LIMITS)


@pytest.mark.parametrize(
    ("ids", "path"), [([], "token_ids.ids"), ([1, 2, VOCAB, VOCAB + 1], "token_ids.ids[2]")]
)
def test_ids_out_of_the_vocabulary(ids: list[int], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_prompt_ids(ids, "token_ids.ids", LIMITS)
    assert [violation.path for violation in caught.value.violations] == [path]


# --- anything at all ---

FLOATS = st.floats(width=32) | st.sampled_from([0.0, 0.5, 1.0, 2.0])
UINTS = st.integers(0, 2**32 - 1) | st.integers(0, 30)


def messages(build: Callable[..., object], **fields: st.SearchStrategy[object]):  # type: ignore[no-untyped-def]
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: build(**given))


OPTIONS = messages(
    pb.GenerationOptions,
    sampling=messages(
        pb.SamplingParams,
        temperature=FLOATS,
        top_p=FLOATS,
        top_k=UINTS,
        min_p=FLOATS,
        presence_penalty=FLOATS,
        frequency_penalty=FLOATS,
        repetition_penalty=FLOATS,
        seed=st.integers(0, 2**64 - 1),
        logit_bias=st.dictionaries(UINTS, FLOATS, max_size=3),
        candidate_count=UINTS,
    ),
    stopping=messages(
        pb.StopConditions,
        max_tokens=UINTS,
        min_tokens=UINTS,
        stop=st.lists(st.text(max_size=5), max_size=18),
        stop_token_ids=st.lists(UINTS, max_size=3),
        time_limit=st.builds(
            Duration,
            seconds=st.integers(-(2**63), 2**63 - 1),
            nanos=st.integers(-(2**31), 2**31 - 1),
        ),
    ),
    output=messages(
        pb.OutputOptions, logprobs=UINTS, prompt_logprobs=UINTS, stream_interval_tokens=UINTS
    ),
    priority=st.integers(-(2**31), 2**31 - 1),
)


@given(OPTIONS)
@settings(max_examples=150, deadline=None)
def test_whatever_passes_is_within_the_limits(options: pb.GenerationOptions) -> None:
    try:
        checked = check(options)
    except InvalidRequest:
        return
    params = checked.sampling
    assert 0 <= params.temperature <= 2
    assert params.temperature == 0 or params.temperature >= 0.0009
    assert 0 < params.top_p <= 1
    assert 0 <= params.min_p <= 1
    assert 0 <= params.top_k < VOCAB
    assert 0.0099 < params.repetition_penalty <= 2
    assert all(-100 <= bias <= 100 and key < VOCAB for key, bias in params.logit_bias.items())
    assert 1 <= checked.candidate_count <= 16
    assert checked.max_tokens is None or checked.max_tokens >= max(1, checked.min_tokens)
    assert len(checked.stop) <= 16
    assert all(checked.stop)
    assert all(token_id < VOCAB for token_id in checked.stop_ids)
    assert -100 <= checked.priority <= 100
    assert checked.time_limit_seconds is None or 0 < checked.time_limit_seconds <= 86400
