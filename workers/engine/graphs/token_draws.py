"""The tokens behind the logits of a step: drawn, or verified against drafts.

Owns where they are left on the card: the last tokens of sequences, and how many drafts were right.
Must not know graphs or drafters, nor how the logits came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from kernels.accept import accept
from workers.engine.step.batch import PagedRows, SequenceState, num_sampled, to_device
from workers.engine.step.draft_pass import first_rows
from workers.engine.step.draws import Kind
from workers.engine.step.sampler import Checked, Picked, Sampler
from workers.engine.step.tables import SequenceTables
from workers.scheduler import ON_CARD


@final
class TokenDraws:
    """Draws by `sampler`, and writes to `tables`. Logits are [sampled rows, vocabulary], in any
    float; `positions` and `table_rows` are those rows', integers of either size, on the device.
    """

    def __init__(self, sampler: Sampler, tables: SequenceTables) -> None:
        self._sampler = sampler
        self._tables = tables

    def are_plain(self, rows: PagedRows, states: dict[int, SequenceState]) -> bool:
        """Whether a captured step that verifies can draw all its tokens itself."""
        members = [states[chunk.seq] for chunk in rows.sampling for _ in range(num_sampled(chunk))]
        self._sampler.draws.arrange(members)
        return self._sampler.draws.kind is Kind.PLAIN

    def sample(
        self,
        logits: Tensor,
        rows: PagedRows,
        states: dict[int, SequenceState],
        positions: Tensor,
        table_rows: Tensor,
    ) -> Picked:
        """The tokens of a step's sampled `rows`, verified where a sequence has drafts."""
        if any(chunk.drafts for chunk in rows.sampling):
            return self._verify(logits, rows, states, positions, table_rows)
        members = [states[chunk.seq] for chunk in rows.sampling]
        return self.draw(logits, members, positions, table_rows)

    @torch.inference_mode()
    def _verify(
        self,
        logits: Tensor,
        rows: PagedRows,
        states: dict[int, SequenceState],
        positions: Tensor,
        table_rows: Tensor,
    ) -> Picked:
        checked = [Checked(states[chunk.seq], chunk.drafts) for chunk in rows.sampling]
        drafts = self._checked_ids(rows, table_rows)
        picked = self._sampler.verify(logits, checked, positions, drafts)
        firsts, tables = first_rows(picked), self._tables
        kept = tables.last_token, tables.num_accepted
        ends = accept(picked.ids, drafts, firsts, *kept, table_rows[firsts])
        return replace(picked, ends=ends)

    def _checked_ids(self, rows: PagedRows, table_rows: Tensor) -> Tensor:
        """What the token of each sampled row is compared with: the token of the row behind it."""
        behind = rows.token_ids[np.minimum(rows.last_rows + 1, len(rows.token_ids) - 1)]
        behind[np.cumsum([num_sampled(chunk) for chunk in rows.sampling]) - 1] = ON_CARD
        sent = to_device(behind.astype(np.int32), table_rows.device)
        return torch.where(sent == ON_CARD, -1, self._tables.known(sent, table_rows)).long()

    @torch.inference_mode()
    def draw(
        self,
        logits: Tensor,
        members: Sequence[SequenceState],
        positions: Tensor,
        table_rows: Tensor,
    ) -> Picked:
        """A token for each of `members`."""
        picked = self._sampler.sample(logits, members, positions)
        rows, tokens = table_rows.long(), picked.ids.int()
        self._sampler.count(picked)
        # Behind all that takes memory: a step that is repeated begins with the tokens before.
        self._tables.last_token.index_copy_(0, rows, tokens)
        return picked
