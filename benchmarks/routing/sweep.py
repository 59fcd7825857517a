"""All rows of a table: traces x fleets x loads x policies.

Owns the list of cases and their distribution over processes. Every policy of a cell sees the same
arrivals. A process reads a trace and measures its work once, because cases of one trace follow each
other.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.routing.fanouts import FANOUT_KINDS, fanout_trace
from benchmarks.routing.fleet import KINDS, fleet_trace
from benchmarks.routing.long_prompts import LONG_KINDS, OVERLOAD_KINDS, long_trace
from benchmarks.routing.run import Row, SimulationCase, busy_time_s, simulate
from benchmarks.routing.trace import RoutingTrace, TraceError, read_trace
from benchmarks.routing.worker import WorkerSpec
from protocol.errors import ConfigError

GENERATED: Final = {
    "fleet": KINDS,
    "long": LONG_KINDS,
    "overload": OVERLOAD_KINDS,
    "fanout": FANOUT_KINDS,
}
"""Kinds of generated traces, with sessions per worker, by the name of their group."""

_MAKERS: Final = {
    **dict.fromkeys(KINDS, fleet_trace),
    **dict.fromkeys((*LONG_KINDS, *OVERLOAD_KINDS), long_trace),
    **dict.fromkeys(FANOUT_KINDS, fanout_trace),
}


@dataclass(frozen=True, slots=True)
class TraceSource:
    """The source of a trace: a file, or a kind of fleet with a number of sessions."""

    file: Path | None
    kind: str
    num_sessions: int
    limit: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The sweep. `sources` are files, or names of `GENERATED`."""

    sources: tuple[Path | str, ...]
    workers: tuple[int, ...]
    loads: tuple[float, ...]
    seeds: tuple[int, ...]
    policies: tuple[str, ...]
    spec: WorkerSpec
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One row."""

    source: TraceSource
    spec: WorkerSpec
    num_workers: int
    load: float
    policy: str


def tasks(plan: SweepPlan) -> list[Task]:
    """All rows, grouped by trace. A trace from a file does not depend on the seed, so it has one
    row.
    """
    found: list[Task] = []
    for source, num_workers in product(plan.sources, plan.workers):
        for trace in _sources(plan, source, num_workers):
            found += [
                Task(trace, plan.spec, num_workers, load, policy)
                for load, policy in product(plan.loads, plan.policies)
            ]
    return sorted(found, key=lambda task: (str(task.source.file), task.source.seed))


def rows(planned: Sequence[Task], num_processes: int, folder: Path | None = None) -> Iterator[Row]:
    """The rows in the order of `planned`. With a `folder` each row is written there as soon as it
    is known, and not simulated again. Raises `TraceError` if a trace is unusable.
    """
    run = partial(run_task, folder=folder)
    if num_processes == 1:
        yield from map(run, planned)
        return
    with ProcessPoolExecutor(num_processes, get_context("spawn")) as pool:
        yield from pool.map(run, planned)


def run_task(task: Task, folder: Path | None = None) -> Row:
    """The row of the task. Raises `TraceError`, and `ConfigError` if its file in `folder` is no
    row.
    """
    if folder is None:
        return simulate(case_of(task))
    file = folder / _file_name(task)
    if file.exists():
        try:
            return msgspec.json.decode(file.read_bytes(), type=Row)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{file} is no row of a table ({error}); delete it") from error
    row = simulate(case_of(task))
    # A process that is killed here leaves a whole row or none.
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(row))
    part.replace(file)
    return row


def _file_name(task: Task) -> str:
    """All that the row depends on, but for the code."""
    source, spec = task.source, task.spec
    trace = f"{source.kind}-{source.num_sessions}" if source.file is None else source.file.stem
    parts = [trace, f"x{task.num_workers}", f"load{task.load:g}", f"seed{source.seed}"]
    parts += [f"kv{spec.kv_tokens}", f"limit{source.limit}", f"states{spec.num_states}"]
    return "-".join([*parts, task.policy]) + ".json"


def case_of(task: Task) -> SimulationCase:
    """The simulation of the row. Raises `TraceError`."""
    trace, busy_s = load_trace(task.source, task.spec)
    return SimulationCase(
        policy=task.policy,
        trace=trace,
        busy_s=busy_s,
        num_workers=task.num_workers,
        load=task.load,
        seed=task.source.seed,
        spec=task.spec,
    )


@lru_cache(maxsize=4)
def load_trace(source: TraceSource, spec: WorkerSpec) -> tuple[RoutingTrace, float]:
    """The trace and its work. Raises `TraceError`."""
    trace = read_source(source, spec)
    return trace, busy_time_s(trace, spec)


def read_source(source: TraceSource, spec: WorkerSpec) -> RoutingTrace:
    """The trace, which the workers can hold. Raises `TraceError`."""
    if source.file is not None:
        trace = read_trace(source.file, source.limit, source.seed)
    else:
        trace = _MAKERS[source.kind](source.kind, source.num_sessions, source.seed)
        trace = replace(trace, turns=trace.turns[: source.limit])
    if trace.longest_tokens > spec.kv_tokens:
        raise TraceError(
            f"{trace.name} has a request of {trace.longest_tokens} tokens with its answer, more "
            f"than a worker's {spec.kv_tokens} KV tokens; give it more with --kv-tokens"
        )
    return trace


def _sources(plan: SweepPlan, source: Path | str, num_workers: int) -> list[TraceSource]:
    if isinstance(source, Path):
        return [TraceSource(source, "", 0, plan.limit, plan.seeds[0])]
    return [
        TraceSource(None, kind, sessions * num_workers, plan.limit, seed)
        for seed in plan.seeds
        for kind, sessions in GENERATED[source].items()
    ]
