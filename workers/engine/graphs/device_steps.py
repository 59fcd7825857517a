"""Steps on a card: launched while the one before is still computed.

Owns the choice between a decode step, a mixed step in a captured bucket, and a step that is
launched kernel by kernel. Must not know plans, what a kernel does, nor which options an engine has:
without recurrent states, a drafter, a host tier or graphs it has objects that do nothing. Sampled
tokens stay in the sequence tables; the host reads a copy of them a step later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, final

import msgspec
import torch
from torch import Tensor

from kernels.attention import SharingCosts, sharing_costs, short_contexts
from kernels.choose import uses_triton
from kernels.fp8 import DualWeight, Weight
from protocol.messages import EngineFacts
from workers.engine.drafting.drafter import Drafter
from workers.engine.graphs.buckets import GraphBucket, buckets_of, need_of
from workers.engine.graphs.capture import Capture, CudaCapture, held_on_card, run_again, sparing
from workers.engine.graphs.capture_order import CaptureOrder, capture_sizes
from workers.engine.graphs.captured_steps import graphs_of
from workers.engine.graphs.decode_step import DecodeStep
from workers.engine.graphs.device_drafts import Draft, drafts_of
from workers.engine.graphs.mixed_step import MixedStep
from workers.engine.graphs.token_draws import TokenDraws
from workers.engine.memory.out_of_memory import shortage
from workers.engine.models.description import Experts
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.step.batch import (
    PagedBatch,
    PagedRows,
    SequenceState,
    make_paged_batch,
    paged_rows,
)
from workers.engine.step.draft_pass import draft_pass_of
from workers.engine.step.draws import DrawKind
from workers.engine.step.sampler import Picked, Sampler
from workers.engine.step.shared_prefixes import SharedPrefixes
from workers.engine.step.states import States, states_of
from workers.engine.step.steps import Launched, TokensLost, Unsampled, fetch
from workers.engine.step.table_updates import bring_up_to_date
from workers.engine.step.tables import HELD_LAST, SequenceTables, TableRow
from workers.engine.tier.copies import NoSwapper, Swapper
from workers.scheduler import ON_CARD, Chunk, DraftTiming, SequenceMoves

_SHORT_BYTES: Final = 256 * 2**20
"""The most bytes of a layer's weights for which few programs of attention pay, on an H200: with
386 MB (8B, 16 bits) a layer took 1.1 us more by programs of 256 tokens.
"""

_ONE_TILE: Final = 256
_ONE_TILE_BYTES: Final = 128 * 2**20
"""The same bound for contexts that fit one program, which needs nearly a whole multiprocessor: with
193 MB (8B, 8 bits) a layer takes 2.9 us more than by two of 128 tokens, with 31 MB (0.6B) 0.8 less.
"""


class _Work(NamedTuple):
    """The work of a step that follows the launch of its network: the sampling of its tokens, then
    the draft pass.
    """

    draw: Callable[[], Picked]
    draft: Draft


@final
class DeviceSteps:
    """`workers.engine.step.steps.EngineSteps` for CUDA. Tests also run it on a CPU."""

    lookahead: Final = 1

    def __init__(
        self,
        model: Network,
        cache: KvCache,
        facts: EngineFacts,
        capture: Capture | None = None,
        *,
        spare_bytes: int = 0,
        sharing: SharingCosts | None = None,
        drafter: Drafter | None = None,
        verifies: bool = False,
    ) -> None:
        """`facts` limit the size of a step, and with it the graphs. `capture` None: the device's
        own (none on a CPU), which leaves `spare_bytes` of memory to steps without a graph.
        `sharing` None: the device's own costs; decodes share prefixes where that saves time.
        `verifies`: also make graphs for steps with drafts.
        """
        max_rows = min(facts.max_seqs, facts.token_budget)
        self.used_graph = False
        self._model = model
        self._cache = cache
        self._nothing = Picked((), torch.empty(0, dtype=torch.int64, device=model.device))
        max_blocks = -(-facts.context_length // cache.block_size)
        draft_pass = draft_pass_of(model, cache, drafter)
        self._tables = SequenceTables(
            max_rows, max_blocks, cache.dummy_block, model.device, draft_pass.max_depth,
            cache.dummy_window_block if cache.has_windows else None,
        )  # fmt: skip
        self.drafter = drafter
        sampler = Sampler(
            model.config.vocab_size, max_rows, model.device, facts.token_budget, model.place
        )
        self._token_draws = TokenDraws(sampler, self._tables)
        does_verify = verifies or drafter is not None
        self._kept = states_of(model, max_rows, facts.snapshots, verifies=does_verify)
        self._swapper: Swapper | NoSwapper = NoSwapper()
        self._decode_step = DecodeStep(
            model, cache, self._tables, sampler.draws, max_rows, self._kept, draft_pass
        )
        held = _buckets(model, max_rows, facts.token_budget, verifies=does_verify)
        self._verified_rows = tuple([bucket.num_rows for bucket in held if bucket.verifies])
        draft_pass.keep_in_place(max([max_rows, *(bucket.num_rows for bucket in held)]))
        costs = (sharing or _sharing_on(model, cache)) if _can_share(model) else None
        self._prefixes = SharedPrefixes(costs, cache.block_size)
        self._mixed_step = MixedStep(
            model,
            cache,
            self._tables,
            sampler.draws,
            held,
            shares=costs is not None,
            states=self._kept,
            draft_pass=draft_pass,
        )
        self._drafts = drafts_of(
            draft_pass, model, cache, self._tables, self._decode_step, self._mixed_step, self._kept
        )
        self._graphs = graphs_of(
            CaptureOrder(
                0 if model.invariant else max_rows,
                held,
                shares=costs is not None,
                short=_short_contexts(model, cache),
            ),
            self._decode_step,
            self._mixed_step,
            capture or _capture_on(model, spare_bytes),
            drafter,
        )

    def start(self, states: Sequence[SequenceState]) -> None:
        """See `EngineSteps`."""
        self._tables.start([state.seq for state in states])

    def end(self, seqs: Sequence[int]) -> None:
        """See `EngineSteps`."""
        self._tables.end(seqs)
        self._kept.end(seqs)
        self._prefixes.forget(seqs)
        self._token_draws.forget(seqs)

    def move(self, moves: SequenceMoves) -> None:
        """See `EngineSteps`."""
        self._swapper.move(moves, self._slot_of)

    def swap_with(self, swapper: Swapper) -> None:
        """See `EngineSteps`."""
        self._swapper = swapper

    @property
    def kept(self) -> States:
        """See `EngineSteps`."""
        return self._kept

    @torch.inference_mode()
    def launch(
        self, chunks: Sequence[Chunk], states: dict[int, SequenceState], *, takes_in: bool = True
    ) -> Launched | Unsampled:
        """See `EngineSteps`. A step that samples nothing returns a `Launched` too, so that it is
        waited for: otherwise all chunks of a long prompt would be launched at once, and a new
        request would wait for all of them.
        """
        del takes_in  # a drafter on a card takes in every step
        chunks = [self._with_ids(chunk, states[chunk.seq]) for chunk in chunks]
        if not self._can_move(chunks):
            chunks = self._moved(chunks)
        rows = bring_up_to_date(self._tables, chunks)
        for chunk, row in zip(chunks, rows, strict=True):
            if row.next_position == HELD_LAST:
                # Either the host knows the accepted drafts by now, or the chunk may move.
                known = len(states[chunk.seq].tokens) - 1
                row.next_position = max(known, chunk.start)
        self._kept.restore(chunks, self._slot_of)
        num_folds = self._kept.num_folds(chunks)
        if num_folds <= len(chunks) and self._are_decodes(chunks, rows):
            work = self._decode(chunks, rows, states)
        else:
            work = self._mixed(chunks, states, num_folds)
        self._kept.computed(chunks)
        self._kept.save(chunks, self._slot_of)
        awaits = any(_awaits_token(chunk, states[chunk.seq]) for chunk in chunks)
        # Drawn before `next_position` moves on: if memory runs out here the step is launched again.
        picked = None if awaits else work.draw()
        for chunk, row in zip(chunks, rows, strict=True):
            if chunk.drafts or chunk.may_move:
                row.next_position = HELD_LAST
            else:
                row.next_position = chunk.start + chunk.length if chunk.samples else -1
        if picked is None:
            return Unsampled(lambda: self._finished(work, work.draw()))
        return self._finished(work, picked)

    def _finished(self, work: _Work, picked: Picked) -> Launched:
        """Launch the copy of the tokens to the host, then the draft pass, so that the copy does not
        wait for it. The draft pass of the step before ran ahead of this copy, so its time belongs
        to this step.
        """
        launched = _fetched(picked, self._drafts.take_timing())
        work.draft(picked)
        return launched

    @property
    def state_bytes(self) -> int:
        """See `EngineSteps`."""
        return self._kept.num_bytes()

    @property
    def verified_rows(self) -> tuple[int, ...]:
        """See `EngineSteps`."""
        return self._verified_rows

    @property
    def num_graphs(self) -> tuple[int, int]:
        """How many graphs are captured, and how many are wanted; (0, 0) without captures."""
        return self._graphs.counts

    @property
    def has_pending_captures(self) -> bool:
        """See `EngineSteps`."""
        return self._graphs.has_pending_captures

    @torch.inference_mode()
    def prepare(self, *, pending_only: bool) -> bool:
        """See `EngineSteps`."""
        return self._graphs.prepare(pending_only=pending_only)

    @torch.inference_mode()
    def hidden(
        self, chunks: Sequence[Chunk], states: dict[int, SequenceState]
    ) -> list[tuple[Chunk, Tensor]]:
        """See `EngineSteps`."""
        bring_up_to_date(self._tables, chunks)
        self._kept.restore(chunks, self._slot_of)
        rows = self._rows(chunks, states)
        batch = self._batch(rows)
        embedded = self._model.embed(self._known(batch))
        moved = self._kept.card_step(rows, self._slot_of)
        hidden = self._model.forward(embedded, batch.plan, self._cache, states=moved)
        self._kept.save(chunks, self._slot_of)
        parts = torch.split(hidden, [chunk.num_rows for chunk in batch.chunks])
        return list(zip(batch.chunks, parts, strict=True))

    def _slot_of(self, seq: int) -> int:
        return self._tables.rows[seq].index

    def _are_decodes(self, chunks: Sequence[Chunk], rows: Sequence[TableRow]) -> bool:
        """Whether a decode graph can compute the step: every chunk is one token, which the tables
        hold.
        """
        return not self._model.invariant and all(
            chunk.num_rows == 1
            and row.next_position == chunk.start
            and not chunk.may_move
            and not (self._decode_step.takes_in and chunk.num_to_draft)
            for chunk, row in zip(chunks, rows, strict=True)
        )

    def _decode(
        self, chunks: Sequence[Chunk], rows: Sequence[TableRow], states: dict[int, SequenceState]
    ) -> _Work:
        num_rows, order = len(chunks), self._prefixes.order(chunks)
        if order is not None:
            chunks, rows = [chunks[i] for i in order.rows], [rows[i] for i in order.rows]
        members = [states[chunk.seq] for chunk in chunks]
        kind = self._token_draws.arrange(members)
        starts = [chunk.start for chunk in chunks]
        graph = self._graphs.for_decodes(num_rows, kind, max(starts), shares=order is not None)
        self.used_graph = self._graphs.holds(graph)
        indices = [row.index for row in rows]
        self._decode_step.share(graph, order, indices)
        positions, table_rows = self._decode_step.fill(starts, indices, self._kept.folds(chunks))
        result = self._graphs.run(graph)[:num_rows]
        draft = self._drafts.behind_decodes(graph, num_rows, chunks)
        if kind is not DrawKind.GENERAL:
            picked = Picked(tuple([state.seq for state in members]), result)
            return _Work(lambda: picked, draft)
        return _Work(
            partial(self._token_draws.draw, result, members, positions + 1, table_rows), draft
        )

    def _mixed(
        self, chunks: Sequence[Chunk], states: dict[int, SequenceState], num_folds: int = 0
    ) -> _Work:
        verifies = self._verifies(chunks)
        rows = self._rows(chunks, states) if verifies else self._sharing_rows(chunks, states)
        invariant = self._model.invariant
        bucket = None
        if not self._kept.has_stops(chunks):
            need = need_of(chunks, invariant=invariant, verifies=verifies)
            if verifies:  # a bucket has room to fold as many rows as its segments have
                need = need._replace(segment_rows=max(need.segment_rows, num_folds))
            bucket = self._graphs.for_mixed(need)
        if bucket is not None and not self._mixed_step.holds(bucket, rows):
            bucket = None
        if bucket is None and any(chunk.may_move for chunk in chunks):
            return self._mixed(self._moved(chunks), states, num_folds)
        self.used_graph = bucket is not None
        if bucket is None:
            return self._unpadded(rows, states)
        draws = verifies and self._token_draws.are_plain(rows, states)
        positions, table_rows = self._mixed_step.fill(bucket, rows, draws=draws)
        logits = self._graphs.run(bucket)[: len(rows.last_rows)]
        draft = self._drafts.behind_bucket(bucket, rows, states)
        if not rows.sampling:
            return _Work(lambda: self._nothing, draft)
        if draws:
            picked = self._mixed_step.picked(bucket, rows)
            return _Work(lambda: picked, draft)
        return _Work(
            partial(self._token_draws.sample, logits, rows, states, positions, table_rows), draft
        )

    def _can_move(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the card itself can move the chunks that may move."""
        if not any(chunk.may_move for chunk in chunks):
            return True
        return self._drafts.can_move(verifies=self._verifies(chunks))

    def _moved(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks at the positions where they really begin. Waits for the step before, to read
        how many drafts it accepted.
        """
        accepted, found = self._tables.num_accepted.tolist(), list(chunks)
        for index, chunk in enumerate(chunks):
            if chunk.may_move:
                row = self._tables.rows[chunk.seq]
                row.next_position = start = chunk.start + accepted[row.index]
                found[index] = msgspec.structs.replace(chunk, start=start, may_move=0)
        return found

    def _unpadded(self, rows: PagedRows, states: dict[int, SequenceState]) -> _Work:
        batch = self._batch(rows)
        ids = self._known(batch)  # read before the draw overwrites the last tokens
        embedded = self._model.embed(ids)
        moved = self._kept.card_step(rows, self._slot_of)
        hidden, kept = self._drafts.forward(embedded, batch.plan, batch.last_rows, moved)
        draft = self._drafts.behind_batch(ids, batch, kept, states)
        if not batch.sampling:
            return _Work(lambda: self._nothing, draft)
        logits = self._model.logits(hidden)
        sampled = batch.sampled_positions, batch.table_rows
        return _Work(partial(self._token_draws.sample, logits, rows, states, *sampled), draft)

    def _with_ids(self, chunk: Chunk, state: SequenceState) -> Chunk:
        """The chunk, where a grammar must check its drafts with their ids, cut at the first that
        the grammar refuses. That reads the ids from the card.
        """
        if not chunk.drafts:
            return chunk
        # A chunk that saves a state verifies no drafts.
        chunk = self._kept.verifiable(chunk, saves=bool(chunk.saves))
        if not chunk.drafts or chunk.drafts[0] != ON_CARD or state.grammar is None:
            return chunk
        row = self._tables.rows[chunk.seq].index
        drafts = self._tables.drafts[row, : len(chunk.drafts)].tolist()
        num_allowed = state.grammar.num_allowed(state.tokens[state.num_prompt :], drafts)
        return msgspec.structs.replace(chunk, drafts=tuple(drafts[:num_allowed]))

    def _verifies(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the step runs as one that verifies, whose rows are all segments: with drafts, and
        with a drafting network always. For hybrids only with drafts, because graphs that verify
        compute no prompts of hybrids.
        """
        return self._drafts.verifies_all or any(chunk.drafts for chunk in chunks)

    def _sharing_rows(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> PagedRows:
        """The rows of a step, the decodes in the order in which they share prefixes."""
        singles = [chunk for chunk in chunks if chunk.num_rows == 1]
        order = self._prefixes.order(singles) if len(singles) > 1 else None
        if order is None:
            return self._rows(chunks, states)
        longer = [chunk for chunk in chunks if chunk.num_rows > 1]
        rows = self._rows([*[singles[i] for i in order.rows], *longer], states)
        tables = [self._tables.rows[chunk.seq].index for chunk in rows.chunks[: rows.num_decodes]]
        return replace(rows, runs=order.on_card(tables))

    def _rows(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> PagedRows:
        # Graphs that verify have segments only.
        bare = self._model.invariant or self._verifies(chunks)
        size = self._cache.block_size
        return paged_rows(chunks, states, self._tables, size, without_decodes=bare)

    def _batch(self, rows: PagedRows) -> PagedBatch:
        prepare = partial(self._model.prepared, cache=self._cache)
        return make_paged_batch(rows, self._tables, prepare, invariant=self._model.invariant)

    def _known(self, batch: PagedBatch) -> Tensor:
        return self._tables.known(batch.token_ids, batch.plan.table_rows)


def _buckets(
    model: Network, max_rows: int, token_budget: int, *, verifies: bool
) -> tuple[GraphBucket, ...]:
    config = model.config
    return buckets_of(
        max_rows,
        token_budget,
        config.active_weights // config.num_layers,
        is_fp8=model.weights.is_fp8,
        is_mixture=bool(config.mixtures),
        verifies=verifies,
        invariant_sizes=capture_sizes(max_rows) if model.invariant else None,
    )


def _awaits_token(chunk: Chunk, state: SequenceState) -> bool:
    """Whether the chunk's draw must wait: it has a grammar, and the host does not know the token
    behind which it samples.
    """
    is_known = chunk.start + chunk.length <= len(state.tokens)
    return state.grammar is not None and chunk.samples and not is_known


def _fetched(picked: Picked, drafting: Callable[[], DraftTiming]) -> Launched:
    """Launch the copy of the tokens to the host."""
    try:
        return fetch(picked, drafting)
    except (RuntimeError, MemoryError) as error:
        raise TokensLost(f"the tokens of a step cannot be read: {shortage(error)}") from error


def _capture_on(model: Network, spare_bytes: int) -> Capture | None:
    """The device's own capture. None where plain torch computes: it reads back from the device,
    which a graph cannot.
    """
    device, ranks = model.device, model.ranks
    if not uses_triton(torch.empty(0, device=device)):
        return None
    if device.type != "cuda":
        return run_again
    agreed = bool if ranks is None else ranks.agreed
    return sparing(CudaCapture(), spare_bytes, held_on_card, agreed)


def _can_share(model: Network) -> bool:
    """Whether decodes may share prefixes. With `invariant` a row's result must not depend on other
    rows, and neither layers with windows nor heads of several sizes share.
    """
    config = model.config
    return not model.invariant and not config.is_scoped and len(config.head_sizes) == 1


def _short_contexts(model: Network, cache: KvCache) -> dict[int, tuple[int, ...]]:
    """By the number of decodes, for which contexts they have graphs of their own: where all layers
    have the same heads, with windows or without, and reading a layer's weights does not outlast
    what such a graph saves.
    """
    config = model.config
    if config.is_latent or len({sizes[:3] for sizes in config.head_sizes}) != 1:
        return {}
    found = {}
    for rows, known in short_contexts(cache.keys_of(0)).items():
        layer = _read_bytes(model, rows) / config.num_layers
        fitting = [
            longest
            for longest in known
            if layer <= (_ONE_TILE_BYTES if longest <= _ONE_TILE else _SHORT_BYTES)
        ]
        if fitting:
            found[rows] = tuple(fitting)
    return found


def _read_bytes(model: Network, num_rows: int) -> int:
    """The bytes of weights that `num_rows` rows read in all layers. In a mixture only the chosen
    experts count, and each row is taken to choose its experts independently.
    """
    total = 0.0
    for layer, weights in zip(model.config.layers, model.weights.layers, strict=True):
        mlp, share = layer.mlp, 1.0
        if isinstance(mlp, Experts):
            share -= (1 - mlp.routing.num_active / mlp.num_experts) ** num_rows
        total += _bytes_of(weights.qkv, weights.out)
        total += share * _bytes_of(weights.gate_up, weights.down)
    return int(total)


def _bytes_of(*products: Weight) -> int:
    """The bytes of these products, in the form that serves a single row."""
    return sum(
        [
            each.of_rows(1).nbytes if isinstance(each, DualWeight) else each.nbytes
            for each in products
        ]
    )


def _sharing_on(model: Network, cache: KvCache) -> SharingCosts | None:
    keys, _ = cache.layers[0]
    if not uses_triton(keys):
        return None
    heads = model.config.attention.num_heads
    return sharing_costs(heads, keys, model.weights.embedding.dtype)
