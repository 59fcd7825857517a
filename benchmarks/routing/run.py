"""One row of the table: a policy on a trace, for one fleet and load.

Owns the definition of load and of every figure of a row. Load is the time that one worker with an
endless cache needs for the whole trace without idling, divided by workers times span; arrivals are
scaled in time to reach it. So no fleet can exceed 1.0, and a fleet that caches badly is overloaded
earlier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.routing.cache import BlockCache, Cache, EndlessCache
from benchmarks.routing.policies import POLICIES
from benchmarks.routing.policies.base import RoutingPolicy, Setting
from benchmarks.routing.simulation import Simulation, TurnOutcome
from benchmarks.routing.trace import RoutingTrace
from benchmarks.routing.worker import SimWorker, WorkerSpec
from protocol.ids import BlockDigest
from workers.scheduler import PrefixStates

Row = dict[str, Any]
_P = TypeVar("_P", bound=RoutingPolicy)
ENDLESS = frozenset({"bound_infinite"})


@dataclass(frozen=True, slots=True)
class SimulationCase:
    """One simulation. `busy_s` is the trace's work, from `busy_time_s`."""

    policy: str
    trace: RoutingTrace
    busy_s: float
    num_workers: int
    load: float
    seed: int
    spec: WorkerSpec


def busy_time_s(trace: RoutingTrace, spec: WorkerSpec) -> float:
    """The busy time of one worker with an endless cache that computes all turns in order,
    at once.
    """
    size = trace.block_size
    worker = SimWorker(0, spec, EndlessCache(spec.kv_tokens // size, set()), size)
    for turn in trace.turns:
        worker.submit(turn, 0.0)
    while worker.next_at is not None:
        worker.step(worker.next_at)
    return worker.busy_s


def simulate(case: SimulationCase) -> Row:
    """Run it; the row of the table."""
    trace, workers = case.trace, make_workers(case)
    _, outcomes = play(case, POLICIES[case.policy], workers)
    return {
        "policy": case.policy,
        "trace": trace.name,
        "workers": case.num_workers,
        "load": case.load,
        "seed": case.seed,
        **figures(trace, outcomes, workers),
    }


def play(
    case: SimulationCase, make: Callable[[Setting], _P], workers: Sequence[SimWorker] | None = None
) -> tuple[_P, list[TurnOutcome]]:
    """Play the trace. Returns the policy that `make` made, and the turns' outcomes."""
    trace = case.trace
    workers = make_workers(case) if workers is None else workers
    policy = make(Setting(case.num_workers, case.spec, trace.block_size, case.seed, workers))
    wanted_s = case.busy_s / (case.num_workers * case.load)
    # A single session has no span: its turns set the pace.
    scale = wanted_s / trace.span_s if trace.span_s > 0 else 1.0
    simulation = Simulation(trace, policy, workers, scale)
    simulation.run()
    return policy, simulation.outcomes


def make_workers(case: SimulationCase) -> list[SimWorker]:
    """The workers: with caches of their own, or one endless one for the bound that needs it."""
    size = case.trace.block_size
    known: set[BlockDigest] = set()
    num_blocks = case.spec.kv_tokens // size

    def cache() -> Cache:
        if case.policy in ENDLESS:
            return EndlessCache(num_blocks, known)
        return BlockCache(num_blocks, PrefixStates.of(case.spec.num_states, size))

    return [SimWorker(number, case.spec, cache(), size) for number in range(case.num_workers)]


def figures(trace: RoutingTrace, outcomes: list[TurnOutcome], workers: list[SimWorker]) -> Row:
    """The figures of a row. `imbalance` is the longest busy time over the mean."""
    ttfts_ms = sorted(1e3 * (one.first_token_at - one.arrived_at) for one in outcomes)
    span_s = max(o.finished_at for o in outcomes) - min(o.arrived_at for o in outcomes)
    num_prompt = sum(turn.prompt_tokens for turn in trace.turns)
    mean_busy_s = sum(worker.busy_s for worker in workers) / len(workers)
    return {
        "ttft_mean_ms": sum(ttfts_ms) / len(ttfts_ms),
        "ttft_p50_ms": percentile(ttfts_ms, 0.5),
        "ttft_p90_ms": percentile(ttfts_ms, 0.9),
        "ttft_p99_ms": percentile(ttfts_ms, 0.99),
        "ttft_max_ms": ttfts_ms[-1],
        "hit_rate": sum(one.cached_tokens for one in outcomes) / num_prompt,
        "throughput_tok_s": sum(turn.output_tokens for turn in trace.turns) / span_s,
        "imbalance": max(worker.busy_s for worker in workers) / mean_busy_s,
    }


def percentile(ordered: list[float], share: float) -> float:
    """The value that `share` of `ordered` do not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
