"""The sum of what several cards have computed, over memory that each card writes to the others.

Owns the checked entry and the layout of that memory. Every rank pushes its part into the others'
mail, raises a flag there, waits for theirs and adds all parts itself, in the order of the ranks: so
all ranks get the same bits, and one launch replaces two barriers and a copy. Must not know how
cards are joined, nor which of them are there.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kernels.choose import uses_triton

__all__ = ["GRAIN", "Mail", "add_parts", "mail_bytes", "mail_of", "takes"]

GRAIN: Final = 16
"""A part is a whole number of so many bytes."""

SLOTS: Final = 512
"""Programs of a launch at most: each has its own place in a mail, its own flags and its count. Four
to a multiprocessor keep 2 TB/s in flight with 4 us between a push and what comes back.
"""

SLOT_BYTES: Final = 8192
"""What a program pushes at a time. Each slot has two such halves, by turns: a rank writes a half
again only when the flag of the turn between has told that its reader is done with it.
"""

_FLAG_BYTES: Final = 4


class Mail(NamedTuple):
    """The memory of all ranks, as rank `rank` of `ranks` sees it.

    `parts` and `flags` int64 [ranks] are addresses: of the parts that each rank is sent, [ranks
    that send, SLOTS, 2, SLOT_BYTES], and of int32 [ranks that send, SLOTS] that count them.
    `counts` int32 [SLOTS] says how often this rank has used each slot. `memory` is this rank's own.
    """

    parts: Tensor
    flags: Tensor
    counts: Tensor
    memory: Tensor
    rank: int
    ranks: int


def mail_bytes(ranks: int) -> int:
    """The bytes of one rank's memory, zero before its first use."""
    return ranks * SLOTS * (2 * SLOT_BYTES + _FLAG_BYTES)


def mail_of(memory: Tensor, addresses: Sequence[int], rank: int) -> Mail:
    """The mail of `rank`, whose own `memory` is uint8 [`mail_bytes`]; `addresses` are those of all
    ranks' memories, as this rank reaches them.
    """
    ranks, device = len(addresses), memory.device
    parts = torch.tensor(addresses, dtype=torch.int64, device=device)
    flags = parts + ranks * SLOTS * 2 * SLOT_BYTES
    counts = torch.zeros(SLOTS, dtype=torch.int32, device=device)
    return Mail(parts, flags, counts, memory, rank, ranks)


def takes(part: Tensor) -> bool:
    """Whether `add_parts` takes this part: a whole number of grains, and at most 2^31 numbers."""
    return part.nbytes % GRAIN == 0 and part.numel() < 2**31


def add_parts(
    part: Tensor, residual: Tensor | None, mail: Mail, *, is_trial: bool = False
) -> Tensor:
    """The sum of all ranks' parts and `residual`, like `part`, which is contiguous.

    Parts and residual are added in float32, parts in the order of ranks, and rounded once. All
    ranks make this call alike, on one stream each, in the same order. A rank that has waited for
    about ten minutes traps: its process can use the card no longer. In a trial it waits for ten
    seconds, and its sum is wrong then. Raises `ValueError`.
    """
    if not part.is_contiguous() or not takes(part):
        raise ValueError(f"part {tuple(part.shape)} {part.dtype}, strides {part.stride()}")
    if residual is not None and (residual.shape != part.shape or residual.dtype != part.dtype):
        raise ValueError(f"part {tuple(part.shape)} {part.dtype}, residual {tuple(residual.shape)}")
    if not uses_triton(part):
        raise ValueError("parts are added on cards only; elsewhere a library adds them")
    from kernels.all_reduce import kernel

    return kernel.add_parts(part, residual, mail, is_trial=is_trial)
