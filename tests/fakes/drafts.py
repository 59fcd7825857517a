"""Drafts of any quality for texts that are known: from the host, and from a drafter on the device.

Owns what is drafted, and checks what a drafter is given. Must not know how drafts are verified.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from enum import Enum

import torch

from protocol.messages import DraftResults
from workers.engine.drafting.drafter import Drafted, DraftStep, TakeIn
from workers.scheduler import ON_CARD, Chunk, DraftCandidate, DraftTiming, StepPlan, StepResult

Text = list[int]


class Mood(Enum):
    """How good drafts are."""

    RIGHT = "all are accepted"
    WRONG = "none is, but by chance"
    MIXED = "right up to some place"
    RANDOM = "any token"


def drafts_behind(
    tokens: Sequence[int], known: Sequence[Text], depth: int, mood: Mood, rng: random.Random
) -> tuple[int, ...]:
    """`depth` drafts for a text that begins with `tokens`; ids are below 151."""
    size, begin = len(tokens), list(tokens)
    text = next((text for text in known if text[:size] == begin), begin)
    right = [*text[size : size + depth], *[0] * depth][:depth]
    if mood is Mood.WRONG:
        return tuple([(token_id + 1) % 151 for token_id in right])
    if mood is Mood.RANDOM or (mood is Mood.MIXED and rng.random() < 0.3):
        return tuple([rng.randrange(151) for _ in range(depth)])
    if mood is Mood.MIXED:
        right[rng.randrange(depth)] = rng.randrange(151)
    return tuple(right)


class HostDrafts:
    """A `Proposer` of drafts behind all tokens. `accepted` counts drafts and accepted ones."""

    def __init__(self, known: Sequence[Text], depth: int, mood: Mood, vary: bool = False) -> None:
        """`vary`: drafts of any number up to `depth`, at times none."""
        self.accepted: list[tuple[int, int]] = []
        self._tokens: dict[int, array[int]] = {}
        self._known = known
        self._depth = depth
        self._mood = mood
        self._vary = vary
        self._rng = random.Random(depth)

    def summary(self) -> DraftResults:
        """See `Proposer`."""
        return DraftResults("known", 0, 0, (), (), 0.0, 1.0)

    def start(self, seq: int, token_ids: array[int], shared_from: int | None) -> None:
        """See `Proposer`."""
        assert shared_from is not None
        assert 0 <= shared_from <= len(token_ids)
        self._tokens[seq] = token_ids

    def end(self, seq: int) -> None:
        """See `Proposer`."""
        del self._tokens[seq]

    def waits(self, candidates: Sequence[DraftCandidate]) -> bool:
        """Mostly."""
        return bool(candidates) and self._rng.random() < 0.9

    def propose(
        self, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`."""
        found = {}
        for candidate in candidates:
            depth = self._rng.randint(0, self._depth) if self._vary else self._depth
            depth = min(depth, candidate.most, room)
            if depth:
                tokens = self._tokens[candidate.seq]
                own = drafts_behind(tokens, self._known, depth, self._mood, self._rng)
                found[candidate.seq] = own
                room -= len(own)
        return found

    def propose_ahead(
        self, in_flight: StepPlan, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`. Nothing is known behind tokens that are not."""
        del in_flight, candidates, room
        return {}

    def num_to_draft(self, num_sequences: int, room: int) -> int:
        """See `Proposer`. The host drafts."""
        del num_sequences, room
        return 0

    def take_in(self, chunks: list[Chunk]) -> tuple[list[Chunk], bool]:
        """See `Proposer`."""
        return chunks, True

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

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """See `Proposer`."""
        answers = {item.seq: item for item in result.sampled}
        for chunk in plan.chunks:
            if chunk.drafts and chunk.seq in answers:
                self.accepted.append((len(chunk.drafts), len(answers[chunk.seq].ids) - 1))


class CardDrafts(HostDrafts):
    """A `Proposer` of all that the card drafts."""

    def __init__(self, depth: int, vary: bool = False, *, sleeps: bool = True) -> None:
        """`vary`: any number up to `depth` behind each step, often none; a drafter of a host then
        leaves out three steps of ten if it `sleeps`.
        """
        self._sleeps = sleeps and vary
        super().__init__((), depth, Mood.RIGHT, vary)
        self.num_ahead = 0
        self._waiting = random.Random(depth)
        self._held: dict[int, int] = {}

    def start(self, seq: int, token_ids: array[int], shared_from: int | None) -> None:
        """See `Proposer`. Texts are the card's."""

    def end(self, seq: int) -> None:
        """See `Proposer`."""
        self._held.pop(seq, None)

    def num_to_draft(self, num_sequences: int, room: int) -> int:
        """The most drafts that fit, the same number for all sequences."""
        del num_sequences, room
        if not self._vary:
            return self._depth
        return self._rng.randint(1, self._depth) if self._rng.random() < 0.4 else 0

    def take_in(self, chunks: list[Chunk]) -> tuple[list[Chunk], bool]:
        """All steps, or any."""
        return chunks, not self._sleeps or self._rng.random() < 0.7

    def waits(self, candidates: Sequence[DraftCandidate]) -> bool:
        """Not where nothing is drafted."""
        del candidates
        return False

    def propose(
        self, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`."""
        return self._of(self._held, candidates, room)

    def propose_ahead(
        self, in_flight: StepPlan, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`. With `vary` it waits at times."""
        if self._vary and self._waiting.random() < 0.2:
            return {}
        held = {chunk.seq: chunk.num_to_draft for chunk in in_flight.chunks}
        found = self._of(held, candidates, room)
        self.num_ahead += bool(found)
        return found

    def _of(
        self, held: Mapping[int, int], candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        found = {}
        for seq, most in candidates:
            if depth := min(held.get(seq, 0), most, room):
                found[seq] = (ON_CARD,) * depth
                room -= depth
        return found

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """See `Proposer`."""
        super().learn(plan, result)
        self._held.update({chunk.seq: chunk.num_to_draft for chunk in plan.chunks})


class KnownDrafter:
    """A `Drafter` of texts that are known, which checks what it gets of each step. It reads the
    first layer and the last.
    """

    name = "known"
    reads_hidden = True
    cuts_anew = False
    cache = None
    num_bytes = 0
    token_bytes = 0

    def __init__(self, known: Sequence[Text], depth: int, mood: Mood, num_layers: int = 2) -> None:
        self.max_depth = depth
        self.take_in: TakeIn | None = None
        self.taps = (0, num_layers - 1)
        self._known = known
        self._mood = mood
        self._rng = random.Random(depth)

    def take_cache(self, num_blocks: int, block_size: int) -> None:
        """This drafter has no cache."""

    def draft(self, step: DraftStep) -> Drafted:
        """See `Drafter`."""
        num_rows, width = step.token_ids.shape[0], step.taps.shape[1] // 2  # type: ignore[union-attr]
        assert step.positions.shape == step.next_ids.shape == (num_rows,)
        assert min(int(step.token_ids.min()), int(step.next_ids.min())) >= 0
        assert step.taps is not None
        assert step.hidden is not None
        # Padding may hold anything.
        assert torch.equal(step.taps[:, width:].nan_to_num(), step.hidden.nan_to_num())
        assert torch.equal(step.next_ids[step.rows], step.anchors)
        assert torch.equal(step.positions[step.rows] + 1, step.anchor_positions)
        drafts = [
            self._behind(int(anchor), int(position), int(step.token_ids[row]), step.depth)
            for anchor, position, row in zip(
                step.anchors, step.anchor_positions, step.rows, strict=True
            )
        ]
        if step.seqs:
            plan = step.plan_rows(1, 1)
            assert plan.positions.tolist() == [int(at) + 1 for at in step.anchor_positions]
        # On the step's device, as of every drafter: nothing behind it waits for the host.
        ids = step.anchors.new_tensor(drafts).reshape(len(step.seqs), step.depth)
        return Drafted(ids, torch.full(ids.shape, float("nan"), device=ids.device))

    def _behind(self, anchor: int, position: int, before: int, depth: int) -> tuple[int, ...]:
        fits = [
            text
            for text in self._known
            if position < len(text) and (text[position - 1], text[position]) == (before, anchor)
        ]
        if not fits:  # a step was launched before it was known that the answer had ended
            is_over = any(position + 1 >= len(text) for text in self._known)
            assert is_over, f"no text has {before}, {anchor} at {position}"
        begin = fits[0][: position + 1] if fits else [anchor]
        return drafts_behind(begin, self._known, depth, self._mood, self._rng)
