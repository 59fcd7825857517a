"""What the scheduler asks for drafts: the offers of a source, as many drafts as raise the pace.

Owns which offers were made for the next step, and what is learned from each step. Must not know
tables of times, nor where drafts come from.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, final

import msgspec

from protocol.messages import DraftResults
from workers.scheduler import Chunk, DraftCandidate, DraftTiming, StepPlan, StepResult
from workers.speculation.counters import DraftCounters
from workers.speculation.draft_depth import DraftDepth, Mode
from workers.speculation.fit import Fit
from workers.speculation.offers import Offer
from workers.speculation.policy import SpeculationPolicy
from workers.speculation.sources import DraftSource
from workers.speculation.taking_in import Expense, TakingIn

_MOST_UNVERIFIED: Final = 4
"""Steps in a row whose drafts are not verified because they do not pay. The next ones are verified
all the same, to measure whether they have become better."""

_LEAST_S: Final = 1e-6
"""The least time of a step less its draft pass: the two are measured by different clocks."""

_LEAST_OF_PROMISED: Final = 0.5
"""The share of the promised drafts of a pass under which there is a warning."""

_JUDGED_BEHIND: Final = 500
"""First drafts that must have been verified before a drafter is judged."""

_ANY_ROOM: Final = 4096
"""Drafts that a step might have, before its other chunks are known."""


@final
class Speculation:
    """`workers.scheduler.Proposer` over one `source` of drafts. `depth` is the number of drafts of
    each sequence; None: the number that gives the best pace. `draft_depth` says for a source that
    drafts behind steps how many, and `taking_in` behind which sequences; None: behind all.
    `promised`: tokens of a pass as the drafter's makers found them.
    """

    def __init__(
        self,
        source: DraftSource,
        policy: SpeculationPolicy,
        depth: int | None = None,
        draft_depth: DraftDepth | None = None,
        promised: float | None = None,
        taking_in: TakingIn | None = None,
    ) -> None:
        self.taking_in = taking_in
        self.counters = DraftCounters()
        self.source = source
        self.policy = policy
        self.draft_depth = draft_depth
        self.promised = promised
        self._depth = depth
        self._last_depth = 0
        self._is_trial = False
        self._num_unverified = 0
        self._offers: dict[int, Offer] = {}
        self._had_offers = False

    def summary(self) -> DraftResults:
        """See `Proposer`."""
        seen = self.counters
        return DraftResults(
            self.source.name,
            seen.num_passes,
            seen.num_tokens,
            tuple(seen.verified),
            tuple(seen.accepted),
            round(seen.depth, 2),
            round(seen.gain, 3),
        )

    def num_to_draft(self, num_sequences: int, room: int) -> int:
        """See `Proposer`."""
        if not self.source.drafts_behind:
            return 0
        if self._depth is not None:
            return self._depth
        if self.draft_depth is None or (self.taking_in is not None and self.taking_in.sleeps):
            return 0
        # Chosen as if all sequences were taken in: the others will end, and new ones are taken in.
        return self.draft_depth.choose(num_sequences, room)

    def take_in(self, chunks: list[Chunk]) -> tuple[list[Chunk], bool]:
        """See `Proposer`."""
        taking, depth = self.taking_in, self.draft_depth
        if taking is None or depth is None:
            return chunks, True
        if taking.has_new:
            taking.decide(chunks, depth.saved_s(len(chunks)))
            if taking.is_trial:
                depth.try_now()
        takes = taking.planned(chunks, is_resting=depth.mode is Mode.RESTING)
        return [_asked(chunk, taking) for chunk in chunks], takes

    def warning(self) -> str:
        """A sentence where far fewer drafts are accepted than was promised; else empty."""
        if self.promised is None or self.counters.verified[0] < _JUDGED_BEHIND:
            return ""
        length = self.source.expected_length()
        if length is None or length - 1 >= _LEAST_OF_PROMISED * (self.promised - 1):
            return ""
        return (
            f"{length:.2f} tokens a pass are expected of full depth, and its card promises "
            f"{self.promised:.2f}: is it made for this model, its generation and its chat template?"
        )

    def fit(self) -> Fit:
        """The learned fit, to be kept for the next engine."""
        policy, depth = self.policy, self.draft_depth
        own = Fit(
            ahead_sizes=policy.ahead.sizes,
            sizes=policy.awaiting.sizes,
            ahead=policy.ahead.export(),
            awaiting=policy.awaiting.export(),
            drafting={} if depth is None else depth.times.export(),
            expense=Expense() if self.taking_in is None else self.taking_in.expense,
        )
        return self.source.fitted(own)

    def start(self, seq: int, token_ids: array[int], shared_from: int | None) -> None:
        """See `Proposer`."""
        self.source.start(seq, token_ids, shared_from)
        if self.taking_in is not None:
            self.taking_in.start(seq, len(token_ids))

    def end(self, seq: int) -> None:
        """See `Proposer`."""
        self.source.end(seq)
        if self.taking_in is not None:
            self.taking_in.end(seq)
        self._offers.pop(seq, None)

    def waits(self, candidates: Sequence[DraftCandidate]) -> bool:
        """See `Proposer`. The offers of the known tokens stand for those behind the token in
        flight.
        """
        self._had_offers = False
        if not candidates or not (self.policy.looks() or self._depth):
            return False
        offers = self.source.offers(candidates)
        self._had_offers = bool(offers)
        if self._depth is not None:
            return self._had_offers
        chances = [offer.chances for offer in offers]
        return self.policy.wants(chances, len(candidates), _ANY_ROOM)

    def propose(
        self, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`."""
        offers = self.source.offers(candidates)
        self._had_offers = bool(offers)
        depths = self._depths(offers, len(candidates), room)
        self._offers = {
            offer.seq: offer.cut(depth)
            for offer, depth in zip(offers, depths, strict=True)
            if depth
        }
        return {seq: offer.ids for seq, offer in self._offers.items()}

    def propose_ahead(
        self, in_flight: StepPlan, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`. Trials and measurements do not run ahead: each is judged by its step."""
        is_steady = self.draft_depth is None or self.draft_depth.mode is Mode.DRAFTING
        if not (self.source.drafts_behind and is_steady):
            return {}
        offers = self.source.offers_behind(in_flight, candidates)
        self._is_trial = False
        depths = self._depths(offers, len(candidates), room)
        return {
            offer.seq: offer.ids[:depth]
            for offer, depth in zip(offers, depths, strict=True)
            if depth
        }

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """See `Proposer`."""
        answers = {item.seq: len(item.ids) for item in result.sampled}
        if self.taking_in is not None:
            self.taking_in.answered(answers)
        num_drafts = 0
        for chunk in plan.chunks:
            if not chunk.samples or chunk.length != 1:
                continue
            num_drafts += len(chunk.drafts)
            num_ids = answers.get(chunk.seq, 0)
            if num_ids:
                self.counters.add(len(chunk.drafts), num_ids)
            offer = self._offers.pop(chunk.seq, None)
            if self.source.drafts_behind:  # the current offer may be for the next step
                offer = Offer(chunk.seq, chunk.drafts, ())
            if offer is not None and chunk.drafts and num_ids:
                self.source.verified(offer.cut(len(chunk.drafts)), num_ids - 1)
        self.source.planned(plan)
        self._drafted(max([chunk.num_to_draft for chunk in plan.chunks], default=0))
        self.policy.planned(num_drafts, had_offers=self._had_offers)

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
        num_sequences, num_rows = len(plan.chunks), sum([chunk.num_rows for chunk in plan.chunks])
        verifies = num_rows > num_sequences
        has_prompts = any(chunk.length != 1 for chunk in plan.chunks)
        if self.draft_depth is not None:
            self._pass_took(drafting, num_rows, seconds, has_prompts=has_prompts)
        if has_prompts:
            return
        verify_s = max(_LEAST_S, seconds - drafting.seconds)
        # Steps that verify take as long ahead as not ahead, except for the host's part.
        is_bare = not verifies and not drafting.depth
        self.policy.took(num_rows, verify_s, is_ahead=is_ahead and not verifies, is_bare=is_bare)
        bare_s = self.policy.ahead.seconds(num_sequences)
        if bare_s is None or is_bare:
            return
        self.counters.took(seconds, bare_s * num_tokens / num_sequences)
        if verifies and self.draft_depth is not None:
            self.draft_depth.verified(num_sequences, num_tokens, seconds)

    def _pass_took(
        self, drafting: DraftTiming, num_rows: int, seconds: float, *, has_prompts: bool
    ) -> None:
        """A draft pass over `num_rows` rows, in a step of `seconds`."""
        assert self.draft_depth is not None
        times, taking = self.draft_depth.times, self.taking_in
        if drafting.depth and not (has_prompts and taking is not None):
            times.add(*drafting)
        if taking is None:
            return
        taking.took(seconds, drafting.seconds)
        # Less what a pass without prompts takes, which is 0 until one was measured.
        bare_s = times.seconds(max(1, drafting.num_sequences), max(1, drafting.depth))
        if has_prompts and drafting.seconds and bare_s:
            taking.took_prompt(num_rows, drafting.seconds - bare_s)

    def _drafted(self, depth: int) -> None:
        """Each sequence has `depth` drafts now."""
        self._last_depth = depth
        self._is_trial = False
        if self.draft_depth is not None:
            self._is_trial = depth > 0 and self.draft_depth.mode is Mode.TRYING
            self.draft_depth.planned(depth)

    def _depths(self, offers: Sequence[Offer], num_sequences: int, room: int) -> list[int]:
        if self._depth is None and not self._is_trial:
            chances = [offer.chances for offer in offers]
            times = None if self.draft_depth is None else self.draft_depth.times
            draft_s = 0.0 if times is None else times.seconds(num_sequences, self._last_depth)
            choice = self.policy.choose(chances, num_sequences, room, draft_s)
            self.policy.found(choice)
            is_left = self.source.drafts_behind and offers and not choice.num_drafts
            self._num_unverified = self._num_unverified + 1 if is_left else 0
            if self._num_unverified < _MOST_UNVERIFIED:
                return choice.depths
        depths, most = [], _ANY_ROOM if self._depth is None else self._depth
        for offer in offers:
            depths.append(min(len(offer.ids), most, room))
            room -= depths[-1]
        return depths


def _asked(chunk: Chunk, taking: TakingIn) -> Chunk:
    """The chunk, without drafts behind it if its sequence is not taken in."""
    if not chunk.num_to_draft or taking.is_awake(chunk.seq):
        return chunk
    return msgspec.structs.replace(chunk, num_to_draft=0)
