"""`python -m tests.chaos`: every fault against real processes, with the bars. `make chaos`.

Exit status 1 if a client saw an error or a wrong byte, or a bar is missed. `--fault NAME` runs one
(several times for several).
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trio

from benchmarks.machine import describe_machine
from benchmarks.result_file import result_file
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.fleet import open_fleet
from tests.chaos.others import OTHERS, line_of_other
from tests.chaos.report import HEAD, line_of, row_of
from tests.chaos.scenario import Scenario
from tests.chaos.traffic import CHAT, MESSAGES, RESPONSES, Answers, Prompt, learn, make_prompts

NAMES = (*FAULTS, *OTHERS)
NUM_PROMPTS = 24
INJECTIONS = 5
SEED = 2026


def main() -> int:
    """Run, print, write; see the head of this file."""
    arguments = _parser().parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = Path(tempfile.mkdtemp(prefix="herma-chaos-"))
    started_at = time.monotonic()
    try:
        rows = trio.run(_run_all, folder, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report = {
        "machine": describe_machine(),
        "seed": arguments.seed,
        "load_at_start": round(os.getloadavg()[2], 1),
        "minutes": round((time.monotonic() - started_at) / 60, 1),
        "rows": rows,
    }
    print("; ".join(describe_machine().values()), f"; {report['minutes']} minutes", sep="")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(any(row["missed"] or row["problems"] for row in rows))


async def _run_all(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    prompts = make_prompts(NUM_PROMPTS, arguments.seed, paths=(CHAT, RESPONSES, MESSAGES))
    expected = await _undisturbed(folder / "reference", prompts)
    names = arguments.fault or [*FAULTS, *OTHERS]
    rows = []
    print(HEAD)
    for num_workers in arguments.workers:
        for name in filter(FAULTS.__contains__, names):
            row = await _run_one(folder, FAULTS[name], num_workers, prompts, expected, arguments)
            print(line_of(row), flush=True)
            rows.append(row)
    for name in filter(OTHERS.__contains__, names):
        run, injections = OTHERS[name], arguments.injections
        figures = await run(folder / name, prompts, expected, injections, arguments.seed)
        rows.append({"fault": name, **figures})
        print(line_of_other(rows[-1]), flush=True)
    return rows


async def _undisturbed(folder: Path, prompts: list[Prompt]) -> Answers:
    """What every answer must be: as one engine gives it to one client at a time, and as two
    engines give it to sixteen, or there is nothing to hold a disturbed answer against.
    """
    async with open_fleet(folder, 2) as fleet:
        url = fleet.herma.base_url
        fleet.order("w1", pace_s=0.0)
        fleet.order("w2", pace_s=0.0)
        alone = await learn(url, prompts, concurrency=1)
        crowded = await learn(url, prompts, concurrency=16)
    assert alone == crowded, "undisturbed answers depend on their company"
    return alone


async def _run_one(
    folder: Path,
    fault: Fault,
    num_workers: int,
    prompts: list[Prompt],
    expected: Answers,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    place = folder / f"{fault.name}-{num_workers}"
    async with open_fleet(place, num_workers) as fleet:
        scenario = Scenario(fleet, fault, prompts, expected, arguments.seed)
        row = row_of(await scenario.run(arguments.injections))
        if arguments.log is not None and (row["problems"] or row["missed"]):
            (arguments.log / f"{place.name}.log").write_text("".join(fleet.herma.output))
    return row


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--fault", action="append", choices=NAMES, metavar="NAME")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 1], choices=(1, 2))
    parser.add_argument("--injections", type=int, default=INJECTIONS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", type=result_file, metavar="FILE")
    parser.add_argument("--log", type=Path, metavar="FOLDER", help="logs of what went wrong")
    return parser


if __name__ == "__main__":
    sys.exit(main())
