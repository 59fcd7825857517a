"""Proposers of a benchmark: as many drafts as one is told, and one that hands over to others.

Owns them, and the counts of what became of drafts.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import final

from workers.scheduler import ON_CARD, Candidate, Proposer, StepPlan, StepResult


class Counts:
    """Passes of decoding sequences, and their drafts by place: `verified` those whose predecessors
    were accepted, and `accepted`.
    """

    def __init__(self, most: int) -> None:
        self.passes = 0
        self.tokens = 0
        self.verified = [0] * most
        self.accepted = [0] * most

    def add(self, num_drafts: int, num_tokens: int) -> None:
        """A sequence's pass."""
        self.passes += 1
        self.tokens += num_tokens
        for place in range(num_drafts):
            self.verified[place] += place < num_tokens
            self.accepted[place] += place + 1 < num_tokens

    @property
    def length(self) -> float:
        """Tokens of a pass."""
        return self.tokens / max(1, self.passes)

    @property
    def acceptance(self) -> tuple[float, ...]:
        """By place, of drafts whose predecessors were accepted."""
        pairs = zip(self.accepted, self.verified, strict=True)
        return tuple([round(right / asked, 3) for right, asked in pairs if asked])


@final
class FixedDepth:
    """A `workers.scheduler.Proposer`: the card drafts `depth` tokens behind every pass."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._held: dict[int, int] = {}

    @property
    def num_to_draft(self) -> int:
        """See `Proposer`."""
        return self._depth

    def start(self, seq: int, token_ids: array[int], num_prompt: int) -> None:
        """See `Proposer`."""

    def end(self, seq: int) -> None:
        """See `Proposer`."""
        self._held.pop(seq, None)

    def waits(self, candidates: Sequence[Candidate]) -> bool:  # noqa: ARG002 - the seam's
        """See `Proposer`."""
        return False

    def propose(
        self,
        candidates: Sequence[Candidate],
        room: int,
        num_prompts: int,  # noqa: ARG002
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`."""
        found = {}
        for seq, most in candidates:
            if depth := min(self._held.get(seq, 0), most, room):
                found[seq] = (ON_CARD,) * depth
                room -= depth
        return found

    def learn(self, plan: StepPlan, result: StepResult) -> None:  # noqa: ARG002 - the seam's
        """See `Proposer`."""
        self._held.update({chunk.seq: chunk.num_to_draft for chunk in plan.chunks})


@final
class SwitchedProposer:
    """Hands over to `inner`, which may be replaced while no sequence runs, and counts."""

    def __init__(self, inner: Proposer, most: int) -> None:
        self.inner = inner
        self.counts = Counts(most)
        self._most = most

    def switch(self, inner: Proposer) -> None:
        """Go on with another one, and count anew."""
        self.inner = inner
        self.counts = Counts(self._most)

    @property
    def num_to_draft(self) -> int:
        """See `Proposer`."""
        return self.inner.num_to_draft

    def start(self, seq: int, token_ids: array[int], num_prompt: int) -> None:
        """See `Proposer`."""
        self.inner.start(seq, token_ids, num_prompt)

    def end(self, seq: int) -> None:
        """See `Proposer`."""
        self.inner.end(seq)

    def waits(self, candidates: Sequence[Candidate]) -> bool:
        """See `Proposer`."""
        return self.inner.waits(candidates)

    def propose(
        self, candidates: Sequence[Candidate], room: int, num_prompts: int
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`."""
        return self.inner.propose(candidates, room, num_prompts)

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """See `Proposer`."""
        answers = {item.seq: len(item.ids) for item in result.sampled}
        for chunk in plan.chunks:
            if chunk.length == 1 and answers.get(chunk.seq):
                self.counts.add(len(chunk.drafts), answers[chunk.seq])
        self.inner.learn(plan, result)
