"""A decode step at fixed addresses: from the tokens that the card holds to those it samples.

Owns the step's input and the order of its operations. Must not know sequences or plans, nor whether
it is captured. It serves every step of up to its number of rows; those that are not used stand at
no position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from kernels.attention import NO_ROW, PagedPlan, SegmentBucket, bucket_for
from kernels.embed_rows import embed_rows
from kernels.sample import pick
from workers.engine.graphs.capture_order import Decode
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.models.state_slots import StateSlots, StateStep
from workers.engine.step.batch import aligned, send_into
from workers.engine.step.draft_pass import DraftPass
from workers.engine.step.draws import DrawTable, Kind
from workers.engine.step.shared_prefixes import SharedOrder
from workers.engine.step.spans import decode_plan
from workers.engine.step.tables import SequenceTables


@final
class DecodeStep:
    """Steps of up to `max_rows` rows."""

    def __init__(
        self,
        model: Network,
        cache: KvCache,
        tables: SequenceTables,
        draws: DrawTable,
        max_rows: int,
        states: StateSlots | None = None,
        draft_pass: DraftPass | None = None,
    ) -> None:
        """`states` are those that a network with recurrent layers moves on. The drafter of
        `draft_pass` takes the rows in; where it cannot, this step `serves` none.
        """
        self._draft_pass = draft_pass
        self.serves = draft_pass is None or (draft_pass.takes_decodes and states is None)
        self._model = model
        self._states = states
        self._cache = cache
        self._tables = tables
        self._draws = draws
        self._rows = torch.zeros((2, aligned(max_rows)), dtype=torch.int32, device=model.device)
        num_words = self._bucket(max_rows).num_words
        self._work = torch.zeros(num_words, dtype=torch.int32, device=model.device)
        self._held: tuple[int, SharedOrder | None] = (0, None)

    def share(self, size: Decode, order: SharedOrder | None, table_rows: Sequence[int]) -> None:
        """What the rows of the next step share, if `size` does. Sent only when it is another than
        before.
        """
        held, held_order = self._held
        if not size.shares or (held == size.num_rows and held_order is order):
            return
        self._held = (0, None)  # memory may run out below
        bucket = self._bucket(size.num_rows)
        words = np.zeros(bucket.num_words, np.int32)
        runs = () if order is None else order.on_card(table_rows)
        bucket.lay_out((), size.num_rows, words, runs)
        send_into(self._work[: len(words)], words)
        self._held = (size.num_rows, order)

    def fill(self, positions: Sequence[int], table_rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The rows of the next step; returns both on the card, int32 [rows]."""
        num_rows = len(positions)
        sent = np.empty(self._rows.shape, np.int32)
        sent[0, :num_rows] = positions
        sent[0, num_rows:] = NO_ROW
        sent[1, :num_rows] = table_rows
        sent[1, num_rows:] = self._tables.dummy_row
        send_into(self._rows, sent)
        on_card = self._rows[:, :num_rows].unbind()
        return on_card[0], on_card[1]

    def clear(self, size: Decode) -> None:
        """No rows."""
        self.fill((), ())
        self.share(size, None, ())

    def run(self, size: Decode) -> Tensor:
        """The sampled ids int64 [rows], or for `Kind.GENERAL` the logits [rows, vocab]."""
        positions, table_rows = self._rows[:, : size.num_rows].unbind()
        bucket = self._bucket(size.num_rows)
        plan = PagedPlan(
            positions,
            table_rows,
            self._tables.block_tables,
            size.num_rows,
            work=bucket.work(self._work[: bucket.num_words]) if size.shares else None,
        )
        plan = self._model.prepared(plan, self._cache)
        model = self._model
        hidden = embed_rows(
            table_rows, self._tables.last_token, model.weights.embedding, model.embedding_scale
        )
        logits = self._model.logits(self._forward(hidden, plan))
        if size.kind is Kind.GENERAL:
            return logits
        draws = self._draws.rows(size.num_rows, filtered=size.kind is Kind.FILTERED)
        return pick(logits, draws, positions + 1, self._tables.last_token, table_rows)

    def _forward(self, hidden: Tensor, plan: PagedPlan) -> Tensor:
        if self._draft_pass is not None:
            return self._draft_pass.decode(hidden, plan)
        step, states = None, self._states
        if states is not None:
            step = StateStep(states, decode_plan(plan.positions, plan.table_rows))
        return self._model.forward(hidden, plan, self._cache, states=step)

    def _bucket(self, num_rows: int) -> SegmentBucket:
        keys, _ = self._cache.layers[0]
        heads, dtype = self._model.config.attention.num_heads, self._model.weights.embedding.dtype
        return bucket_for(0, 0, heads, keys, dtype, num_sharing=num_rows)
