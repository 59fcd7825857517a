"""An engine that takes the time that a table says, and drafts that are right by known chances.

Owns the simulation and the paces to compare with. Must not know how the policy decides.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workers.scheduler import Chunk, DraftCandidate, DraftTiming, Sampled, StepPlan, StepResult
from workers.speculation import (
    FINE_SIZES,
    CardSource,
    DraftDepth,
    Offer,
    PlaceOdds,
    Speculation,
    SpeculationPolicy,
    TimeTable,
)

Seconds = Callable[[int], float]
"""Of a step, by its rows."""


@dataclass
class Costs:
    """Seconds of steps by rows: planned ahead, and waiting for tokens; an engine that does not look
    ahead has the latter only. A card takes `draft` for that many sequences and drafts of each.
    """

    ahead: Seconds
    awaiting: Seconds
    looks_ahead: bool = True
    draft: Callable[[int, int], float] = lambda _sequences, _depth: 0.0

    def bare(self, num_sequences: int) -> float:
        """Without drafts."""
        return self.ahead(num_sequences) if self.looks_ahead else self.awaiting(num_sequences)


class FairSource:
    """Offers `depth` drafts of each sequence, which are right by `rates`; says `told` chances."""

    name = "fair"
    drafts_behind = False

    def __init__(self, rates: Sequence[float], told: Sequence[float] | None = None) -> None:
        self.rates = list(rates)
        self.told = tuple(rates if told is None else told)

    def length(self, depth: int) -> float:
        """Tokens of a pass that verifies so many drafts, on the average."""
        tokens, reached = 1.0, 1.0
        for rate in self.rates[:depth]:
            reached *= rate
            tokens += reached
        return tokens

    def start(self, seq: int, tokens: array[int], shared_from: int | None) -> None:
        """Nothing to keep."""

    def end(self, seq: int) -> None:
        """Nothing to forget."""

    def offers(self, candidates: Sequence[DraftCandidate]) -> list[Offer]:
        """Offer the same drafts to all sequences."""
        ids = tuple(range(len(self.rates)))
        return [Offer(seq, ids[:most], self.told[:most]) for seq, most in candidates]

    def offers_behind(self, plan: StepPlan, candidates: Sequence[DraftCandidate]) -> list[Offer]:
        """None: its drafts are the host's."""
        del plan, candidates
        return []

    def verified(self, offer: Offer, num_right: int) -> None:
        """Learn nothing, because the chances are known."""

    def planned(self, plan: StepPlan) -> None:
        """Nothing to do."""


@dataclass
class Simulation:
    """Steps of `num_sequences` that decode for ever, whose drafts are right as `source` has it;
    `speculation` may have another one. `depths` are the most drafts of a sequence in each step,
    `expected` the tokens of all steps on the average of such drafts.
    """

    speculation: Speculation
    source: FairSource
    costs: Costs
    num_sequences: int
    noise: float = 0.0
    seed: int = 0
    seconds: float = 0.0
    num_tokens: int = 0
    expected: float = 0.0
    depths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._in_flight: StepPlan | None = None
        self._step = 0

    @property
    def pace(self) -> float:
        """Tokens a second."""
        return self.num_tokens / self.seconds

    @property
    def fair_pace(self) -> float:
        """Tokens a second, without luck."""
        return self.expected / self.seconds

    def run(self, num_steps: int) -> Simulation:
        """Run that many more steps."""
        for _ in range(num_steps):
            self._turn()
        return self

    def forget(self) -> Simulation:
        """Begin to count anew."""
        self.seconds, self.num_tokens, self.expected, self.depths = 0.0, 0, 0.0, []
        return self

    def _turn(self) -> None:
        candidates = [DraftCandidate(seq, 100) for seq in range(self.num_sequences)]
        before = self._in_flight
        is_ahead = (
            self.costs.looks_ahead
            and before is not None
            and not any(chunk.drafts or chunk.num_to_draft for chunk in before.chunks)
            and not self.speculation.waits(candidates)
        )
        drafts = {} if is_ahead else self.speculation.propose(candidates, 4096)
        depth = self.speculation.num_to_draft(self.num_sequences, 4096)
        self._step += 1
        chunks = [Chunk(seq, 0, 1, (), True, drafts.get(seq, ()), depth) for seq, _ in candidates]
        plan = StepPlan(self._step, (), tuple(chunks), ())
        rows = sum(chunk.num_rows for chunk in chunks)
        took = self.costs.ahead(rows) if is_ahead else self.costs.awaiting(rows)
        took *= 1 + self.noise * (2 * self._rng.random() - 1)
        drafting = self._drafting(before if self.costs.looks_ahead else plan)
        took += drafting.seconds
        result = StepResult(self._step, tuple(self._sampled(chunk) for chunk in chunks))
        tokens = sum(len(item.ids) for item in result.sampled)
        self.speculation.learn(plan, result)
        self.speculation.took(plan, tokens, took, is_ahead=is_ahead, drafting=drafting)
        self.seconds += took
        self.num_tokens += tokens
        self.expected += sum(self.source.length(len(chunk.drafts)) for chunk in chunks)
        self.depths.append(max(len(chunk.drafts) for chunk in chunks))
        self._in_flight = plan

    def _drafting(self, plan: StepPlan | None) -> DraftTiming:
        """What the drafts behind that step take: of a card in the time of the next one."""
        depth = 0 if plan is None else plan.chunks[0].num_to_draft
        seconds = self.costs.draft(self.num_sequences, depth) if depth else 0.0
        return DraftTiming(self.num_sequences, depth, seconds)

    def _sampled(self, chunk: Chunk) -> Sampled:
        num = 0
        while num < len(chunk.drafts) and self._rng.random() < self.source.rates[num]:
            num += 1
        return Sampled(chunk.seq, (0,) * (num + 1))


def simulate(
    rates: Sequence[float],
    costs: Costs,
    num_sequences: int,
    *,
    depth: int | None = None,
    told: Sequence[float] | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> Simulation:
    """With a policy, or a fixed depth."""
    source = FairSource(rates, told)
    speculation = Speculation(source, SpeculationPolicy(looks_ahead=costs.looks_ahead), depth)
    return Simulation(speculation, source, costs, num_sequences, noise, seed)


def simulate_card(
    rates: Sequence[float],
    costs: Costs,
    num_sequences: int,
    *,
    noise: float = 0.0,
    seed: int = 0,
    sizes: Sequence[int] = FINE_SIZES,
) -> Simulation:
    """With a policy, and drafts of a network that are right by `rates`. Steps that verify take as
    long up to each of `sizes`.
    """
    policy = SpeculationPolicy(looks_ahead=costs.looks_ahead, awaiting=TimeTable(sizes))
    odds = PlaceOdds(len(rates))
    depth = DraftDepth(odds, policy, len(rates))
    speculation = Speculation(CardSource("network", odds), policy, draft_depth=depth)
    return Simulation(speculation, FairSource(rates), costs, num_sequences, noise, seed)


def pace_without(costs: Costs, num_sequences: int) -> float:
    """Tokens a second of no speculation."""
    return num_sequences / costs.bare(num_sequences)


def pace_of(depth: int, rates: Sequence[float], costs: Costs, num_sequences: int) -> float:
    """Tokens a second that `depth` drafts of each sequence give, on the average."""
    if not depth:
        return pace_without(costs, num_sequences)
    tokens = num_sequences * FairSource(rates).length(depth)
    seconds = costs.awaiting(num_sequences * (1 + depth)) + costs.draft(num_sequences, depth)
    return tokens / seconds


def best_pace(rates: Sequence[float], costs: Costs, num_sequences: int) -> float:
    """The best pace of all fixed depths, no drafts among them."""
    return max(pace_of(depth, rates, costs, num_sequences) for depth in range(len(rates) + 1))
