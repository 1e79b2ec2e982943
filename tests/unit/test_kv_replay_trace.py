"""Reading published traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kvcache.replay import TraceError, TraceRequest, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AT = "2023-11-16 18:17:03.9799600"
LINE = {"timestamp": 250, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}
TRACES = Path(__file__).parents[1] / "traces"
DATA = Path(__file__).parents[3] / "shared" / "data"


def written(tmp_path: Path, content: str, name: str = "t") -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    return path


def mooncake(**changes: object) -> str:
    fields = LINE | changes
    return json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n"


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_mooncake_lines(tmp_path: Path, name: str) -> None:
    content = mooncake() + "\n" + mooncake(timestamp=0.5, output_length=0, hash_ids=None)
    assert read_trace(written(tmp_path, content, name)) == [
        TraceRequest(0.25, 600, 5, (0, 7)),
        TraceRequest(0.0005, 600, 0),
    ]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_azure_rows(tmp_path: Path, name: str) -> None:
    content = f"{AZURE}{AT},4808,10\n2023-11-16 18:17:04.0319600,3180,0\n2023-11-16 18:18:04,1,1\n"
    first, second, third = read_trace(written(tmp_path, content, name))
    assert (first.prompt_tokens, first.output_tokens, first.hash_ids) == (4808, 10, ())
    assert second.arrival_seconds - first.arrival_seconds == pytest.approx(0.052, abs=1e-6)
    assert third.arrival_seconds - first.arrival_seconds == pytest.approx(60.02004, abs=1e-6)


def test_columns_may_come_in_any_order_and_with_others(tmp_path: Path) -> None:
    content = f'Model,GeneratedTokens,ContextTokens,TIMESTAMP\n"a,b",7,9,{AT}\n'
    (request,) = read_trace(written(tmp_path, content))
    assert (request.prompt_tokens, request.output_tokens) == (9, 7)


@pytest.mark.parametrize(
    ("content", "line", "field", "message"),
    [
        ("", None, None, "neither a CSV"),
        ("a,b\n1,2\n", None, None, "neither a CSV"),
        (AZURE, None, None, "no request"),
        (f"{AZURE}{AT},5,many\n", 2, "GeneratedTokens", "'many' is not an integer of at least 0"),
        (f"{AZURE}{AT},0,1\n", 2, "ContextTokens", "'0' is not an integer of at least 1"),
        (f"{AZURE}\n{AT},5\n", 3, "GeneratedTokens", "GeneratedTokens is missing"),
        (f"{AZURE}yesterday,5,5\n", 2, "TIMESTAMP", "'yesterday' is not a date and time"),
        (mooncake() + "{", 2, None, "not JSON"),
        (mooncake() + "[1]", 2, None, "not a JSON object"),
        (mooncake(timestamp=None), 1, "timestamp", "timestamp is missing"),
        (mooncake(timestamp="now"), 1, "timestamp", "'now' is not a number of milliseconds"),
        (mooncake(timestamp=-1), 1, "timestamp", "-1 is not a number of milliseconds"),
        (mooncake(timestamp=float("nan")), 1, "timestamp", "nan is not a number of milliseconds"),
        (mooncake(timestamp=True), 1, "timestamp", "True is not a number of milliseconds"),
        (mooncake(input_length=0), 1, "input_length", "0 is not an integer of at least 1"),
        (mooncake(input_length=1.5), 1, "input_length", "1.5 is not an integer"),
        (mooncake(output_length=-1), 1, "output_length", "-1 is not an integer of at least 0"),
        (mooncake(output_length=True), 1, "output_length", "True is not an integer"),
        (mooncake(hash_ids="12"), 1, "hash_ids", "'12' is not a list of integers"),
        (mooncake(hash_ids=[1, "2"]), 1, "hash_ids", "is not a list of integers"),
    ],
)
def test_a_bad_line_is_named_with_its_field(
    tmp_path: Path, content: str, line: int | None, field: str | None, message: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    error = caught.value
    assert (error.path, error.line, error.field) == (path, line, field)
    assert message in str(error)
    assert str(error).startswith(f"{path}:{line}: " if line else f"{path}: ")


def test_a_missing_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="missing"):
        read_trace(tmp_path / "missing")
    whole = gzip.compress(mooncake().encode() * 200)
    damaged = bytearray(whole)
    damaged[20:40] = b"\xff" * 20
    for name, content in {
        "no.gz": b"{}",
        "cut.gz": whole[:-12],
        "damaged.gz": bytes(damaged),
        "latin": b"{\xe4}",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError, match=name):
            read_trace(tmp_path / name)


def test_committed_traces_are_readable() -> None:
    assert len(read_trace(TRACES / "sessions.jsonl")) == 58
    assert len(read_trace(TRACES / "lengths.csv")) == 80


def test_published_traces_are_readable() -> None:
    if not DATA.exists():
        pytest.skip("the shared data is not here")
    code = read_trace(DATA / "azure2023" / "AzureLLMInferenceTrace_code.csv.gz")
    assert (len(code), code[0].prompt_tokens, code[0].output_tokens) == (8819, 4808, 10)
    conversations = read_trace(DATA / "mooncake" / "conversation_trace.jsonl.gz")
    assert len(conversations) == 12_031
    assert conversations[-1].arrival_seconds == 3536.999
