"""From a step's logits to tokens: drawn, and verified against drafts.

Owns the writing of results to the tables on the card: each sequence's last token, and how many of
its drafts were accepted. Must not know graphs or drafters, nor how the logits were computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from kernels.accept import accept
from kernels.pinned import to_device
from workers.engine.step.batch import PagedRows, SequenceState, num_sampled
from workers.engine.step.draft_pass import first_rows
from workers.engine.step.draws import DrawKind
from workers.engine.step.sampler import Picked, Sampler, VerifiedDrafts
from workers.engine.step.tables import SequenceTables
from workers.scheduler import ON_CARD


@final
class TokenDraws:
    """Draws by `sampler`, and writes to `tables`. In its methods `logits` are [sampled rows,
    vocabulary] of any float dtype, and `positions` and `table_rows` [sampled rows] are int32 or
    int64, all on the device.
    """

    def __init__(self, sampler: Sampler, tables: SequenceTables) -> None:
        self._sampler = sampler
        self._tables = tables

    def arrange(self, members: Sequence[SequenceState]) -> DrawKind:
        """Arrange the draw parameters of decodes; returns how these are drawn."""
        self._sampler.draws.arrange(members)
        return self._sampler.draws.kind

    def forget(self, seqs: Sequence[int]) -> None:
        """Forget sequences; unknown ones are ignored."""
        self._sampler.forget(seqs)

    def are_plain(self, rows: PagedRows, states: dict[int, SequenceState]) -> bool:
        """Whether a captured step that verifies can draw all its tokens itself: all rows are greedy
        or have a temperature only. Arranges the draw parameters of the rows.
        """
        members = [states[chunk.seq] for chunk in rows.sampling for _ in range(num_sampled(chunk))]
        self._sampler.draws.arrange(members)
        return self._sampler.draws.kind is DrawKind.PLAIN

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
        checked = [VerifiedDrafts(states[chunk.seq], chunk.drafts) for chunk in rows.sampling]
        drafts = self._checked_ids(rows, table_rows)
        picked = self._sampler.verify(logits, checked, positions, drafts)
        firsts, tables = first_rows(picked), self._tables
        kept = tables.last_token, tables.num_accepted
        ends = accept(picked.ids, drafts, firsts, *kept, table_rows[firsts])
        return replace(picked, ends=ends)

    def _checked_ids(self, rows: PagedRows, table_rows: Tensor) -> Tensor:
        """The draft that each sampled row's token is compared with: the id in the row behind it;
        -1 in the last row of a sequence.
        """
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
        # After all that takes memory: a repeated step must begin with the old last tokens.
        self._tables.last_token.index_copy_(0, rows, tokens)
        return picked
