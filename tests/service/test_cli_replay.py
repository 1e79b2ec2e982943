"""`plimsoll replay`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.cli import main

TRACES = Path(__file__).parents[1] / "traces"
SESSIONS = str(TRACES / "sessions.jsonl")


def rows(output: str) -> dict[str, str]:
    """The table by its first column."""
    lines = (line.strip().split("  ", 1) for line in output.splitlines() if "  " in line.strip())
    return {name.strip(): value.strip() for name, value in lines}


def test_a_replay_prints_and_writes_the_same_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    flags = ["--blocks", "40", "--block-tokens", "512", "--prefill-rate", "2000"]
    assert main(["replay", SESSIONS, *flags, "--json", str(out)]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    table = rows(printed)
    document = json.loads(out.read_text())
    assert document["schema"] == "plimsoll.replay/1"
    assert document["trace"] == SESSIONS
    assert document["settings"]["num_blocks"] == 40
    assert document["settings"]["prefill_tokens_per_second"] == 2000.0
    assert document["settings"]["decode_step_seconds"] == 0.025
    assert table["requests finished"] == str(document["requests"]["finished"]) == "58"
    assert table["hit ratio"].startswith(f"{document['cache']['hit_ratio']:.2%} of ")
    assert 0 < document["cache"]["hit_ratio"] < 1
    assert table["internal waste"].startswith(f"{document['waste']:.2%}")
    assert table["preemptions"] == str(document["requests"]["preemptions"])
    assert table["recomputed tokens"] == str(document["requests"]["recomputed_tokens"])
    assert table["longest queue"] == f"{document['longest_queue']} requests"
    assert f"{document['load_line_share']:.1%} of the time" in table["at the load line"]
    assert f"p99 {document['queue_seconds']['p99']:.2f}," in table["queueing"]
    assert f"p50 {document['ttft_seconds']['p50']:.2f}," in table["time to first token"]
    assert {"seconds", "held_blocks", "waiting"} <= set(document["timeline"][0])


def test_a_csv_and_the_first_requests_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(TRACES / "lengths.csv"), "-n", "7"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["requests finished"] == "7"
    assert table["hit ratio"].startswith("0.00%")


def test_refused_and_outgrown_requests_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    sizes = ((600, 1), (500, 90), (512, 1), (9, 4))
    trace.write_text(
        "".join(
            f'{{"timestamp": 0, "input_length": {prompt}, "output_length": {output}}}\n'
            for prompt, output in sizes
        )
    )
    assert main(["replay", str(trace), "--blocks", "1", "--block-tokens", "512"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["refused"] == "1 larger than the pool"
    assert table["outgrown"] == "1 grew larger than the pool"
    assert table["requests finished"] == "2"


def test_in_order_shows_the_cache_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    flags = ["--in-order", "--blocks", "1000", "--block-tokens", "512", "--json", str(out)]
    assert main(["replay", SESSIONS, *flags]) == 0
    table = rows(capsys.readouterr().out)
    document = json.loads(out.read_text())
    assert "queueing" not in table
    # Room for all: every id that came before is found, but for a prompt's last block.
    seen: set[int] = set()
    hits = total = 0
    for line in Path(SESSIONS).read_text().splitlines():
        ids = json.loads(line)["hash_ids"]
        hits += sum(one in seen for one in ids[:-1])
        total += len(ids)
        seen.update(ids)
    assert document["cache"]["hit_ratio"] == pytest.approx(hits / total)
    assert table["hit ratio"].startswith(f"{hits / total:.2%}")
    assert "speed" not in document["settings"]


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "out.png"
    assert main(["replay", SESSIONS, "-n", "9", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["missing.jsonl"], 1, "missing.jsonl"),
        ([SESSIONS, "--in-order", "--plot", "x.png"], 2, "not with --in-order"),
        ([SESSIONS, "--step-tokens", "64"], 2, "max_step_tokens is 64"),
        ([SESSIONS, "--blocks", "0"], 2, "--blocks"),
        ([SESSIONS, "--load-line", "0"], 2, "--load-line"),
        ([SESSIONS, "--json", "no/such/folder/x.json"], 1, "there is no folder"),
    ],
)
def test_wrong_calls_are_told_in_one_line(
    flags: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *flags]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
