"""Two experiments on questions that a table of means does not answer.

Owns the experiments and their bars. Fairness: one key with 40 concurrent requests beside three keys
with two each, on a worker with eight places; do the small keys wait for the large one? Collapse: 16
new sessions with one long prefix on two workers at once; does one worker get them all?
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from benchmarks.routing.cache import BlockCache
from benchmarks.routing.cost_model import QWEN3_8B_H200
from benchmarks.routing.policies import OURS, POLICIES, Maker
from benchmarks.routing.policies.base import Setting
from benchmarks.routing.policies.fifo import Fifo
from benchmarks.routing.run import percentile
from benchmarks.routing.simulation import Simulation, TurnOutcome
from benchmarks.routing.trace import DigestChains, RoutingTrace, TracedTurn
from benchmarks.routing.worker import SimWorker, WorkerSpec

BLOCK: Final = 512
KV_TOKENS: Final = 400_000
BIG, SMALL = "big", ("small-1", "small-2", "small-3")
PLACES: Final = 8
NUM_BIG, NUM_EACH_SMALL = 40, 2
ROUNDS: Final = 40
PREFIX_TOKENS: Final = 12_288
NUM_SESSIONS: Final = 16


@dataclass(frozen=True, slots=True)
class Fairness:
    """Results of one policy: the small keys' waits for a place, and the throughput."""

    policy: str
    small_p90_wait_s: float
    mean_service_s: float
    throughput_tok_s: float


def fairness() -> tuple[Fairness, Fairness]:
    """FIFO, then ours."""
    return _fairness("fifo", Fifo), _fairness(OURS, POLICIES[OURS])


def fairness_lines(fifo: Fairness, ours: Fairness) -> tuple[list[str], bool]:
    """The report, and whether every bar holds."""
    bars = (
        ("at most half a mean service time", ours.small_p90_wait_s <= ours.mean_service_s / 2),
        ("at most a fifth of FIFO's", ours.small_p90_wait_s <= fifo.small_p90_wait_s / 5),
        ("throughput within 3 %", abs(ours.throughput_tok_s / fifo.throughput_tok_s - 1) <= 0.03),
    )
    text = [
        f"one worker with {PLACES} places; always at work: {NUM_BIG} requests of one key,",
        f"{NUM_EACH_SMALL} of each of {len(SMALL)} others",
        *(
            f"  {one.policy:6} small keys' p90 wait {one.small_p90_wait_s:6.2f} s, "
            f"mean service {one.mean_service_s:.2f} s, {one.throughput_tok_s:.0f} output tok/s"
            for one in (fifo, ours)
        ),
        *(f"  {bar}: {'holds' if holds else 'FAILS'}" for bar, holds in bars),
    ]
    return text, all(holds for _, holds in bars)


def collapse(policy: str) -> list[float]:
    """The share of the work on each of two workers."""
    chains, turns = DigestChains(), []
    prefix = list(range(PREFIX_TOKENS // BLOCK))
    for number in range(NUM_SESSIONS):
        digests = chains.digests([*prefix, 1_000 + number])
        turns.append(
            TracedTurn(number, f"session-{number}", 0.0, PREFIX_TOKENS + 600, 300, digests)
        )
    trace = RoutingTrace("collapse", BLOCK, tuple(turns))
    spec = WorkerSpec(QWEN3_8B_H200, KV_TOKENS, 64, 8192)
    workers, _ = _play(trace, POLICIES[policy], spec, num_workers=2)
    total_s = sum(worker.busy_s for worker in workers)
    return [worker.busy_s / total_s for worker in workers]


def collapse_lines(names: Iterable[str]) -> tuple[list[str], bool]:
    """The report, and whether ours gives no worker more than 60 %."""
    text = [f"{NUM_SESSIONS} new sessions with one prefix of {PREFIX_TOKENS} tokens, two workers"]
    most = {}
    for name in names:
        shares = collapse(name)
        most[name] = max(shares)
        text.append(f"  {name:16} {' / '.join(f'{share:.0%}' for share in shares)}")
    holds = most.get(OURS, 0.0) <= 0.6
    return [*text, f"  no worker of ours above 60 %: {'holds' if holds else 'FAILS'}"], holds


def _fairness(name: str, make: Maker) -> Fairness:
    trace = _crowd()
    spec = WorkerSpec(QWEN3_8B_H200, KV_TOKENS, PLACES, 8192)
    _, outcomes = _play(trace, make, spec, num_workers=1)
    waits_s = sorted(
        one.placed_at - one.arrived_at
        for turn, one in zip(trace.turns, outcomes, strict=True)
        if turn.key in SMALL
    )
    services_s = [one.finished_at - one.placed_at for one in outcomes]
    end_s = max(one.finished_at for one in outcomes)
    return Fairness(
        policy=name,
        small_p90_wait_s=percentile(waits_s, 0.9),
        mean_service_s=sum(services_s) / len(services_s),
        throughput_tok_s=sum(turn.output_tokens for turn in trace.turns) / end_s,
    )


def _crowd() -> RoutingTrace:
    """A trace in which every key keeps its number of requests running: each request follows one of
    the same key.
    """
    chance, chains = Random(0), DigestChains()
    turns: list[TracedTurn] = []
    lanes = [(BIG, lane) for lane in range(NUM_BIG)]
    lanes += [(key, lane) for key in SMALL for lane in range(NUM_EACH_SMALL)]
    last: dict[tuple[str, int], int] = {}
    for _ in range(ROUNDS):
        for lane in lanes:
            number = len(turns)
            prompt = chance.randint(1_000, 4_000)
            ids = [number * 100 + block for block in range(prompt // BLOCK)]
            after = (last[lane],) if lane in last else ()
            output = chance.randint(200, 600)
            turn = TracedTurn(
                number, None, 0.0, prompt, output, chains.digests(ids), after, 0.0, lane[0]
            )
            turns.append(replace(turn, session=f"{lane[0]}/{lane[1]}"))
            last[lane] = number
    return RoutingTrace("crowd", BLOCK, tuple(turns))


def _play(
    trace: RoutingTrace, make: Maker, spec: WorkerSpec, num_workers: int
) -> tuple[list[SimWorker], list[TurnOutcome]]:
    num_blocks = spec.kv_tokens // BLOCK
    workers = [SimWorker(n, spec, BlockCache(num_blocks), BLOCK) for n in range(num_workers)]
    policy = make(Setting(num_workers, spec, BLOCK, 0, workers))
    simulation = Simulation(trace, policy, workers)
    simulation.run()
    return workers, simulation.outcomes
