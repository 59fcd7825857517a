"""A proposer that delegates to another one, and counts.

Owns the counts of accepted drafts. Must not know how many drafts are proposed.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from statistics import median
from typing import final

from protocol.messages import DraftResults
from workers.scheduler import Chunk, DraftCandidate, DraftTiming, Proposer, StepPlan, StepResult


class Counts:
    """Passes of decoding sequences, and their drafts by place: `verified` drafts, whose
    predecessors were accepted, and `accepted` ones. `seconds` of steps without prompts, with their
    draft passes.
    """

    def __init__(self, most: int) -> None:
        self.passes = 0
        self.tokens = 0
        self.seconds: list[tuple[float, float]] = []
        self.verified = [0] * most
        self.accepted = [0] * most

    def add(self, num_drafts: int, num_tokens: int) -> None:
        """Count a pass of a sequence."""
        self.passes += 1
        self.tokens += num_tokens
        for place in range(num_drafts):
            self.verified[place] += place < num_tokens
            self.accepted[place] += place + 1 < num_tokens

    @property
    def step_s(self) -> float:
        """The median step, from one result to the next."""
        return median([step for step, _ in self.seconds] or [0.0])

    @property
    def draft_s(self) -> float:
        """The median draft pass."""
        return median([drafting for _, drafting in self.seconds] or [0.0])

    @property
    def length(self) -> float:
        """Tokens per pass."""
        return self.tokens / max(1, self.passes)

    @property
    def acceptance(self) -> tuple[float, ...]:
        """By place, the share of accepted drafts among those whose predecessors were accepted."""
        pairs = zip(self.accepted, self.verified, strict=True)
        return tuple([round(right / asked, 3) for right, asked in pairs if asked])


@final
class SwitchedProposer:
    """Delegates to `inner`, which may be replaced while no sequence runs, and counts. It needs one
    before the first sequence.
    """

    def __init__(self, most: int) -> None:
        self.counts = Counts(most)
        self._inner: Proposer | None = None
        self._most = most

    @property
    def inner(self) -> Proposer:
        """The proposer in use."""
        assert self._inner is not None
        return self._inner

    def switch(self, inner: Proposer | None) -> None:
        """Continue with another proposer, and count anew."""
        self._inner = inner
        self.counts = Counts(self._most)

    def summary(self) -> DraftResults:
        """See `Proposer`."""
        return self.inner.summary()

    def num_to_draft(self, num_sequences: int, room: int) -> int:
        """See `Proposer`."""
        return self.inner.num_to_draft(num_sequences, room)

    def start(self, seq: int, token_ids: array[int], shared_from: int | None) -> None:
        """See `Proposer`."""
        self.inner.start(seq, token_ids, shared_from)

    def end(self, seq: int) -> None:
        """See `Proposer`."""
        self.inner.end(seq)

    def waits(self, candidates: Sequence[DraftCandidate]) -> bool:
        """See `Proposer`."""
        return self.inner.waits(candidates)

    def propose(
        self, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`."""
        return self.inner.propose(candidates, room)

    def propose_ahead(
        self, in_flight: StepPlan, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`."""
        return self.inner.propose_ahead(in_flight, candidates, room)

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """See `Proposer`."""
        answers = {item.seq: len(item.ids) for item in result.sampled}
        for chunk in plan.chunks:
            if chunk.length == 1 and answers.get(chunk.seq):
                self.counts.add(len(chunk.drafts), answers[chunk.seq])
        self.inner.learn(plan, result)

    def take_in(self, chunks: list[Chunk]) -> tuple[list[Chunk], bool]:
        """See `Proposer`."""
        return self.inner.take_in(chunks)

    def took(
        self,
        plan: StepPlan,
        num_tokens: int,
        seconds: float,
        *,
        is_ahead: bool,
        drafting: DraftTiming,
    ) -> None:
        """See `Proposer`."""
        if all(chunk.length == 1 for chunk in plan.chunks):
            self.counts.seconds.append((seconds, drafting.seconds))
        self.inner.took(plan, num_tokens, seconds, is_ahead=is_ahead, drafting=drafting)
