"""The work of `plimsoll drill`: run, report, judge."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from service.api.faults import faults_request
from service.cli.failure import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, CommandError
from service.cli.remote import client_metadata, explain
from service.cli.result_files import check_result_files
from service.client import NO_RETRY, PlimsollClient, PlimsollError
from service.drill.conductor import NoLedgerError, Order, run_drill
from service.drill.course import Course
from service.drill.document import as_document
from service.drill.findings import Findings, find
from service.drill.phase import QUICK, NothingToTakeError, Pace
from service.drill.report import report_lines
from service.drill.streams import NoReferenceError
from service.drill.timeline import Event, timeline
from service.drill.verdict import Verdict, judge
from service.faults.plan import FaultPlan

_INJECT_SECONDS = 10.0


def run_drill_command(arguments: argparse.Namespace) -> int:
    """Runs the drill that the flags describe.

    Returns:
        0 when the server passed, 1 when it did not, 130 after SIGTERM.
    """
    check_result_files(arguments.json, arguments.plot)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            course = runner.run(_run(arguments))
    except TimeoutError as error:
        raise CommandError("the time given with --timeout is over") from error
    except asyncio.CancelledError:  # SIGTERM
        return EXIT_INTERRUPTED
    except PlimsollError as error:
        raise CommandError(_explain(error, arguments)) from error
    except (NoReferenceError, NoLedgerError, NothingToTakeError) as error:
        raise CommandError(str(error)) from error
    findings, events = find(course), timeline(course)
    verdict = judge(course, findings)
    print("\n".join(report_lines(course, findings, events, verdict)))
    if arguments.json is not None:
        _write_json(arguments.json, started, course, findings, events, verdict)
    if arguments.plot is not None:
        from service.drill.plot import save_plot  # matplotlib is an extra

        save_plot(course, findings, arguments.plot)
    return EXIT_OK if verdict.passed else EXIT_FAILED


async def _run(arguments: argparse.Namespace) -> Course:
    pace = dataclasses.replace(
        QUICK if arguments.quick else Pace(), recovery_limit_seconds=arguments.recovery_limit
    )
    if arguments.rise is not None:
        pace = dataclasses.replace(pace, rise_seconds=arguments.rise)
    order = Order(
        pace=pace,
        streams=arguments.streams,
        prompts=arguments.prompts,
        max_tokens=arguments.max_tokens,
        pool_share=arguments.balloon,
    )
    _cancel_on_sigterm()
    metadata = client_metadata(arguments)
    async with (
        PlimsollClient(arguments.server, metadata=metadata, retry=NO_RETRY, resume=None) as client,
        PlimsollClient(admin_target=arguments.admin_server) as admin,
    ):

        async def inject(plan: FaultPlan) -> None:
            await admin.inject_faults(faults_request(plan), timeout_seconds=_INJECT_SECONDS)

        async with asyncio.timeout(arguments.timeout):
            return await run_drill(client, admin, inject, order, _tell)


def _cancel_on_sigterm() -> None:
    """As Ctrl-C does, so that the faults are ended."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _tell(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def _explain(error: PlimsollError, arguments: argparse.Namespace) -> str:
    if error.reason == "FAULTS_DISABLED":
        return (
            "the server takes no faults on purpose; for a drill start one with --allow-faults,"
            " and without users"
        )
    return explain(error, f"{arguments.server} or {arguments.admin_server}")


def _write_json(
    path: Path,
    started: str,
    course: Course,
    findings: Findings,
    events: list[Event],
    verdict: Verdict,
) -> None:
    document = as_document(
        started=started, course=course, findings=findings, events=events, verdict=verdict
    )
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
