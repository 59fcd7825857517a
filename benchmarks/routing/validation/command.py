"""`herma bench routing --validate`: the simulator against two real CPU workers.

Owns the scaled traces, the measured cost model and the verdict over a few rounds: mean hit rates
within 3 points, and the same order of policies by the mean time to the first token where the
simulation separates them. Sessions send token ids, so both worlds see the same blocks. Our policy
is a real gateway; the others route here, with the simulation's own objects, between gateways of one
worker each.

Each round has a trace of its own and measures the machine anew: whether a block is evicted just
before it is needed again is chance in both worlds, and most so for a policy that evicts much.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from random import Random
from statistics import fmean, median
from typing import Final

import httpx
import trio

from benchmarks.routing.cache import BlockCache
from benchmarks.routing.cost_model import CostModel
from benchmarks.routing.policies import OURS, POLICIES
from benchmarks.routing.policies.base import RoutingPolicy, Setting
from benchmarks.routing.simulation import Simulation
from benchmarks.routing.trace import RoutingTrace, TracedTurn
from benchmarks.routing.validation.real_fleet import (
    ANSWER_S,
    AnswerTimes,
    FleetLimits,
    ask,
    gateways,
)
from benchmarks.routing.worker import ENGINE_BLOCK, SimWorker, WorkerReport, WorkerSpec
from protocol.hashing import block_digests, root_digest
from protocol.messages import Load
from protocol.tokens import pack_tokens

NUM_WORKERS: Final = 2
LIMITS: Final = FleetLimits(kv_tokens=4_096, max_seqs=8, token_budget=512)
VALIDATED: Final = (OURS, "session_hash", "round_robin")
"""Policies that need only the ends of answers, which a client sees."""
MAX_GAP: Final = 0.03
_TOLD_APART: Final = 0.1
ROUNDS: Final = 5
_SAMPLES: Final = 5
"""Measurements of a worker's speed before each round; the median counts."""

_NUM_SESSIONS: Final = 10
_NUM_TURNS: Final = 5
_PREFIX_TOKENS: Final = 384
_GROWTH_TOKENS: Final = (100, 300)
_PAUSE_TURNS: Final = (0.2, 1.5)
_ANSWER_TOKENS: Final = 16
_START_GAP_TURNS: Final = 1.6
_TYPICAL_TOKENS: Final = 500
_SHORT_TOKENS: Final = 500
_LONG_TOKENS: Final = 2_000
_VOCABULARY: Final = (300, 3_000)
_NO_LOAD: Final = Load(1, 0, 0, 0, 0, 0, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ValidationFigures:
    """The results of one policy in one world."""

    hit_rate: float
    ttft_mean_s: float


@dataclass(frozen=True, slots=True)
class Scaled:
    """A fleet that a small CPU can serve: the trace, and each turn's token ids."""

    trace: RoutingTrace
    prompts: tuple[tuple[int, ...], ...]


def run_validation() -> int:
    """Play traces in both worlds. Returns 0 if the bars hold, else 1. Needs an idle machine."""
    theory: dict[str, list[ValidationFigures]] = {name: [] for name in VALIDATED}
    practice: dict[str, list[ValidationFigures]] = {name: [] for name in VALIDATED}
    for number in range(ROUNDS):
        cost = measured_cost(number)
        turn_s = cost.stretch_s(1, 0, _ANSWER_TOKENS) + cost.chunk_s(0, _TYPICAL_TOKENS)
        scaled = scaled_fleet(turn_s, number)
        prompt_us, step_ms = 1e6 * cost.prefill_s, 1e3 * cost.step_s
        print(f"round {number + 1}: {prompt_us:.0f} us per prompt token, {step_ms:.1f} ms per step")
        for name in VALIDATED:
            theory[name].append(simulated(scaled, name, cost))
            practice[name].append(real(scaled, name))
            print(f"  {name:16} {_said(theory[name][-1], practice[name][-1])}", flush=True)
    return judged(
        {name: _mean(rounds) for name, rounds in theory.items()},
        {name: _mean(rounds) for name, rounds in practice.items()},
    )


def judged(theory: dict[str, ValidationFigures], practice: dict[str, ValidationFigures]) -> int:
    """Print whether the bars hold. Returns 0 if they do, else 1."""
    print("all rounds:")
    for name, figures in theory.items():
        print(f"  {name:16} {_said(figures, practice[name])}")
    gap = max(abs(theory[name].hit_rate - practice[name].hit_rate) for name in theory)
    is_same = same_order(theory, practice)
    print(f"largest gap {100 * gap:.1f} points: {'holds' if gap <= MAX_GAP else 'FAILS'}")
    print(f"the same order by first tokens: {'holds' if is_same else 'FAILS'}")
    return 0 if is_same and gap <= MAX_GAP else 1


def scaled_fleet(turn_s: float, seed: int = 0) -> Scaled:
    """Sessions with one prefix that grow turn by turn and together overflow the caches. A turn
    takes about `turn_s` on an idle worker; starts and pauses are multiples of it.
    """
    chance = Random(seed)

    def text(num_tokens: int) -> list[int]:
        return [chance.randrange(*_VOCABULARY) for _ in range(num_tokens)]

    shared = text(_PREFIX_TOKENS)
    turns: list[TracedTurn] = []
    prompts: list[tuple[int, ...]] = []
    for number in range(_NUM_SESSIONS):
        prompt = list(shared)
        after: tuple[int, ...] = ()
        for _ in range(_NUM_TURNS):
            prompt = prompt + text(chance.randint(*_GROWTH_TOKENS))
            names = block_digests(root_digest("tiny"), pack_tokens(prompt), ENGINE_BLOCK)
            turns.append(
                TracedTurn(
                    number=len(turns),
                    session=f"session-{number}",
                    arrival_s=number * _START_GAP_TURNS * turn_s,
                    prompt_tokens=len(prompt),
                    output_tokens=_ANSWER_TOKENS,
                    digests=tuple(names),
                    after=after,
                    pause_s=turn_s * chance.uniform(*_PAUSE_TURNS),
                )
            )
            prompts.append(tuple(prompt))
            after = (turns[-1].number,)
    return Scaled(RoutingTrace("scaled", ENGINE_BLOCK, tuple(turns)), tuple(prompts))


def measured_cost(seed: int = 0) -> CostModel:
    """The speed of one worker here: cold prompts of two lengths and long answers, in turns."""
    chance = Random(seed)

    def text(num_tokens: int) -> list[int]:
        return [chance.randrange(*_VOCABULARY) for _ in range(num_tokens)]

    prefills_s, steps_s = list[float](), list[float]()
    with gateways([1], LIMITS) as (url,):

        async def measure() -> None:
            async with httpx.AsyncClient(timeout=ANSWER_S) as client:
                await ask(client, url, text(40), "warm", 8)
                for _ in range(_SAMPLES):
                    short = await ask(client, url, text(_SHORT_TOKENS), "short", 1)
                    long = await ask(client, url, text(_LONG_TOKENS), "long", 1)
                    answer = await ask(client, url, text(40), "answer", 64)
                    more_s = long.first_token_s - short.first_token_s
                    prefills_s.append(more_s / (_LONG_TOKENS - _SHORT_TOKENS))
                    steps_s.append((answer.finished_s - answer.first_token_s) / 63)

        trio.run(measure)
    step_s = median(steps_s)
    return CostModel(step_s, step_s / 10, 0.0, max(1e-6, median(prefills_s)), 0.0)


def simulated(scaled: Scaled, name: str, cost: CostModel) -> ValidationFigures:
    """The figures in virtual time."""
    spec = WorkerSpec(cost, LIMITS.kv_tokens, LIMITS.max_seqs, LIMITS.token_budget)
    workers = [
        SimWorker(number, spec, BlockCache(LIMITS.kv_tokens // ENGINE_BLOCK), ENGINE_BLOCK)
        for number in range(NUM_WORKERS)
    ]
    policy = POLICIES[name](Setting(NUM_WORKERS, spec, ENGINE_BLOCK, 0, workers))
    simulation = Simulation(scaled.trace, policy, workers)
    simulation.run()
    outcomes = simulation.outcomes
    ttfts_s = [one.first_token_at - one.arrived_at for one in outcomes]
    return _figures(scaled, [one.cached_tokens for one in outcomes], ttfts_s)


def real(scaled: Scaled, name: str) -> ValidationFigures:
    """The figures on real workers."""
    num_workers = [NUM_WORKERS] if name == OURS else [1] * NUM_WORKERS
    with gateways(num_workers, LIMITS) as urls:
        heard = trio.run(_play, scaled, urls, None if name == OURS else _router(name))
    return _figures(
        scaled, [one.cached_tokens for one in heard], [one.first_token_s for one in heard]
    )


def _router(name: str) -> RoutingPolicy:
    spec = WorkerSpec(CostModel(1, 0, 0, 0, 0), LIMITS.kv_tokens, LIMITS.max_seqs, 1)
    return POLICIES[name](Setting(NUM_WORKERS, spec, ENGINE_BLOCK, 0, ()))


async def _play(
    scaled: Scaled, urls: Sequence[str], policy: RoutingPolicy | None
) -> list[AnswerTimes]:
    """Every session sends its turns at their times. Returns the results of each turn."""
    turns, began_at = scaled.trace.turns, time.monotonic()
    heard: dict[int, AnswerTimes] = {}

    async def live(session: Sequence[TracedTurn]) -> None:
        await trio.sleep(max(0.0, began_at + session[0].arrival_s - time.monotonic()))
        for turn in session:
            if turn.after:
                await trio.sleep(turn.pause_s)
            now = time.monotonic() - began_at
            worker = policy.arrived(turn, now)[0].worker if policy is not None else 0
            prompt, name = scaled.prompts[turn.number], turn.session or ""
            heard[turn.number] = await ask(client, urls[worker], prompt, name, turn.output_tokens)
            if policy is not None:
                numbers = (turn.number,)
                now = time.monotonic() - began_at
                policy.on_report(WorkerReport(worker, now, (), (), numbers, numbers, _NO_LOAD), now)

    async with httpx.AsyncClient(timeout=ANSWER_S) as client, trio.open_nursery() as nursery:
        for start in range(0, len(turns), _NUM_TURNS):
            nursery.start_soon(live, turns[start : start + _NUM_TURNS])
    return [heard[turn.number] for turn in turns]


def _figures(scaled: Scaled, cached: Sequence[int], ttfts_s: Sequence[float]) -> ValidationFigures:
    num_prompt = sum(turn.prompt_tokens for turn in scaled.trace.turns)
    return ValidationFigures(sum(cached) / num_prompt, sum(ttfts_s) / len(ttfts_s))


def _mean(rounds: Sequence[ValidationFigures]) -> ValidationFigures:
    return ValidationFigures(
        fmean(one.hit_rate for one in rounds), fmean(one.ttft_mean_s for one in rounds)
    )


def _said(theory: ValidationFigures, practice: ValidationFigures) -> str:
    return (
        f"hit rate simulated {theory.hit_rate:.1%}, real {practice.hit_rate:.1%}; "
        f"mean first token {theory.ttft_mean_s:.2f} s, real {practice.ttft_mean_s:.2f} s"
    )


def same_order(
    theory: dict[str, ValidationFigures], practice: dict[str, ValidationFigures]
) -> bool:
    """Whether each policy that is faster in the simulation, by more than chance, is faster in
    reality.
    """
    return all(
        practice[one].ttft_mean_s < practice[other].ttft_mean_s
        for one, other in permutations(theory, 2)
        if theory[one].ttft_mean_s < (1 - _TOLD_APART) * theory[other].ttft_mean_s
    )
