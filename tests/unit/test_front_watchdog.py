"""Which engines are taken for frozen: those that could have come on and did not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_fakes import FakeLoop

from service.config import ServeSettings
from service.engine.pulse import Pulse, open_pulse
from service.front import watchdog
from service.front.freeze import Activity, FreezeJudge
from service.front.watchdog import LOOKS_PER_LIMIT, Watchdog, process_activity

LIMIT_SECONDS = 8.0
LOOK_SECONDS = LIMIT_SECONDS / LOOKS_PER_LIMIT
ASLEEP = Activity(wants_cpu=False, cpu_seconds=1.0)
# One look finds that nothing moved since the one before, the next begins to count.
LOOKS_TO_NOTICE = LOOKS_PER_LIMIT + 2


def looks_until_frozen(activities: Iterator[Activity], most: int = 1000) -> int | None:
    """Of an engine that beats until the first look; None: after no number of looks."""
    judge = FreezeJudge(LIMIT_SECONDS)
    for number, activity in enumerate(activities, start=1):
        if number == most:
            return None
        if not judge.progressed(7) and judge.is_frozen(activity, LOOK_SECONDS):
            return number
    return None


def running(
    share: float, wants_cpu: bool = True, waits_for_device: bool = False
) -> Iterator[Activity]:
    """An engine that gets this share of a CPU."""
    seconds = 3.0
    while True:
        yield Activity(wants_cpu, seconds, waits_for_device)
        seconds += share * LOOK_SECONDS


class TestFreezeJudge:
    def test_one_that_sleeps_is_noticed_within_an_eighth_more_than_the_limit(self) -> None:
        looks = looks_until_frozen(running(0.0, wants_cpu=False))
        assert looks == LOOKS_TO_NOTICE
        assert looks * LOOK_SECONDS <= LIMIT_SECONDS * 1.125

    def test_the_default_limit_notices_in_less_than_ten_seconds(self) -> None:
        limit_seconds = ServeSettings().engine_silence_seconds
        assert limit_seconds / LOOKS_PER_LIMIT * LOOKS_TO_NOTICE < 10

    def test_an_endless_loop_is_noticed_as_fast_on_a_free_cpu(self) -> None:
        assert looks_until_frozen(running(1.0)) == LOOKS_TO_NOTICE
        assert looks_until_frozen(running(2.5)) == LOOKS_TO_NOTICE, "with several threads"

    def test_on_a_shared_cpu_the_time_that_it_got_counts(self) -> None:
        assert looks_until_frozen(running(0.25)) == 4 * LOOKS_PER_LIMIT + 2

    def test_one_that_gets_no_cpu_is_never_frozen(self) -> None:
        assert looks_until_frozen(running(0.0)) is None

    def test_one_that_swaps_has_eight_times_as_long(self) -> None:
        swapping = Activity(wants_cpu=False, cpu_seconds=1.0, waits_for_device=True)
        assert looks_until_frozen(iter([swapping] * 1000)) == 8 * LOOKS_PER_LIMIT + 2
        comes_and_goes = ([swapping, ASLEEP] * 500)[:1000]
        assert looks_until_frozen(iter(comes_and_goes)) == 8 * LOOKS_PER_LIMIT + 2

    def test_one_that_swaps_and_computes_has_as_long_as_it_gets_cpu(self) -> None:
        looks = looks_until_frozen(running(0.5, wants_cpu=False, waits_for_device=True))
        assert looks == 2 * LOOKS_PER_LIMIT + 2
        looks = looks_until_frozen(running(2.5, wants_cpu=False, waits_for_device=True))
        assert looks == LOOKS_TO_NOTICE

    def test_one_that_queues_for_a_cpu_as_well_is_not_to_blame_for_anything(self) -> None:
        assert looks_until_frozen(running(0.0, wants_cpu=True, waits_for_device=True)) is None

    def test_a_wait_for_a_cpu_is_seen_from_either_end(self) -> None:
        """What sleeps at a look may have been queueing until just before."""
        alternating = (Activity(bool(number % 2), 1.0) for number in range(1000))
        assert looks_until_frozen(alternating) is None

    def test_a_beat_starts_everything_anew(self) -> None:
        judge = FreezeJudge(LIMIT_SECONDS)
        for beats in range(5):
            assert judge.progressed(beats)
            for _ in range(LOOKS_PER_LIMIT):
                assert not judge.progressed(beats)
                assert not judge.is_frozen(ASLEEP, LOOK_SECONDS)
        assert judge.silent_seconds == LIMIT_SECONDS - LOOK_SECONDS

    def test_a_busy_time_before_the_silence_does_not_count(self) -> None:
        judge = FreezeJudge(LIMIT_SECONDS)
        judge.progressed(1)
        assert not judge.is_frozen(Activity(True, 1000.0), LOOK_SECONDS)
        judge.progressed(2)
        assert not judge.is_frozen(Activity(True, 5000.0), LOOK_SECONDS)
        assert not judge.is_frozen(Activity(True, 5000.1), LOOK_SECONDS)
        assert judge.silent_seconds == pytest.approx(0.1)

    @given(
        st.lists(
            st.tuples(st.booleans(), st.booleans(), st.floats(0, 3 * LOOK_SECONDS)), max_size=120
        )
    )
    def test_the_count_is_the_time_since_the_last_beat_less_the_wait_for_a_cpu(
        self, looks: list[tuple[bool, bool, float]]
    ) -> None:
        judge = FreezeJudge(LIMIT_SECONDS)
        judge.progressed(0)
        beats, cpu_seconds = 0, 0.0
        silence: list[Activity] = []
        for beat, wants_cpu, used_seconds in looks:
            beats += beat
            cpu_seconds += used_seconds
            activity = Activity(wants_cpu, cpu_seconds)
            frozen = not judge.progressed(beats) and judge.is_frozen(activity, LOOK_SECONDS)
            silence = [] if beat else [*silence, activity]
            waits = [
                max(0.0, LOOK_SECONDS - (after.cpu_seconds - before.cpu_seconds))
                for before, after in pairwise(silence)
                if before.wants_cpu or after.wants_cpu
            ]
            want_seconds = LOOK_SECONDS * max(0, len(silence) - 1) - sum(waits)
            assert judge.silent_seconds == pytest.approx(want_seconds, abs=1e-9)
            assert frozen == (judge.silent_seconds >= LIMIT_SECONDS)


class TestWatchdog:
    @pytest.fixture
    def loop(self, monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
        loop = FakeLoop()
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
        return loop

    @pytest.fixture
    def pulse(self) -> Pulse:
        fd = open_pulse()
        try:
            return Pulse(fd)
        finally:
            os.close(fd)

    def test_it_calls_once_and_looks_no_more(
        self, loop: FakeLoop, pulse: Pulse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watchdog, "process_activity", lambda _: ASLEEP)
        calls: list[str] = []
        Watchdog().start(pulse, 1, LIMIT_SECONDS, lambda: calls.append("frozen"))
        assert loop.delay_seconds == LOOK_SECONDS
        loop.tick(LOOKS_TO_NOTICE - 1)
        assert not calls
        loop.tick()
        assert calls == ["frozen"]
        assert loop.delay_seconds is None

    def test_a_beat_in_time_is_enough(
        self, loop: FakeLoop, pulse: Pulse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watchdog, "process_activity", lambda _: ASLEEP)
        calls: list[str] = []
        Watchdog().start(pulse, 1, LIMIT_SECONDS, lambda: calls.append("frozen"))
        for _ in range(10):
            loop.tick(LOOKS_TO_NOTICE - 1)
            pulse.beat()
        assert not calls

    def test_another_engine_has_its_own_time(
        self, loop: FakeLoop, pulse: Pulse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watchdog, "process_activity", lambda _: ASLEEP)
        calls: list[str] = []
        dog = Watchdog()
        dog.start(pulse, 1, LIMIT_SECONDS, lambda: calls.append("first"))
        loop.tick(LOOKS_TO_NOTICE - 1)
        dog.start(pulse, 2, 2 * LIMIT_SECONDS, lambda: calls.append("second"))
        assert loop.delay_seconds == 2 * LOOK_SECONDS
        loop.tick(LOOKS_TO_NOTICE)
        assert calls == ["second"]
        dog.start(pulse, 3, LIMIT_SECONDS, lambda: calls.append("third"))
        dog.stop()
        dog.stop()
        assert loop.delay_seconds is None

    def test_a_process_that_is_gone_is_left_to_those_who_reap_it(
        self, loop: FakeLoop, pulse: Pulse
    ) -> None:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait(120)
        calls: list[str] = []
        Watchdog().start(pulse, process.pid, LIMIT_SECONDS, lambda: calls.append("frozen"))
        loop.tick(2)
        assert loop.delay_seconds is None
        assert not calls


def _until(process_id: int, condition: Callable[[Activity], bool]) -> Activity:
    """Looks until the condition holds."""
    give_up = time.monotonic() + 120
    while not condition(activity := process_activity(process_id)):
        assert time.monotonic() < give_up, activity
        time.sleep(0.01)
    return activity


class TestProcessActivity:
    @pytest.fixture
    def child(self) -> Iterator[subprocess.Popen[str]]:
        # Two threads, and a name that a careless reader of proc(5) stumbles over.
        script = (
            "import sys, threading, time\n"
            "open('/proc/self/comm', 'w').write('a) R (b')\n"
            "lines = iter(sys.stdin)\n"
            "def work():\n"
            "    next(lines)\n"
            "    print('busy', flush=True)\n"
            "    while True: pass\n"
            "threading.Thread(target=work, daemon=True).start()\n"
            "print('asleep', flush=True)\n"
            "time.sleep(600)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        yield process
        process.kill()
        process.communicate(timeout=120)

    def test_sleeping_busy_and_stopped(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "asleep\n"
        _until(child.pid, lambda activity: not activity.wants_cpu)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "busy\n"
        before = _until(child.pid, lambda activity: activity.wants_cpu)
        after = _until(child.pid, lambda a: a.cpu_seconds > before.cpu_seconds + 0.05)
        assert after.wants_cpu, "one of its threads is busy, though the first one sleeps"
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        stopped = _until(child.pid, lambda activity: not activity.wants_cpu)
        assert process_activity(child.pid) == stopped

    def test_one_that_waits_for_a_device(self, tmp_path: Path) -> None:
        """As a process does until its vfork child runs a program, which opens a pipe before."""
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        script = (
            "import os\n"
            f"opens_pipe = (os.POSIX_SPAWN_OPEN, 0, {str(pipe)!r}, os.O_RDONLY, 0)\n"
            "os.posix_spawn('/bin/true', ['true'], {}, file_actions=[opens_pipe])\n"
        )
        with subprocess.Popen([sys.executable, "-c", script]) as process:
            waiting = _until(process.pid, lambda activity: activity.waits_for_device)
            pipe.write_text("")  # the child goes on, and so does its parent
            assert process.wait(120) == 0
        assert not waiting.wants_cpu

    def test_one_that_is_gone(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait(120)
        with pytest.raises((FileNotFoundError, ProcessLookupError)):
            process_activity(process.pid)
