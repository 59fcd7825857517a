"""The tokens that sequences with a grammar may have next, as bits on the device.

Owns the bits of a step's rows: the host fills them while the network computes, and sends them
before the draw. Must not know what a grammar is, nor how logits are drawn.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from kernels.token_mask import mask_tokens, num_words
from workers.engine.step.batch import Follower, Rows, SequenceState, send_into

_ALL: int = -1


@final
class AnyToken:
    """A grammar that allows everything, for the sequences of a warm-up."""

    error = ""

    @staticmethod
    def fill_all(
        grammars: Sequence[tuple[int, AnyToken, array[int]]], rows: Rows
    ) -> list[int | None]:
        """See `workers.engine.step.batch.Follower`."""
        for row, _, _ in grammars:
            rows[row] = _ALL
        return [None] * len(grammars)

    def num_allowed(self, outputs: array[int], drafts: Sequence[int]) -> int:  # noqa: ARG002
        """See `workers.engine.step.batch.Follower`."""
        return len(drafts)


@final
class MaskTable:
    """The bits of up to `num_rows` rows. All memory is taken at once, at the start."""

    def __init__(self, vocab_size: int, num_rows: int, device: torch.device) -> None:
        width = num_words(vocab_size)
        self._masks = torch.zeros((num_rows, width), dtype=torch.int32, device=device)
        self._host = np.empty((num_rows, width), np.int32)
        self._is_needed = False

    def fill(
        self, states: Sequence[SequenceState], seen: Sequence[tuple[int, ...]] = ()
    ) -> list[int] | None:
        """Set row i to the tokens that may follow in `states[i]`; without a grammar any may. Row i
        follows the drafts `seen[i]`, if given, which its grammar allows. Returns the tokens if
        every row can have only one, else None.

        A row whose grammar cannot be followed has no token: its draw gives -1.
        """
        self._is_needed = any(state.grammar is not None for state in states)
        if not self._is_needed:
            return None
        rows = self._host[: len(states)]
        by_kind: dict[type[Follower], list[tuple[int, Follower, array[int]]]] = {}
        for row, state in enumerate(states):
            if state.grammar is None:
                rows[row] = _ALL
                continue
            asked = by_kind.setdefault(type(state.grammar), [])
            outputs = state.tokens[state.num_prompt :]
            outputs.extend(seen[row] if seen else ())
            asked.append((row, state.grammar, outputs))
        found = [each for kind, asked in by_kind.items() for each in kind.fill_all(asked, rows)]
        lone = [token_id for token_id in found if token_id is not None]
        if len(lone) == len(states):
            return lone
        send_into(self._masks[: len(states)], rows)
        return None

    def apply(self, logits: Tensor, begin: int, end: int) -> None:
        """Mask in float32 logits [end - begin, vocab] the tokens that rows [begin, end) of the last
        `fill` forbid.
        """
        if self._is_needed:
            mask_tokens(logits, self._masks[begin:end])
