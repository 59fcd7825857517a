"""The memory that ranks write to each other: its layout, and how one rank sees it.

Owns the sizes. Must not know the kernel that uses it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

GRAIN: Final = 16
"""The length of a part is a multiple of this many bytes."""

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
    """The mail of `rank`, whose own `memory` is uint8 [`mail_bytes`]; `addresses` has the address
    of each rank's memory, as this rank reaches it.
    """
    ranks, device = len(addresses), memory.device
    parts = torch.tensor(addresses, dtype=torch.int64, device=device)
    flags = parts + ranks * SLOTS * 2 * SLOT_BYTES
    counts = torch.zeros(SLOTS, dtype=torch.int32, device=device)
    return Mail(parts, flags, counts, memory, rank, ranks)


def takes(part: Tensor) -> bool:
    """Whether `add_parts` takes this part: a whole number of grains, and at most 2^31 numbers."""
    return part.nbytes % GRAIN == 0 and part.numel() < 2**31
