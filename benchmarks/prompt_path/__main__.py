"""`python -m benchmarks.prompt_path`: CPU per request, from its bytes to the worker's frame.

For a prompt of 0.9 KB that was seen before, one that was not, and the second turn of an agent with
64 KiB: the whole way as turns take it, in CPU time of the process (threads count), and each stage
by itself. Lower quartiles, in microseconds: whoever shares the machine takes its caches. Fails over
the bar.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.machine import describe_machine
from benchmarks.prompt_path.cases import Case, all_cases
from benchmarks.prompt_path.gateway import PromptPath, prompt_path

STAGES: Final = ("parse", "render", "tokenise", "hash", "route", "submit")
MAX_US: Final = {"64 KiB, second turn": 2_000.0}
"""The bar on the whole way; those of small requests are on all of a request, with its answer."""


def main(argv: list[str] | None = None) -> None:
    """Measure, print a table, and fail if a bar is missed."""
    arguments = _parser().parse_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as the gateway's process has it
    machine = describe_machine(("tokenizers", "msgspec", "jinja2"))
    print(f"{machine['cpu']}; {machine['system']}\n")
    rows = [trio.run(_measure, case) for case in all_cases(arguments.bodies)]
    print(f"| request | bytes to Submit, us | {' | '.join(STAGES)} | memory, KB |")
    print("|---|" + "---|" * (len(STAGES) + 2))
    for row in rows:
        stages = " | ".join(f"{row['stages_us'][stage]:.1f}" for stage in STAGES)
        print(f"| {row['case']} | {row['all_us']:.0f} | {stages} | {row['memory_kb']:.0f} |")
    if arguments.json:
        report = {"command": "python -m benchmarks.prompt_path", "machine": machine, "rows": rows}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if any(row["all_us"] > MAX_US.get(row["case"], row["all_us"]) for row in rows):
        sys.exit("a bar is missed")


async def _measure(case: Case) -> dict[str, Any]:
    """Two fresh gateways, so that each body is met once on either way."""
    async with _warmed(case) as path:
        spans = []
        for body in case.bodies:
            began = time.process_time()
            await path.submit(body)
            spans.append(time.process_time() - began)
        num_bytes = path.text.prompts.num_bytes + path.services.digests.num_bytes
    async with _warmed(case) as path:
        stages = [await path.stages(body, time.thread_time) for body in case.bodies]
    return {
        "case": case.name,
        "body_bytes": len(case.bodies[0]),
        "bodies": len(case.bodies),
        "all_us": _lower_quartile_us(spans),
        "stages_us": {name: _lower_quartile_us([s[name] for s in stages]) for name in STAGES},
        "memory_kb": num_bytes / 1e3,
    }


def _lower_quartile_us(spans_s: list[float]) -> float:
    return 1e6 * statistics.quantiles(spans_s, n=4)[0]


@asynccontextmanager
async def _warmed(case: Case) -> AsyncIterator[PromptPath]:
    async with prompt_path() as path:
        for body in case.before:
            await path.submit(body)
        gc.collect()
        yield path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prompt_path", description=__doc__)
    parser.add_argument("--bodies", type=int, default=300, help="requests per case")
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    main()
