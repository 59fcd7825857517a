"""A decode step at fixed addresses: from the last tokens, which the card holds, to the next ones.

Owns the step's input and the order of its operations. Must not know sequences or plans, nor whether
it is captured. It serves every step of up to its number of rows; unused rows have the position
`NO_ROW`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from kernels.attention import NO_ROW, PagedPlan, SegmentBucket, bucket_for
from kernels.pinned import to_device
from kernels.sample import pick
from workers.engine.graphs.capture_order import Decode
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.step.batch import Numbers, aligned, send_into
from workers.engine.step.draft_pass import DraftPass, NoDraftPass, StepRows
from workers.engine.step.draws import DrawKind, DrawTable
from workers.engine.step.shared_prefixes import SharedOrder
from workers.engine.step.spans import Words
from workers.engine.step.states import States
from workers.engine.step.tables import SequenceTables


@final
class DecodeStep:
    """Decode steps of up to `max_rows` rows."""

    def __init__(
        self,
        model: Network,
        cache: KvCache,
        tables: SequenceTables,
        draws: DrawTable,
        max_rows: int,
        states: States,
        draft_pass: DraftPass | NoDraftPass,
    ) -> None:
        """`takes_in`: the drafter of `draft_pass` takes the rows in within the step; otherwise
        steps keep what it needs.
        """
        self.takes_in = draft_pass.takes_decodes and not states.has_any
        self._model = model
        self._states = states
        self._draft_pass = draft_pass
        self._cache = cache
        self._tables = tables
        self._draws = draws
        self._rows = torch.zeros((4, aligned(max_rows)), dtype=torch.int32, device=model.device)
        self._token_ids = torch.zeros(max_rows, dtype=torch.int32, device=model.device)
        num_words = 0 if model.config.is_latent else self._bucket(max_rows).num_words
        self._work = torch.zeros(num_words, dtype=torch.int32, device=model.device)
        self._held: tuple[int, SharedOrder | None] = (0, None)

    def share(self, size: Decode, order: SharedOrder | None, table_rows: Sequence[int]) -> None:
        """Set what the rows of the next step share, for a `size` that shares. It is sent only if it
        has changed.
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

    def fill(
        self,
        positions: Sequence[int],
        table_rows: Sequence[int],
        folds: Words | Literal[0] = 0,
    ) -> tuple[Tensor, Tensor]:
        """Fill the input with the rows of the next step. `folds`: how many verified rows each folds
        into its recurrent state first. Returns positions and table rows on the card, int32 [rows].
        """
        num_rows = len(positions)
        sent = np.zeros(self._rows.shape, np.int32)
        sent[0, :num_rows] = positions
        sent[0, num_rows:] = NO_ROW
        sent[1, :num_rows] = table_rows
        sent[1, num_rows:] = self._tables.dummy_row
        sent[2, :num_rows] = folds
        sent[3] = np.cumsum(sent[2]) - sent[2]
        send_into(self._rows, sent)
        on_card = self._rows[:2, :num_rows].unbind()
        return on_card[0], on_card[1]

    def clear(self, size: Decode) -> None:
        """Fill the input with no rows."""
        self.fill((), ())
        self.share(size, None, ())

    def run(self, size: Decode) -> Tensor:
        """Compute the step: the sampled ids int64 [rows], or for `DrawKind.GENERAL` the logits
        [rows, vocab].
        """
        model, tables, last_token = self._model, self._tables, self._tables.last_token
        plan = self._plan(size)
        positions, table_rows = plan.positions, plan.table_rows
        hidden = model.embed_last(table_rows, last_token)
        step = self._states.decode_step(self._rows[:, : size.num_rows])
        if self.takes_in:
            last = self._draft_pass.decode(hidden, plan)
        else:
            self._draft_pass.keep_last(self._token_ids[: size.num_rows], last_token, table_rows)
            last, _ = self._draft_pass.forward(hidden, plan, None, step)
        logits = model.logits(last)
        if size.kind is DrawKind.GENERAL:
            return logits
        draws = self._draws.rows(size.num_rows, filtered=size.kind is DrawKind.FILTERED)
        return pick(logits, draws, positions + 1, tables.last_token, table_rows)

    def step_rows(self, size: Decode, num_rows: int, following: Numbers) -> StepRows:
        """The rows of the last run, with its padding, for the drafter."""
        plan, own = self._plan(size), torch.arange(num_rows, device=self._rows.device)
        behind = np.zeros(size.num_rows, np.int32)
        behind[:num_rows] = following
        return StepRows(
            self._token_ids[: size.num_rows].clamp(min=0).long(),
            to_device(behind, self._rows.device).long(),
            plan.positions.clamp(min=0).long(),
            own,
            plan.positions[:num_rows].long() + 1,
            plan,
            in_place=True,
        )

    def _plan(self, size: Decode) -> PagedPlan:
        positions, table_rows = self._rows[:2, : size.num_rows].unbind()
        bucket = self._bucket(size.num_rows)
        plan = PagedPlan(
            positions,
            table_rows,
            self._tables.block_tables,
            size.num_rows,
            work=bucket.work(self._work[: bucket.num_words]) if size.shares else None,
            window_tables=self._tables.window_tables,
            longest=size.longest,
        )
        return self._model.prepared(plan, self._cache)

    def _bucket(self, num_rows: int) -> SegmentBucket:
        """Decodes share only where all layers have the same heads: `_can_share`."""
        heads = self._model.config.head_sizes[0].num_heads
        dtype = self._model.weights.embedding.dtype
        return bucket_for(0, 0, heads, self._cache.keys_of(0), dtype, num_sharing=num_rows)
