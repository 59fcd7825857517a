"""`python -m benchmarks.gateway.scaling`: the gain of each further gateway process.

Owns the turns over `--processes`, and the calculation for more cores. On few cores the load
generator, the worker and the gateway share them, so rates by the clock say little. The rate of N
processes with a core each follows from the CPU time of a request and from how evenly the kernel
spreads the connections.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import repeat
from typing import Final, NamedTuple

from benchmarks.gateway.cases import STEP_MS, stream_job, upstream_job, whole_job
from benchmarks.gateway.job import LoadJob
from benchmarks.gateway.processes import (
    LinkKind,
    MeasuredFleet,
    MeasuredGateway,
    drive,
    running,
    running_floor,
)
from benchmarks.gateway.table import in_columns
from benchmarks.gateway.turns import Turns
from benchmarks.result_file import result_file

NUM_REQUESTS: Final = 2000
CONNECTIONS: Final = 64
NUM_STREAMS: Final = 256
NUM_TOKENS: Final = 128


class Cost(NamedTuple):
    """One run: CPU time of all processes per request or token, the busiest process's share of it,
    and requests or tokens per second by the clock.
    """

    cpu_us: float
    busiest: float
    rate: float

    def rate_of(self, processes: int) -> float:
        """The rate per second with a core for each of `processes` and this run's spread."""
        return 1e6 / (self.cpu_us * max(self.busiest, 1 / processes))


class ScalingCase(NamedTuple):
    """A gateway of `processes` processes, and a job of a given share of the full size."""

    name: str
    processes: int
    gateway: MeasuredGateway
    job: Callable[[float], LoadJob]


Runs = dict[tuple[str, int], list[Cost]]
"""The costs of the runs, by case and number of processes."""


def main(words: list[str] | None = None) -> int:
    """Run, print, write. Returns 0 if every answer was right, else 1."""
    arguments = _arguments(words)
    turns = Turns(arguments.runs, arguments.share)
    runs: Runs = {}
    with ExitStack() as stack:
        cases = list(_cases(stack, arguments.processes))
        for turn in turns:
            for case in cases:
                cost = _measured(case, case.job(turn.share), turns.errors)
                if turn.counts:
                    runs.setdefault((case.name, case.processes), []).append(cost)
    flat = [
        {"case": name, "processes": count, **_rounded(cost)}
        for (name, count), costs in runs.items()
        for cost in costs
    ]
    return turns.finish(table(runs, arguments.calculated), arguments.json, runs=flat)


def table(runs: Runs, calculated: tuple[int, ...]) -> str:
    """Medians. A number of processes that was not run gets the CPU time of the largest number that
    was, and counts as evenly spread.
    """
    rows = [["", "processes", "CPU us", "busiest", "per s by the clock", "per s, a core each"]]
    for name in dict.fromkeys(name for name, _ in runs):
        counts = [count for other, count in runs if other == name]
        for count in counts:
            costs = runs[name, count]
            cost = Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))
            on_cores = statistics.median(one.rate_of(count) for one in costs)
            row = [f"{cost.cpu_us:.1f}", f"{cost.busiest:.0%}", f"{cost.rate:.0f}"]
            rows.append([name, str(count), *row, f"{on_cores:.0f}"])
        cpu_us = statistics.median(cost.cpu_us for cost in runs[name, max(counts)])
        for count in calculated:
            rate = f"{count * 1e6 / cpu_us:.0f}"
            rows.append([name, f"{count} (calculated)", f"{cpu_us:.1f}", "", "", rate])
    return in_columns(rows)


def _measured(case: ScalingCase, job: LoadJob, errors: list[str]) -> Cost:
    before = case.gateway.cpu_s_by_process()
    outcome, cpu_s = drive(job, case.gateway)
    used = [
        after - began for after, began in zip(case.gateway.cpu_s_by_process(), before, strict=True)
    ]
    if outcome.num_errors:
        errors.append(f"{case.name}, {case.processes}: {outcome.num_errors}: {outcome.errors[0]}")
    num = len(job.asks) * job.num_tokens
    return Cost(cpu_s * 1e6 / num, max(used) / sum(used), num / outcome.seconds)


def _cases(stack: ExitStack, processes: tuple[int, ...]) -> Iterator[ScalingCase]:
    """All gateways, started; they end with `stack`."""
    upstream = stack.enter_context(running_floor())
    gateways = [
        (count, step_ms, stack.enter_context(running(fleet, LinkKind())))
        for count in processes
        for step_ms in (0.0, STEP_MS)
        for fleet in [MeasuredFleet(step_ms, NUM_STREAMS, upstream, processes=count)]
    ]
    at_once = [(count, gateway) for count, step_ms, gateway in gateways if not step_ms]
    paced = [(count, gateway) for count, step_ms, gateway in gateways if step_ms]
    for count, gateway in at_once:
        yield ScalingCase("own worker, requests", count, gateway, _whole(gateway.port))
    for count, gateway in paced:
        yield ScalingCase("own worker, tokens", count, gateway, _streams(gateway.port))
    for count, gateway in at_once:
        yield ScalingCase("relays, requests", count, gateway, _relays(gateway.port))


def _whole(port: int) -> Callable[[float], LoadJob]:
    return lambda share: whole_job(port, repeat(0), _of(NUM_REQUESTS, share), CONNECTIONS)


def _relays(port: int) -> Callable[[float], LoadJob]:
    return lambda share: upstream_job(port, _of(NUM_REQUESTS, share), CONNECTIONS)


def _streams(port: int) -> Callable[[float], LoadJob]:
    def job(share: float) -> LoadJob:
        count = max(8, round(NUM_STREAMS * share))
        return stream_job(port, count, count, NUM_TOKENS)

    return job


def _of(count: int, share: float) -> int:
    return max(CONNECTIONS, round(count * share))


def _rounded(cost: Cost) -> dict[str, float]:
    return {name: round(value, 3) for name, value in cost._asdict().items()}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.scaling")
    parser.add_argument("--processes", type=_numbers, default=(1, 2), metavar="N,N")
    parser.add_argument("--calculated", type=_numbers, default=(4, 8), metavar="N,N")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="turns of each")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="of what is asked")
    parser.add_argument("--json", type=result_file, metavar="FILE")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
