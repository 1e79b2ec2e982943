"""A drill as text for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.drill.course import Course
from service.drill.findings import Findings, Pauses
from service.drill.timeline import Event, EventKind
from service.drill.verdict import Verdict


def report_lines(
    course: Course, findings: Findings, events: Sequence[Event], verdict: Verdict
) -> list[str]:
    """The timeline, the figures and the verdict."""
    return [
        *_server(course),
        "",
        "timeline",
        *(_event(event) for event in events),
        "",
        *_figures(findings),
        "",
        f"{'time between tokens, ms':<26} {'median':>8} {'p99':>8} {'longest':>8} {'tokens':>8}",
        *(_pauses(pauses) for pauses in findings.pauses),
        "",
        "verdict",
        *_criteria(verdict),
        "",
        f"the drill {'passed' if verdict.passed else 'FAILED'}",
    ]


def _server(course: Course) -> Iterator[str]:
    server = course.server
    yield (
        f"served    {server.model} on {server.device}, weights in {server.weights_dtype}, "
        f"KV cache in {server.kv_cache_dtype}"
    )
    if not server.is_exact:
        yield (
            "          below float32 a stream that is computed again may differ by rounding;"
            " serve with --dtype float32 to hold it to every token"
        )
    yield f"duration  {course.duration_seconds:.1f} s"


def _event(event: Event) -> str:
    line = f"{event.seconds:7.1f} s  {event.kind:<6}  {event.text}"
    return f"\n{line}" if event.kind is EventKind.PHASE else line


def _figures(findings: Findings) -> Iterator[str]:
    streams = findings.streams
    yield (
        f"streams   {streams.requests} requests, {streams.live_at_once} at once, "
        f"{streams.tokens} tokens; {streams.preempted} preempted, "
        f"{streams.recomputed_tokens} tokens computed again, {streams.refused} refusals"
    )
    for reason, count in streams.reasons.items():
        yield f"          {count} {reason}"
    levels = ", ".join(
        f"{level.name} {seconds:.1f} s"
        for level, seconds in findings.level_seconds.items()
        if seconds > 0
    )
    yield f"levels    {levels}"
    yield f"balloon   {findings.balloon_bytes / 1e6:.0f} MB taken by others"


def _pauses(pauses: Pauses) -> str:
    name = f"  {pauses.stage.value:<24}"
    if pauses.tokens == 0:
        return f"{name} {'-':>8} {'-':>8} {'-':>8} {0:>8}"
    shown = (pauses.median_seconds, pauses.p99_seconds, pauses.longest_seconds)
    return name + "".join(f" {value * 1e3:>8.0f}" for value in shown) + f" {pauses.tokens:>8}"


def _criteria(verdict: Verdict) -> Iterator[str]:
    width = max(len(criterion.wanted) for criterion in verdict.criteria)
    for criterion in verdict.criteria:
        mark = "pass" if criterion.passed else "FAIL"
        yield f"  {mark}  {criterion.wanted:<{width}}  {criterion.found}"
