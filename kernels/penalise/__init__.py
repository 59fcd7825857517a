"""Penalties for earlier tokens: logits adjusted by counts of tokens that lie on the card.

Owns the checked entries and what a count is. Must not know sequences.

`counts` is int16 [slots, vocab], a row for each sequence: how often the token was an output, up to
`MAX_OUTPUTS`, and `IN_PROMPT` in the highest bit. So 0 is a token that was never seen.
"""

from typing import Final

import torch
from torch import Tensor

from kernels.choose import uses_triton
from kernels.penalise import reference
from kernels.penalise.reference import IN_PROMPT, MAX_OUTPUTS, Penalties

__all__ = ["ENTRY_WORDS", "IN_PROMPT", "MAX_OUTPUTS", "Penalties", "count", "mark", "penalise"]

ENTRY_WORDS: Final = 3
"""An entry of `mark` is (slot, token, word)."""


def penalise(logits: Tensor, counts: Tensor, penalties: Penalties, out: Tensor) -> None:
    """Adjust some rows of `logits`, one for each row of `penalties`, into `out`.

    The repetition penalty first (Keskar et al., 2019), then frequency and presence (OpenAI's
    definition), in float32. logits [rows, vocab] of any float dtype stay as they are; out float32
    [penalised, vocab]; all contiguous. Raises `ValueError`.
    """
    _check(counts)
    num_rows = penalties.rows.shape[0]
    if out.shape != (num_rows, counts.shape[1]) or out.dtype != torch.float32:
        raise ValueError(f"{tuple(out.shape)} {out.dtype} for {num_rows} penalised rows")
    if logits.dim() != 2 or logits.shape[1:] != counts.shape[1:]:
        raise ValueError(f"logits {tuple(logits.shape)}, counts {tuple(counts.shape)}")
    if not num_rows:
        return
    if uses_triton(logits):
        from kernels.penalise import kernel

        kernel.penalise(logits, counts, penalties, out)
    else:
        reference.penalise(logits, counts, penalties, out)


def count(ids: Tensor, counts: Tensor, penalties: Penalties) -> None:
    """Count the token of each penalised row once more, of `ids` int64 [rows]; -1 is none.

    No two rows of `penalties` may have one slot. Raises `ValueError`.
    """
    _check(counts)
    if ids.dim() != 1:
        raise ValueError(f"ids {tuple(ids.shape)}")
    if not penalties.rows.shape[0]:
        return
    if uses_triton(counts):
        from kernels.penalise import kernel

        kernel.count(ids, counts, penalties)
    else:
        reference.count(ids, counts, penalties)


def mark(entries: Tensor, counts: Tensor) -> None:
    """Set the bits of each word of `entries`, int32 [n * ENTRY_WORDS], beside those that are set.

    Entries outside `counts` are left out. Several may name one place if their words are equal.
    Raises `ValueError`.
    """
    _check(counts)
    if entries.dim() != 1 or entries.shape[0] % ENTRY_WORDS:
        raise ValueError(f"{tuple(entries.shape)} words of entries")
    if not entries.shape[0]:
        return
    if uses_triton(counts):
        from kernels.penalise import kernel

        kernel.mark(entries, counts)
    else:
        reference.mark(entries, counts)


def _check(counts: Tensor) -> None:
    if counts.dim() != 2 or counts.dtype != torch.int16:
        raise ValueError(f"counts {tuple(counts.shape)} {counts.dtype}")
