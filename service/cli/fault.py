"""Make things go wrong on purpose in a running server, to see how it copes.

FILE is a plan, as TOML, or as JSON where its name ends in .json; it replaces what was ordered
before. Only a server that was started with --allow-faults takes it. Asks the admin port."""

from __future__ import annotations

import argparse
from pathlib import Path

from service.api.faults import faults_request
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.cli.failure import EXIT_OK, EXIT_USAGE, CommandError
from service.cli.remote import add_admin_argument, translate_errors
from service.client import PlimsollClient
from service.faults.plan import FaultPlan
from service.faults.plan_file import FaultPlanError, read_plan

EXAMPLES = """\
examples:
  plimsoll fault plan.toml
  plimsoll fault --clear

a plan:
  [[faults]]
  kind = "balloon"          # another process takes memory of the device
  share = 0.6
  rise_seconds = 10
  hold_seconds = 20

  [[faults]]
  kind = "exit_engine"
  after_seconds = 5
  nth_step = 100            # counted from when the fault begins

kinds, their fields, and what holds for a field that is left out:
  fail_allocation  no memory: owner ("activations", or "kv_pool"; "activations"), nth (1),
                   count (1), chance (1), seed (0; of the chance and of the place in a step)
  balloon          another process takes memory: share (must be given), rise_seconds (0),
                   hold_seconds (must be given), fall_seconds (0)
  slow_device      steps take longer: extra_seconds, hold_seconds (both must be given)
  lose_transfer    loads from a cache tier never end: count (1)
  lose_device      an error that ends the engine's use of the device: nth_step (1), count (1)
  exit_engine      the engine ends in a step: nth_step (1), count (1), signal (9; 0: it exits),
                   status (1; of that exit)
  hang_engine      the engine stands still: nth_step (1), count (1)
Each may have after_seconds (0), before which it does not begin. count is how often it happens,
over all engines that follow one another.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s FILE|--clear [options]"
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", metavar="FILE", nargs="?", type=Path, help="plan to carry out")
    what.add_argument("--clear", action="store_true", help="end all that was ordered")
    add_admin_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    plan = FaultPlan([]) if arguments.clear else _read(arguments.file)

    async def work() -> pb.InjectFaultsResponse:
        async with PlimsollClient(admin_target=arguments.admin_server) as client:
            return await client.inject_faults(faults_request(plan))

    answer = translate_errors(arguments.admin_server, work())
    print(f"faults ordered: {len(plan.faults)}, replaced: {answer.replaced_faults}")
    return EXIT_OK


def _read(path: Path) -> FaultPlan:
    try:
        return read_plan(path)
    except FaultPlanError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
