"""Conversations in, events and statistics out."""

from __future__ import annotations

import json

import msgspec
import pytest
from api_fakes import ENDED, ENGINE_STATS, MODEL, FakeFront, FakeTokenizer

from kvcache.pressure import PressureLevel
from service.api.answers import Answers, CandidateParts, duration, stream_end
from service.api.conversation import check_conversation, tokenizer_fault
from service.api.errors import FeatureDisabled, InvalidRequest
from service.api.gen.plimsoll.v1 import common_pb2, engine_admin_pb2
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.stats import pressure_message, stats_message
from service.engine.figures import TierFigures
from service.engine.messages import FinishReason, TokenLogprob
from service.front.events import Delta, Started
from service.front.state import FrontState
from service.tokenizer.errors import ChatInputError, ChatTemplateError, NoChatTemplateError
from service.tokenizer.tokenizer import ChatMessage

USER = pb.ChatMessage(role=pb.ROLE_USER, content="hi")


def paths(conversation: pb.Conversation) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        check_conversation(conversation, max_messages=4096)
    return [violation.path for violation in caught.value.violations]


# --- conversations ---


def test_a_conversation_is_taken_over() -> None:
    checked = check_conversation(
        pb.Conversation(
            messages=[
                pb.ChatMessage(role=pb.ROLE_SYSTEM, content="s"),
                pb.ChatMessage(role=pb.ROLE_USER, content="u", name="n"),
                pb.ChatMessage(role=pb.ROLE_ASSISTANT, content="a"),
                pb.ChatMessage(role=pb.ROLE_TOOL, content="t", tool_call_id="c"),
            ],
            tools_json='[{"type": "function"}]',
            template_kwargs_json='{"thinking": true}',
            continue_final_message=True,
        ),
        max_messages=4,
    )
    assert checked.messages == [
        ChatMessage("system", "s"),
        ChatMessage("user", "u", name="n"),
        ChatMessage("assistant", "a"),
        ChatMessage("tool", "t", tool_call_id="c"),
    ]
    assert checked.tools == [{"type": "function"}]
    assert checked.template_kwargs == {"thinking": True}
    assert checked.continue_final_message


def test_the_server_may_allow_fewer_messages() -> None:
    with pytest.raises(InvalidRequest):
        check_conversation(pb.Conversation(messages=[USER] * 5), max_messages=4)


@pytest.mark.parametrize(
    ("conversation", "path"),
    [
        (pb.Conversation(), "conversation.messages.length"),
        (pb.Conversation(messages=[USER] * 4097), "conversation.messages.length"),
        (
            pb.Conversation(messages=[USER, pb.ChatMessage(content="x")]),
            "conversation.messages[1].role",
        ),
        (
            pb.Conversation(messages=[pb.ChatMessage(role=99, content="x")]),  # type: ignore[arg-type]
            "conversation.messages[0].role",
        ),
        *(
            (pb.Conversation(messages=[USER], tools_json=text), "conversation.tools_json")
            for text in (
                "{}",
                "[",
                "nonsense",
                "[" * 100_000,
                "[" + "1" * 5000 + "]",
                json.dumps(["x" * 262_144]),
            )
        ),
        *(
            (
                pb.Conversation(messages=[USER], template_kwargs_json=text),
                "conversation.template_kwargs_json",
            )
            for text in ("[]", "{", json.dumps({"x": "y" * 65_536}))
        ),
    ],
)
def test_a_bad_conversation_is_refused(conversation: pb.Conversation, path: str) -> None:
    assert paths(conversation) == [path]


def test_what_the_tokenizer_refuses_is_told() -> None:
    fault = tokenizer_fault(
        ChatInputError("conversation.messages[-1].role", "user", "no"), "conversation"
    )
    assert isinstance(fault, InvalidRequest)
    assert fault.violations[0].path == "conversation.messages[-1].role"
    fault = tokenizer_fault(ChatTemplateError("roles must alternate"), "conversation")
    assert isinstance(fault, InvalidRequest)
    assert "roles must alternate" in str(fault.violations[0])
    assert fault.violations[0].path == "conversation"
    assert tokenizer_fault(NoChatTemplateError("m"), "conversation") == FeatureDisabled(
        "conversation"
    )


# --- answers ---


def answers(want_token_ids: bool = True) -> Answers:
    return Answers("r1", MODEL, want_token_ids, FakeTokenizer().token_bytes)


def test_a_start_message_has_every_field() -> None:
    logprobs = [TokenLogprob(65, -0.5, [65, 66], [-0.5, -1.5])]
    start = answers().start(Started(5, 2, 2**64 - 1, -7, logprobs))
    assert start == pb.StreamStart(
        request_id="r1",
        model="fake@abc123",
        prompt_tokens=5,
        cached_prompt_tokens=2,
        seed=2**64 - 1,
        effective_priority=-7,
        prompt_logprobs=[
            pb.TokenLogprob(
                token_id=65,
                token=b"A",
                logprob=-0.5,
                top=[
                    pb.TokenLogprob(token_id=65, token=b"A", logprob=-0.5),
                    pb.TokenLogprob(token_id=66, token=b"B", logprob=-1.5),
                ],
            )
        ],
    )


def test_a_delta_has_every_field() -> None:
    logprobs = [TokenLogprob(255, -2.0, [], [])]
    delta = Delta(3, "x", [1, 2], logprobs, FinishReason.STOP, stop="END")
    assert answers().deltas([delta]).deltas[0] == pb.StreamDelta(
        index=3,
        text="x",
        token_ids=[1, 2],
        logprobs=[pb.TokenLogprob(token_id=255, token=b"\xff", logprob=-2.0)],
        finish_reason=common_pb2.FINISH_REASON_STOP,
        stop_match=common_pb2.StopMatch(stop="END"),
    )


def test_ids_are_left_out_unless_asked_for() -> None:
    delta = Delta(0, "x", [1])
    parts = CandidateParts()
    parts.add(delta)
    assert list(answers(want_token_ids=False).deltas([delta]).deltas[0].token_ids) == []
    assert list(answers(want_token_ids=False).candidate(0, parts).token_ids) == []


def test_a_candidate_is_its_deltas_joined() -> None:
    parts = CandidateParts()
    for delta in (
        Delta(1, "a", [1], [TokenLogprob(1, -1.0, [], [])]),
        Delta(1, "b", [2, 3], [TokenLogprob(2, -2.0, [], [])]),
        Delta(1, "", [0], [], FinishReason.EOS, stop_token_id=0),
    ):
        parts.add(delta)
    candidate = answers().candidate(1, parts)
    assert (candidate.index, candidate.text) == (1, "ab")
    assert list(candidate.token_ids) == [1, 2, 3, 0]
    assert [entry.token_id for entry in candidate.logprobs] == [1, 2]
    assert candidate.finish_reason == common_pb2.FINISH_REASON_EOS
    assert candidate.stop_match == common_pb2.StopMatch(token_id=0)


def test_an_end_message_has_every_field() -> None:
    end = stream_end(ENDED)
    assert end.usage == common_pb2.Usage(
        prompt_tokens=5, completion_tokens=3, cached_prompt_tokens=2, recomputed_tokens=1
    )
    assert end.timings == common_pb2.Timings(
        queue=duration(0.25),
        prefill=duration(0.5),
        time_to_first_token=duration(0.75),
        decode=duration(1.5),
        preempted=duration(0.125),
        blocked_on_client=duration(0.0625),
        preemption_count=2,
    )
    assert end.timings.preempted.ToMicroseconds() == 125_000


# --- statistics ---


def test_blocks_add_up() -> None:
    blocks = stats_message(FakeFront().stats(), 3.0).blocks
    assert (blocks.total, blocks.free, blocks.cached) == (40, 20, 10)
    assert (blocks.active, blocks.reserved, blocks.shared) == (7, 3, 1)
    assert blocks.free + blocks.cached + blocks.active + blocks.reserved == blocks.total
    assert blocks.bytes_per_block == 1024


def test_kept_blocks_are_told() -> None:
    front = FakeFront()
    front.engine = msgspec.structs.replace(ENGINE_STATS, blocks_free=18, blocks_kept=2)
    blocks = stats_message(front.stats(), 3.0).blocks
    assert (blocks.free, blocks.kept) == (18, 2)


def test_tiers_are_told_where_they_are() -> None:
    front = FakeFront()
    assert not stats_message(front.stats(), 3.0).HasField("tiers")
    front.engine = msgspec.structs.replace(
        ENGINE_STATS, trims=3, swaps=2, tiers=TierFigures(*range(1, 12))
    )
    answer = stats_message(front.stats(), 3.0)
    assert (answer.trims_total, answer.swaps_total) == (3, 2)
    assert answer.tiers == engine_admin_pb2.TierStats(
        host_used_bytes=1,
        host_capacity_bytes=2,
        spilled_blocks_total=3,
        lost_blocks_total=4,
        loaded_blocks_total=5,
        open_loads=6,
        expired_loads_total=7,
        disk_used_bytes=8,
        disk_capacity_bytes=9,
        dropped_blocks_total=10,
        failures_total=11,
    )


def test_statistics_have_every_field() -> None:
    front = FakeFront()
    front.states.set(FrontState.DRAINING)
    front.pressure.set(PressureLevel.HIGH)
    answer = stats_message(front.stats(), now_seconds=3.5)
    assert (answer.running_requests, answer.waiting_requests) == (5, 3)
    assert (answer.preempted_candidates, answer.slow_streams) == (2, 1)
    assert answer.pressure == engine_admin_pb2.PRESSURE_LEVEL_HIGH
    assert (answer.prefix_lookup_tokens_total, answer.prefix_hit_tokens_total) == (100, 30)
    assert (answer.preemptions_total, answer.evictions_total) == (5, 4)
    assert (answer.rejections_total, answer.steps_total) == (6, 7)
    assert answer.completion_tokens_total == 17
    assert answer.step_time.ToMilliseconds() == 20
    assert answer.since_last_step.ToMilliseconds() == 2500
    assert answer.draining
    assert answer.engine_restarts_total == 1
    assert answer.time.seconds > 1_700_000_000


def test_statistics_before_the_first_engine_and_before_its_first_step() -> None:
    front = FakeFront()
    front.engine = None
    answer = stats_message(front.stats(), 3.5)
    assert not answer.HasField("blocks")
    assert not answer.draining
    front.engine = msgspec.structs.replace(ENGINE_STATS, last_step_seconds=0.0)
    assert not stats_message(front.stats(), 3.5).HasField("since_last_step")


def test_pressure_has_every_field() -> None:
    answer = pressure_message(FakeFront().stats())
    assert answer.level == engine_admin_pb2.PRESSURE_LEVEL_NORMAL
    assert answer.utilization == 0.25
    assert answer.blocks.total == 40
    assert answer.waiting_requests == 3
    assert answer.suggested_retry_delay.ToMilliseconds() == 500
