"""An engine on a host that serves answer after answer, and takes the time that a table says.

Owns the simulation. Must not know how the policy decides.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from workers.scheduler import Chunk, DraftCandidate, DraftTiming, Sampled, StepPlan, StepResult
from workers.speculation import (
    CardSource,
    DraftDepth,
    Fit,
    PlaceOdds,
    Speculation,
    SpeculationPolicy,
    TakingIn,
)

BLOCK = 4096


class HostCosts(NamedTuple):
    """Milliseconds of a step: `base`, and `row` for each row of decodes and drafts, `prompt` for
    each of prompts. To take in: `pass_` and `taken` for each row of prompts, half of it beside the
    draft pass. Each draft takes a further pass with a `drafted` row of each sequence.
    """

    base: float = 3.0
    row: float = 0.6
    prompt: float = 0.2
    pass_: float = 0.4
    taken: float = 0.027
    drafted: float = 0.1


COSTS = HostCosts()


class Text(NamedTuple):
    """Prompts and answers of so many tokens, drafts of which are right by `rates`."""

    prompt: int
    answer: int
    rates: tuple[float, ...]


@dataclass
class _Answer:
    seq: int
    text: Text
    computed: int = 0
    tokens: int = 0


@dataclass
class Host:
    """`batch` answers at once, each of one of the `texts`. `speculation` None: there is none."""

    texts: Sequence[Text]
    batch: int
    speculation: Speculation | None = None
    costs: HostCosts = COSTS
    seed: int = 0
    ms: float = 0.0
    num_ended: int = 0
    _running: dict[int, _Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._order = random.Random(self.seed)
        self._step = self._next_seq = 0

    def serve(self, num_answers: int) -> float:
        """Milliseconds of so many more answers."""
        begin_ms, until = self.ms, self.num_ended + num_answers
        while self.num_ended < until:
            self._turn()
        return self.ms - begin_ms

    def _turn(self) -> None:
        spec = self.speculation
        drafts, depth = {}, 0
        if spec is not None:
            candidates = [
                DraftCandidate(one.seq, one.text.answer - one.tokens - 1)
                for one in self._running.values()
            ]
            drafts = spec.propose(candidates, 8192)
            depth = spec.num_to_draft(max(1, len(self._running)), 8192)
        chunks = [self._decode(one, drafts.get(one.seq, ()), depth) for one in self._answers()]
        while len(self._running) < self.batch:
            chunks.append(self._started(depth))
        takes_in = False
        if spec is not None:
            chunks, takes_in = spec.take_in(chunks)
        self._step += 1
        plan = StepPlan(self._step, (), tuple(chunks), (), takes_in=takes_in)
        self._compute(plan)

    def _answers(self) -> list[_Answer]:
        return list(self._running.values())

    def _started(self, depth: int) -> Chunk:
        self._next_seq += 1
        one = _Answer(self._next_seq, self._order.choice(self.texts))
        self._running[one.seq] = one
        if self.speculation is not None:
            self.speculation.start(one.seq, array("I", [0] * one.text.prompt), None)
        return Chunk(one.seq, 0, one.text.prompt, (one.seq,), True, (), depth)

    def _decode(self, one: _Answer, drafts: tuple[int, ...], depth: int) -> Chunk:
        behind = depth if one.text.answer - one.tokens - 1 > len(drafts) else 0
        return Chunk(one.seq, one.computed, 1, (one.seq,), True, drafts, behind)

    def _compute(self, plan: StepPlan) -> None:
        costs = self.costs
        prompts = sum([chunk.length for chunk in plan.chunks if chunk.length > 1])
        rows = sum([chunk.num_rows for chunk in plan.chunks if chunk.length == 1])
        drafting = DraftTiming()
        took = costs.base + costs.row * rows + costs.prompt * prompts
        if plan.takes_in:
            num = sum([chunk.num_to_draft > 0 for chunk in plan.chunks])
            depth = max(chunk.num_to_draft for chunk in plan.chunks)
            own = costs.pass_ + costs.drafted * rows + costs.taken * prompts / 1.5
            own += (costs.pass_ + costs.drafted * num) * max(0, depth - 1)
            drafting = DraftTiming(num, depth, 1e-3 * own)
            took += own + costs.taken * prompts / 3
        self.ms += took
        sampled = [self._sampled(chunk) for chunk in plan.chunks]
        if self.speculation is not None:
            self.speculation.learn(plan, StepResult(self._step, tuple(sampled)))
        for item, chunk in zip(sampled, plan.chunks, strict=True):
            one = self._running[item.seq]
            one.computed = chunk.start + chunk.length + len(item.ids) - 1
            one.tokens += len(item.ids)
            if one.tokens >= one.text.answer:
                del self._running[item.seq]
                self.num_ended += 1
                if self.speculation is not None:
                    self.speculation.end(item.seq)
        if self.speculation is not None:
            tokens = sum(len(item.ids) for item in sampled)
            self.speculation.took(plan, tokens, 1e-3 * took, is_ahead=False, drafting=drafting)

    def _sampled(self, chunk: Chunk) -> Sampled:
        one, num = self._running[chunk.seq], 0
        while num < len(chunk.drafts) and self._rng.random() < one.text.rates[num]:
            num += 1
        return Sampled(chunk.seq, (0,) * min(num + 1, one.text.answer - one.tokens))


def drafter(depth: int | None = None, fit: Fit | None = None, most: int = 7) -> Speculation:
    """One that chooses its depth, or drafts `depth` tokens in any case."""
    fit = fit or Fit()
    policy = SpeculationPolicy(looks_ahead=False, parts_bare=True)
    odds = PlaceOdds(most, list(fit.places))
    source = CardSource("network", odds)
    if depth is not None:
        return Speculation(source, policy, depth)
    own = DraftDepth(odds, policy, most)
    return Speculation(source, policy, draft_depth=own, taking_in=TakingIn(BLOCK, fit.expense))
