"""Finds the best tiles of `kernels.linear.int4_ampere`, beside Triton's kernels and the choice
(`int4_tiles` on Hopper).

`python -m benchmarks.kernels int4_ampere_sweep --jobs 15 --json FILE`; the fastest of each case is
printed. Hopper runs the kernel too. Its tiles for a card with 99 KB of shared memory and those for
one with more are both here: `int4_ampere.chosen`, the first two of each case.
"""

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.int4 import GROUP, LAYERS, case
from kernels.linear import int4_ampere
from kernels.linear.config import Int4Ampere
from kernels.linear.int4_ampere import CardLimits, used_bytes

_CANDIDATES = {
    1: (
        Int4Ampere(1, 2, 4, 1, 4),
        Int4Ampere(1, 2, 8, 1, 2),
        Int4Ampere(1, 2, 8, 1, 4),
        Int4Ampere(1, 1, 8, 1, 4),
        Int4Ampere(1, 2, 4, 1, 3, columns=256),
        Int4Ampere(1, 1, 8, 1, 3, columns=256),
        Int4Ampere(1, 3, 4, 1, 3),
        Int4Ampere(2, 2, 4, 1, 3),
    ),
    2: (
        Int4Ampere(1, 2, 4, 2, 3),
        Int4Ampere(2, 1, 4, 2, 3),
        Int4Ampere(2, 2, 2, 2, 4),
        Int4Ampere(4, 1, 2, 2, 3),
        Int4Ampere(2, 2, 2, 2, 2, columns=256),
    ),
    4: (
        Int4Ampere(2, 2, 2, 4, 3),
        Int4Ampere(4, 1, 1, 4, 3),
        Int4Ampere(4, 2, 1, 4, 3),
        Int4Ampere(8, 1, 1, 4, 3),
    ),
    8: (
        Int4Ampere(4, 1, 1, 8, 3),
        Int4Ampere(4, 1, 2, 8, 2),
        Int4Ampere(8, 1, 1, 8, 3),
        Int4Ampere(4, 2, 1, 8, 3),
        Int4Ampere(8, 1, 2, 8, 2),
    ),
}
"""The variants by eights of rows in a tile."""

_ROWS = {1: 1, 2: 1, 4: 1, 8: 1, 16: 2, 32: 4, 64: 8, 128: 8, 256: 8}
"""Rows of x, and eights of a tile."""

_SMALL_BYTES = 99 * 1024
_SPLITS = (1, 2, 4)


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Every shape for 1 to 256 rows; none off CUDA."""
    if device.type != "cuda":
        return
    for op, num_weight_rows, depth in LAYERS:
        for num_rows, eights in _ROWS.items():
            configs = [
                *dict.fromkeys(_candidates(num_rows, eights, num_weight_rows, depth, device))
            ]
            yield case(
                op, num_rows, num_weight_rows, depth, [None, *configs], device, has_triton=True
            )


def _candidates(
    num_rows: int, eights: int, num_weight_rows: int, depth: int, device: torch.device
) -> Iterator[Int4Ampere]:
    """The configurations that are chosen on a small card and on this one; for 1, 4, 16, 32 and 64
    rows also others, each with splits if its programs do not fill the card.
    """
    card = int4_ampere.card_of(device)
    for chosen_for in (CardLimits(card.multiprocessors, min(_SMALL_BYTES, card.bytes)), card):
        yield int4_ampere.chosen(num_rows, num_weight_rows, depth, chosen_for, group=GROUP)
    if num_rows not in (1, 4, 16, 32, 64):
        return
    for config in _CANDIDATES[eights]:
        programs = -(-num_weight_rows // config.tile)
        for splits in _SPLITS:
            found = config._replace(splits=splits)
            fills = splits == 1 or programs * splits <= 2 * card.multiprocessors
            if fills and used_bytes(found, depth, GROUP) <= card.bytes:
                yield found
