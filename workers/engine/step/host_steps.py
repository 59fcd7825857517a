"""Steps on the CPU: computed at once, with the tokens that the host knows.

Owns the order batch -> network -> sampler. Must not know plans or the card.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, final

import msgspec
import torch
from torch import Tensor

from kernels.attention import AttentionPlan, Segment, plan_attention
from protocol.messages import EngineFacts
from workers.engine.drafting.drafter import Drafter
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.step.batch import SequenceState, StepBatch, make_batch
from workers.engine.step.draft_pass import (
    DraftPass,
    StepRows,
    following_ids,
)
from workers.engine.step.host_slots import HostSlots
from workers.engine.step.sampler import Picked, Sampler, VerifiedDrafts
from workers.engine.step.states import States
from workers.engine.step.steps import Launched
from workers.engine.tier.copies import NoSwapper, Swapper
from workers.scheduler import ON_CARD, Chunk, SequenceMoves


@final
class HostSteps:
    """`workers.engine.step.steps.EngineSteps` without lookahead: on a CPU nothing would run beside
    it.
    """

    lookahead: Final = 0

    def __init__(
        self,
        model: Network,
        cache: KvCache,
        facts: EngineFacts,
        drafter: Drafter | None = None,
        *,
        verifies: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Steps may have drafts if `verifies`, or with a `drafter`, whose passes `clock` times."""
        self._model = model
        self._cache = cache
        self._window = model.config.kept_window
        limits = facts.max_seqs, model.device, facts.token_budget, model.place
        self._sampler = Sampler(model.config.vocab_size, *limits)
        self.drafter = drafter
        self._draft_pass = None if drafter is None else DraftPass(model, cache, drafter, clock)
        self._drafts: dict[int, tuple[int, ...]] = {}
        self._slots = HostSlots(model, facts, verifies=verifies or drafter is not None)
        self._swapper: Swapper | NoSwapper = NoSwapper()

    def start(self, states: Sequence[SequenceState]) -> None:
        """See `EngineSteps`."""
        self._slots.start([state.seq for state in states])

    def end(self, seqs: Sequence[int]) -> None:
        """See `EngineSteps`."""
        self._slots.end(seqs)
        self._sampler.forget(seqs)
        for seq in seqs:
            self._drafts.pop(seq, None)

    def move(self, moves: SequenceMoves) -> None:
        """See `EngineSteps`."""
        self._swapper.move(moves, self._slots.slot_of)

    def swap_with(self, swapper: Swapper) -> None:
        """See `EngineSteps`."""
        self._swapper = swapper

    @property
    def kept(self) -> States:
        """See `EngineSteps`."""
        return self._slots.kept

    @torch.inference_mode()
    def launch(
        self,
        chunks: Sequence[Chunk],
        states: dict[int, SequenceState],
        *,
        takes_in: bool = True,
    ) -> Launched | None:
        """See `EngineSteps`."""
        chunks = [self._with_ids(chunk, states[chunk.seq]) for chunk in chunks]
        batch = self._batch(chunks, states)
        if self._draft_pass is not None and takes_in:
            return self._launch_drafting(self._draft_pass, batch, states)
        hidden = self._forward(batch, batch.last_rows)
        return Launched(self._pick(hidden, batch, states)) if batch.sampling else None

    def _pick(self, hidden: Tensor, batch: StepBatch, states: dict[int, SequenceState]) -> Picked:
        logits = self._model.logits(hidden)
        checked = [VerifiedDrafts(states[chunk.seq], chunk.drafts) for chunk in batch.sampling]
        picked = self._sampler.draw(logits, checked, batch.sampled_positions)
        self._sampler.count(picked)
        return picked

    def _launch_drafting(
        self, draft_pass: DraftPass, batch: StepBatch, states: dict[int, SequenceState]
    ) -> Launched:
        embedded = self._model.embed(batch.token_ids)
        slots = self._slots.restore(batch.chunks)
        hidden, kept = draft_pass.forward(embedded, batch.plan, batch.last_rows, slots)
        self._slots.save(batch.chunks)
        picked = Picked((), batch.last_rows)
        if batch.sampling:
            picked = self._pick(hidden, batch, states)
        begun = draft_pass.now()
        rows = StepRows(
            batch.token_ids,
            torch.from_numpy(following_ids(batch.chunks, states)),
            batch.plan.positions,
            batch.last_rows,
            batch.sampled_positions,
            batch.plan,
        )
        drafting, drafted = draft_pass.draft(
            rows, kept, picked, batch.sampling, self._plan_rows, begun
        )
        for chunk, ids in zip(drafting, drafted.ids.tolist(), strict=True):
            self._drafts[chunk.seq] = tuple(ids)
        return Launched(picked, drafting=draft_pass.take_timing())

    def _plan_rows(
        self, chunks: Sequence[Chunk], positions: Tensor, num_rows: int
    ) -> AttentionPlan:
        segments = [
            Segment(start, num_rows, chunk.block_ids)
            for chunk, start in zip(chunks, positions.tolist(), strict=True)
        ]
        cpu, invariant = self._model.device, self._model.invariant
        return plan_attention(segments, self._cache.block_size, cpu, invariant=invariant)

    def _with_ids(self, chunk: Chunk, state: SequenceState) -> Chunk:
        """The chunk with the ids of its drafts, cut at the first that its grammar refuses."""
        if not chunk.drafts:
            return chunk
        # A chunk that saves a state within or behind its rows verifies no drafts.
        saves = bool(chunk.saves) and chunk.saves[-1][0] > chunk.start
        chunk = self._slots.kept.verifiable(chunk, saves=saves)
        if not chunk.drafts or chunk.drafts[0] != ON_CARD:
            return chunk
        drafts = self._drafts.get(chunk.seq, ())[: len(chunk.drafts)]
        if state.grammar is not None:
            outputs = state.tokens[state.num_prompt :]
            drafts = drafts[: state.grammar.num_allowed(outputs, drafts)]
        return msgspec.structs.replace(chunk, drafts=drafts)

    @property
    def state_bytes(self) -> int:
        """See `EngineSteps`."""
        return self._slots.num_bytes()

    @property
    def verified_rows(self) -> tuple[int, ...]:
        """See `EngineSteps`."""
        return ()

    @property
    def used_graph(self) -> bool:
        """False: a CPU has no graphs."""
        return False

    @property
    def has_pending_captures(self) -> bool:
        """False: there is nothing to prepare."""
        return False

    def prepare(self, *, pending_only: bool) -> bool:  # noqa: ARG002 - the seam's
        """Do nothing: there is nothing to prepare."""
        return False

    @torch.inference_mode()
    def hidden(
        self, chunks: Sequence[Chunk], states: dict[int, SequenceState]
    ) -> list[tuple[Chunk, Tensor]]:
        """See `EngineSteps`."""
        batch = self._batch(chunks, states)
        parts = torch.split(self._forward(batch, None), [chunk.num_rows for chunk in batch.chunks])
        return list(zip(batch.chunks, parts, strict=True))

    def _batch(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> StepBatch:
        tokens = {chunk.seq: states[chunk.seq].tokens for chunk in chunks}
        invariant = self._model.invariant
        size = self._cache.block_size
        return make_batch(chunks, tokens, size, invariant=invariant, window=self._window)

    def _forward(self, batch: StepBatch, rows: Tensor | None) -> Tensor:
        hidden, states = self._model.embed(batch.token_ids), self._slots.restore(batch.chunks)
        last = self._model.forward(hidden, batch.plan, self._cache, rows, states=states)
        self._slots.save(batch.chunks)
        return last
