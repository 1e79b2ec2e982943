"""The work of `plimsoll replay`: read, simulate with live progress, report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kvcache import CacheManager
from kvcache.errors import InvalidArgumentError
from kvcache.replay import (
    ReplayReport,
    ReplaySettings,
    ReplaySimulator,
    TraceError,
    TraceRequest,
    insert_in_order,
    read_trace,
)
from service.cli.failure import CommandError
from service.cli.result_files import check_result_files
from service.replay.document import cache_document, report_document
from service.replay.table import cache_table, report_table

_STEPS_PER_REFRESH = 256
_EXIT_USAGE = 2


def run_replay(arguments: argparse.Namespace) -> int:
    """Plays the trace that the flags describe; 0."""
    check_result_files(arguments.json, arguments.plot)
    if arguments.in_order and arguments.plot is not None:
        raise CommandError("--plot shows what happens over time: not with --in-order", _EXIT_USAGE)
    try:
        settings = _settings(arguments)
    except InvalidArgumentError as error:
        raise CommandError(str(error), _EXIT_USAGE) from error
    try:
        requests = read_trace(arguments.trace)[: arguments.requests]
    except TraceError as error:
        raise CommandError(str(error)) from error
    manager = CacheManager(settings.num_blocks + 1, settings.block_tokens, policy=settings.policy)
    if arguments.in_order:
        cache = insert_in_order(requests, manager, settings.trace_block_tokens)
        Console().print(cache_table(cache))
        shown = ("num_blocks", "block_tokens", "policy", "trace_block_tokens")
        used = {name: value for name, value in asdict(settings).items() if name in shown}
        _write(arguments.json, cache_document(cache, str(arguments.trace), used))
        return 0
    report = _simulate(requests, settings, manager)
    Console().print(report_table(report))
    _write(arguments.json, report_document(report, str(arguments.trace), asdict(settings)))
    if arguments.plot is not None:
        from service.replay.plot import save_plot  # matplotlib is an extra

        save_plot(report, settings.load_line, arguments.plot)
    return 0


def _settings(arguments: argparse.Namespace) -> ReplaySettings:
    return ReplaySettings(
        num_blocks=arguments.blocks,
        block_tokens=arguments.block_tokens,
        policy=arguments.policy,
        trace_block_tokens=arguments.trace_block_tokens,
        max_running_sequences=arguments.max_running,
        max_step_tokens=arguments.step_tokens,
        prefill_tokens_per_second=arguments.prefill_rate,
        decode_step_seconds=arguments.decode_step_ms / 1e3,
        load_line=arguments.load_line,
        speed=arguments.speed,
    )


def _simulate(
    requests: Sequence[TraceRequest], settings: ReplaySettings, manager: CacheManager
) -> ReplayReport:
    """Runs the simulation, with a live line on a terminal."""
    simulator = ReplaySimulator(requests, settings, manager)
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.completed} of {task.total} requests"),
        BarColumn(),
        TextColumn("{task.fields[simulated]:.0f} s simulated"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=len(requests), simulated=0.0)
    with bar:
        steps = 0
        while simulator.has_work:
            simulator.step()
            steps += 1
            if steps % _STEPS_PER_REFRESH == 0:
                bar.update(
                    task, completed=simulator.ended_requests, simulated=simulator.now_seconds
                )
    return simulator.report()


def _write(path: Path | None, document: Mapping[str, object]) -> None:
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
