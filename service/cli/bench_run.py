"""The work of `plimsoll bench`: plan, run with live progress, report."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.bench.arrivals import Arrivals, ClosedLoop, OpenLoop
from service.bench.document import as_document
from service.bench.load import LoadGenerator
from service.bench.plan import WorkloadSpec, plan_requests
from service.bench.record import Outcome
from service.bench.stats import ServiceLevel
from service.bench.summary import Summary, summarize
from service.bench.synthetic import SharedPrefix, TokenSource
from service.bench.table import as_table
from service.bench.workload import PlannedRequest, WorkloadError
from service.cli.failure import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
)
from service.cli.remote import client_metadata, explain
from service.cli.result_files import check_result_files
from service.client import NO_RETRY, GenerationOptions, PlimsollClient, PlimsollError

_DEFAULT_REQUESTS, _DEFAULT_CONCURRENCY = 64, 4
_WARMUP_PROMPT_TOKENS, _WARMUP_OUTPUT_TOKENS = 32, 8
_PROGRESS_SECONDS = 0.2


@dataclass(slots=True)
class _Run:
    """A finished run."""

    started: datetime
    model: pb.GetModelResponse
    generator: LoadGenerator
    ignores_eos: bool
    interrupted: bool


def run_bench(arguments: argparse.Namespace) -> int:
    """Runs the benchmark that the flags describe.

    Returns:
        0, 1 when no request ended well, 130 after Ctrl-C.
    """
    check_result_files(arguments.json, arguments.plot)
    if arguments.json_requests and arguments.json is None:
        raise CommandError("--json-requests needs --json", EXIT_USAGE)
    console = Console(stderr=True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            run = runner.run(_run(arguments, console))
    except PlimsollError as error:
        raise CommandError(explain(error, arguments.server)) from error
    except WorkloadError as error:
        raise CommandError(str(error)) from error
    summary = _report(arguments, run)
    if run.interrupted:
        console.print("interrupted: these are the figures so far")
        return EXIT_INTERRUPTED
    return EXIT_OK if summary.outcomes[Outcome.OK] else EXIT_FAILED


async def _run(arguments: argparse.Namespace, console: Console) -> _Run:
    metadata = client_metadata(arguments)
    async with PlimsollClient(
        arguments.server, metadata=metadata, retry=NO_RETRY, resume=None
    ) as client:
        model = await client.model(timeout_seconds=arguments.timeout)
        spec = _workload(arguments)
        requests = plan_requests(
            spec, vocab_size=model.vocab_size, max_context_tokens=model.max_context_tokens
        )
        source = TokenSource(model.vocab_size, arguments.seed)
        ignores_eos = spec.wants_exact_lengths and await _may_ignore_eos(client, source)
        if spec.wants_exact_lengths and not ignores_eos:
            console.print(
                "note: answers may end early; serve with --allow-ignore-eos for exact lengths"
            )
        salt = uuid.uuid4().hex if arguments.cache_salt is None else arguments.cache_salt
        options = GenerationOptions(
            temperature=arguments.temperature, ignore_eos=ignores_eos, cache_salt=salt
        )
        await _warm_up(client, options, source, arguments.warmup)
        generator = LoadGenerator(client, options)
        started = datetime.now(UTC)
        interrupted = await _measure(arguments, generator, requests, console)
        return _Run(started, model, generator, ignores_eos, interrupted)


def _workload(arguments: argparse.Namespace) -> WorkloadSpec:
    prefix = None
    if arguments.shared_prefix_tokens:
        prefix = SharedPrefix(arguments.shared_prefix_tokens, arguments.shared_prefix_share)
    return WorkloadSpec(
        prompts=arguments.prompts,
        chat=arguments.chat,
        trace=arguments.trace,
        length_scale=arguments.length_scale,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        prefix=prefix,
        seed=arguments.seed,
    )


async def _may_ignore_eos(client: PlimsollClient, source: TokenSource) -> bool:
    options = GenerationOptions(max_tokens=1, ignore_eos=True)
    try:
        await client.generate(source.tokens("probe", 1), options)
    except PlimsollError as error:
        if error.code is grpc.StatusCode.UNIMPLEMENTED:
            return False
        raise
    return True


async def _warm_up(
    client: PlimsollClient, options: GenerationOptions, source: TokenSource, count: int
) -> None:
    options = options.replace(max_tokens=_WARMUP_OUTPUT_TOKENS)
    for number in range(count):
        prompt = source.tokens(f"warm-up {number}", _WARMUP_PROMPT_TOKENS)
        await client.generate(prompt, options)


async def _measure(
    arguments: argparse.Namespace,
    generator: LoadGenerator,
    requests: Iterator[PlannedRequest],
    console: Console,
) -> bool:
    """Runs the load; True when it was interrupted."""
    limit: int | None = arguments.requests
    if limit is None and arguments.duration is None:
        limit = _DEFAULT_REQUESTS
    arrivals: Arrivals
    if arguments.rate is None:
        arrivals = ClosedLoop(arguments.concurrency or _DEFAULT_CONCURRENCY)
    else:
        arrivals = OpenLoop(arguments.rate, arguments.seed)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        async with _progress(generator, limit, console):
            await generator.run(
                itertools.islice(requests, limit),
                arrivals,
                sending_seconds=arguments.duration,
                stop=stop,
            )
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return stop.is_set()


@contextlib.asynccontextmanager
async def _progress(
    generator: LoadGenerator, limit: int | None, console: Console
) -> AsyncIterator[None]:
    """A live line while the block runs, on a terminal only."""
    bar = Progress(
        TextColumn("{task.completed:.0f} done, {task.fields[running]} running"),
        BarColumn(),
        TextColumn("{task.fields[tokens_per_second]:.1f} tokens/s"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=limit, running=0, tokens_per_second=0.0)

    async def refresh() -> None:
        while True:
            elapsed = max(generator.elapsed_seconds, 1e-9)
            bar.update(
                task,
                completed=len(generator.records) - generator.running,
                running=generator.running,
                tokens_per_second=generator.output_tokens / elapsed,
            )
            await asyncio.sleep(_PROGRESS_SECONDS)

    with bar:
        refreshing = asyncio.create_task(refresh())
        try:
            yield
        finally:
            refreshing.cancel()


def _report(arguments: argparse.Namespace, run: _Run) -> Summary:
    service_level = None
    if arguments.slo_ttft_ms is not None or arguments.slo_itl_ms is not None:
        service_level = ServiceLevel(
            _seconds(arguments.slo_ttft_ms), _seconds(arguments.slo_itl_ms)
        )
    generator = run.generator
    summary = summarize(generator.records, generator.duration_seconds, service_level)
    Console().print(as_table(summary))
    if arguments.json is not None:
        document = as_document(
            started=run.started.isoformat(timespec="seconds"),
            server=_server(run.model),
            load=_load(arguments, run),
            summary=summary,
            records=generator.records,
            with_requests=arguments.json_requests,
        )
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        from service.bench.plot import save_plot  # matplotlib is an extra

        save_plot(generator.records, generator.duration_seconds, arguments.plot)
    return summary


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _server(model: pb.GetModelResponse) -> dict[str, object]:
    return {
        "model": model.model,
        "version": model.version,
        "device": model.device,
        "weights_dtype": model.weights_dtype,
        "kv_cache_dtype": model.kv_cache_dtype,
        "attention_backend": model.attention_backend,
        "max_context_tokens": model.max_context_tokens,
        "block_tokens": model.block_size_tokens,
    }


def _load(arguments: argparse.Namespace, run: _Run) -> dict[str, object]:
    """The flags that shaped the load, and what came of them."""
    left_out = ("json", "json_requests", "plot", "server", "tenant", "timeout")
    flags = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(arguments).items()
        if name not in left_out
    }
    if arguments.rate is None:
        flags["concurrency"] = arguments.concurrency or _DEFAULT_CONCURRENCY
    return flags | {"ignores_eos": run.ignores_eos, "interrupted": run.interrupted}
