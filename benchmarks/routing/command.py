"""`herma bench routing`: from the command line to the table.

Owns the arguments and the order of the report. Must not know how anything is simulated.
"""

import argparse
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from benchmarks.progress import ProgressBar
from benchmarks.routing.agents_table import bar_lines, run_cell
from benchmarks.routing.agents_table import cells as cells_of_agents
from benchmarks.routing.agents_table import table as table_of_agents
from benchmarks.routing.cost_model import QWEN3_8B_H200
from benchmarks.routing.experiments import collapse_lines, fairness, fairness_lines
from benchmarks.routing.moves import move_lines, moves
from benchmarks.routing.plot import plot_rows
from benchmarks.routing.policies import BASELINES, OURS, POLICIES
from benchmarks.routing.run import Row
from benchmarks.routing.sweep import GENERATED, SweepPlan, read_source, rows, tasks
from benchmarks.routing.table import cells, lines, merged
from benchmarks.routing.validation.command import run_validation
from benchmarks.routing.waits import wait_lines, waits
from benchmarks.routing.worker import WorkerSpec
from protocol.errors import ConfigError

KV_TOKENS: Final = 400_000
"""Per worker. A card of 141 GB with Qwen3-8B in bf16 holds about 730k tokens (147 KB each); about
half of that fills the caches within traces that are quick to simulate.
"""

MAX_SEQS: Final = 64
TOKEN_BUDGET: Final = 8192

_T = TypeVar("_T")


def run_command(arguments: argparse.Namespace) -> int:
    """Simulate and report. An experiment returns 1 under its bars; a table is not judged. Raises
    `HermaError`.
    """
    if arguments.experiment is not None:
        return _experiment(arguments.experiment)
    if arguments.validate:
        return run_validation()
    if arguments.agents:
        return _agents(arguments)
    plan = plan_of(arguments)
    planned = tasks(plan)
    if arguments.waits or arguments.moves:
        text = wait_lines(waits(planned)) if arguments.waits else move_lines(moves(planned))
        print("\n".join(text), flush=True)
        return 0
    for source in {task.source for task in planned if task.source.file is not None}:
        read_source(source, plan.spec)  # An invalid file is reported before anything runs.
    earlier = [row for path in arguments.beside or () for row in _read_rows(path)]
    progress = ProgressBar(len(planned))
    progress.begin("")
    done = []
    if arguments.rows is not None:
        arguments.rows.mkdir(parents=True, exist_ok=True)
    found = rows(planned, arguments.processes, arguments.rows)
    for task, row in zip(planned, found, strict=True):
        done.append(row)
        progress.end()
        progress.begin(f"{row['trace']} x{task.num_workers} at {task.load:g} {task.policy}")
    done = merged(earlier, done)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1) + b"\n")
    progress.say("\n".join(lines(done)))
    if arguments.plot is not None:
        plot_rows(done, arguments.plot)
    return 0


def _read_rows(path: Path) -> list[Row]:
    """The rows of an earlier report. Raises `ConfigError`."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[Row])
        cells(rows)
    except (OSError, msgspec.DecodeError, KeyError) as error:
        raise ConfigError(f"--beside {path}: not the rows of a `--json` report: {error}") from error
    return rows


def _agents(arguments: argparse.Namespace) -> int:
    """The table of agents that do not all fit; `--json` writes its rows. Raises `ConfigError`."""
    ratios = _numbers("--ratios", arguments.ratios, float, least=0.1)
    seeds = _numbers("--seeds", arguments.seeds, int, least=0)
    planned = [*cells_of_agents(seeds, ratios, arguments.readers)]
    progress = ProgressBar(len(planned))
    done = []
    for cell in planned:
        progress.begin(f"{cell.ratio:g}x {cell.admission}, {cell.order}")
        done.append(run_cell(cell))
        progress.end()
        progress.note(table_of_agents(done[-1:])[-1])
    progress.say("\n".join([*table_of_agents(done), "", *bar_lines(done)]))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1) + b"\n")
    return 0


def _experiment(name: str) -> int:
    if name == "fairness":
        text, holds = fairness_lines(*fairness())
    else:
        text, holds = collapse_lines([*BASELINES, OURS])
    print("\n".join(text), flush=True)
    return 0 if holds else 1


def plan_of(arguments: argparse.Namespace) -> SweepPlan:
    """The plan of the arguments. Raises `ConfigError` that names a wrong one."""
    names = tuple(POLICIES) if arguments.policies == "all" else _names(arguments.policies)
    workers = _numbers("--workers", arguments.workers, int, least=2)
    kv_tokens = KV_TOKENS if arguments.kv_tokens is None else arguments.kv_tokens
    if (
        kv_tokens < 1
        or arguments.processes < 1
        or (arguments.limit is not None and arguments.limit < 1)
        or (arguments.states is not None and arguments.states < 1)
    ):
        raise ConfigError("--kv-tokens, --states, --limit and --processes are at least 1")
    return SweepPlan(
        sources=tuple(
            name if name in GENERATED else Path(name) for name in arguments.trace or ["fleet"]
        ),
        workers=workers,
        loads=_numbers("--load", arguments.load, float, least=0.01),
        seeds=_numbers("--seeds", arguments.seeds, int, least=0),
        policies=names,
        spec=WorkerSpec(QWEN3_8B_H200, kv_tokens, MAX_SEQS, TOKEN_BUDGET, arguments.states),
        limit=arguments.limit,
    )


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise ConfigError(f"no policy `{unknown[0]}`; there are {', '.join(POLICIES)}")
    return names


def _numbers(option: str, text: str, kind: Callable[[str], _T], *, least: float) -> tuple[_T, ...]:
    try:
        numbers = tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{option} {text}: numbers with commas between them are wanted"
        ) from error
    if not all(least <= float(str(number)) < inf for number in numbers):
        raise ConfigError(f"{option} {text}: each is at least {least:g}")
    return numbers
