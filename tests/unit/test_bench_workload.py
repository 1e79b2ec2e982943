"""What a benchmark asks: files, traces, sharing, arrivals."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bench.arrivals import OpenLoop
from service.bench.plan import WorkloadSpec, plan_requests
from service.bench.prompt_files import read_prompts
from service.bench.synthetic import SharedPrefix, TokenSource
from service.bench.traces import read_trace
from service.bench.workload import Lengths, PlannedRequest, WorkloadError
from service.client import Conversation

DATA = Path(__file__).parents[3] / "shared" / "data"


def planned(
    spec: WorkloadSpec, count: int, vocab_size: int = 1000, max_context_tokens: int = 10_000
) -> list[PlannedRequest]:
    requests = plan_requests(spec, vocab_size=vocab_size, max_context_tokens=max_context_tokens)
    return list(itertools.islice(requests, count))


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    )


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_lines_of_a_text_file_are_prompts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"prompts{suffix}"
    content = "one\n\n  zwei ä \n".encode()
    path.write_bytes(gzip.compress(content) if suffix == ".txt.gz" else content)
    assert read_prompts(path) == ["one", "zwei ä"]


def test_json_lines_give_prompt_or_first_turn(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"turns": ["b", "c"], "category": "x"}\n')
    assert read_prompts(path) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", "a", "must end in"),
        ("p.txt", "\n \n", "no prompt"),
        ("p.jsonl", "{", "p.jsonl:1: not JSON"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": 3}', "p.jsonl:2: neither"),
        ("p.jsonl", '{"turns": []}', "p.jsonl:1: neither"),
        ("p.txt.gz", "no gzip", "p.txt.gz: "),
    ],
)
def test_a_bad_prompt_file_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(WorkloadError, match=message):
        read_prompts(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"missing\.txt"):
        read_prompts(tmp_path / "missing.txt")


def test_azure_and_mooncake_lengths(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4808,10\n")
    assert read_trace(azure) == [Lengths(4808, 10)]
    mooncake = tmp_path / "mooncake.jsonl"
    line = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}
    mooncake.write_text(json.dumps(line) + "\n")
    assert read_trace(mooncake) == [Lengths(600, 5, (0, 7))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "neither a CSV"),
        ("", "neither a CSV"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,many\n",
            "t:2: GeneratedTokens = 'many'",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5\n",
            "t:2: GeneratedTokens is missing",
        ),
        ('{"timestamp": 0, "input_length": 5}\n', "t:1: output_length is missing"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1}\n', "t:1: input_length = 0"),
    ],
)
def test_a_bad_trace_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t"
    path.write_text(content)
    with pytest.raises(WorkloadError, match=message):
        read_trace(path)


@pytest.mark.parametrize("name", ["mt_bench_question.jsonl.gz", "sonnet.txt.gz"])
def test_published_prompts_are_readable(name: str) -> None:
    path = DATA / "prompts" / name
    if not path.exists():
        pytest.skip("the shared data is not here")
    assert len(read_prompts(path)) > 70


def test_published_traces_are_readable() -> None:
    if not DATA.exists():
        pytest.skip("the shared data is not here")
    code = read_trace(DATA / "azure2023" / "AzureLLMInferenceTrace_code.csv.gz")
    assert (len(code), code[0]) == (8819, Lengths(4808, 10))
    conversations = read_trace(DATA / "mooncake" / "conversation_trace.jsonl.gz")
    assert len(conversations) == 12031
    assert conversations[0].prompt_tokens == 6758


@given(st.integers(1, 300), st.integers(0, 400), st.floats(0, 1), st.integers(1, 60))
def test_random_prompts_have_their_length_and_share_what_they_should(
    prompt_tokens: int, prefix_tokens: int, share: float, count: int
) -> None:
    spec = WorkloadSpec(
        prompt_tokens=prompt_tokens, output_tokens=3, prefix=SharedPrefix(prefix_tokens, share)
    )
    requests = planned(spec, count)
    prefix = TokenSource(1000, 0).tokens("shared prefix", min(prefix_tokens, prompt_tokens))
    for request in requests:
        assert len(request.prompt) == prompt_tokens
        assert request.output_tokens == 3
        assert all(0 < token < 1000 for token in request.prompt)
    if len(prefix) > 8:  # shorter ones may be equal by accident
        sharing = sum(request.prompt[: len(prefix)] == prefix for request in requests)
        assert sharing == int(count * share)


def test_the_seed_decides_the_tokens() -> None:
    first, again, other = (planned(WorkloadSpec(seed=s), 3) for s in (1, 1, 2))
    assert first == again
    assert first[0].prompt != other[0].prompt
    assert first[0].prompt != first[1].prompt


def test_equal_leading_blocks_of_a_trace_are_equal_tokens(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [(1200, [0, 1, 2]), (1400, [0, 1, 3]), (1200, [9, 1, 2])]
    path.write_text(
        "".join(
            json.dumps({"timestamp": 0, "input_length": n, "output_length": 4, "hash_ids": ids})
            + "\n"
            for n, ids in rows
        )
    )
    a, b, c = (request.prompt for request in planned(WorkloadSpec(trace=path), 3))
    assert (len(a), len(b), len(c)) == (1200, 1400, 1200)
    assert common_prefix(a, b) // 512 == 2
    assert common_prefix(a, c) < 512
    scaled = planned(WorkloadSpec(trace=path, length_scale=0.25), 3)
    a, b, _ = (request.prompt for request in scaled)
    assert (len(a), len(b)) == (300, 350)
    assert common_prefix(a, b) // 128 == 2
    assert scaled[0].output_tokens == 1


def test_what_does_not_fit_the_context_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    at = "2023-11-16 18:17:03.9799600"
    rows = "".join(f"{at},{sizes}\n" for sizes in ("90,11", "90,10", "5,5"))
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    requests = planned(WorkloadSpec(trace=path), 3, max_context_tokens=100)
    assert [len(request.prompt) for request in requests] == [90, 5, 90]
    with pytest.raises(WorkloadError, match="the shortest request has 10 tokens, the context 9"):
        planned(WorkloadSpec(trace=path), 1, max_context_tokens=9)


def test_prompts_of_a_file_start_again_and_may_be_questions(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("a\nb\n")
    texts = [request.prompt for request in planned(WorkloadSpec(prompts=path), 3)]
    assert texts == ["a", "b", "a"]
    (question,) = planned(WorkloadSpec(prompts=path, chat=True), 1)
    assert isinstance(question.prompt, Conversation)


def test_poisson_gaps_have_their_mean_and_spread() -> None:
    loop = OpenLoop(requests_per_second=4.0, seed=3)
    gaps = [loop.gap_seconds() for _ in range(20_000)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 4, rel=0.03)
    assert variance == pytest.approx(1 / 16, rel=0.1)
    again = OpenLoop(requests_per_second=4.0, seed=3)
    assert gaps[:5] == [again.gap_seconds() for _ in range(5)]
