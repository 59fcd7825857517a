"""How pairs of rows and experts are cut up for Triton's products of a list, by form and card.

Owns the tiles that were measured, and from how many pairs rows are rounded to 8 bits. Must not know
how a list is made, nor the products.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from kernels.choose import has_fp8, is_card, shared_bytes
from kernels.experts.tiles import ExpertTiles
from kernels.fp8 import BLOCK, FP8, Fp8Weight, Weight

_FEW_ROWS: Final = 16
_MANY_ROWS: Final = 64
_MOST_ROWS: Final = 128
"""The rows of a tile: `_MANY_ROWS` where an expert has more than 32 pairs on average,
`_MOST_ROWS` from as many pairs as rows on, where shared memory is large enough.
"""
_UP: Final = {
    ("plain", _FEW_ROWS): ExpertTiles(outputs=32, columns=128, warps=4, stages=4),
    ("rows", _FEW_ROWS): ExpertTiles(outputs=32, columns=128, warps=4, stages=4),
    ("mxfp4", _FEW_ROWS): ExpertTiles(outputs=64, columns=64, warps=4, stages=4),
}
_DOWN: Final = {
    ("rows", _FEW_ROWS): ExpertTiles(outputs=64, columns=128),
    ("mxfp4", _FEW_ROWS): ExpertTiles(outputs=64, columns=128),
}
"""The tiles by the form of a stack and the rows of a tile: the best on an H200 at 8 and 64 rows of
those that fit into 99 KiB of shared memory (`python -m benchmarks.kernels experts`)."""
_USUAL: Final = ExpertTiles(outputs=64, columns=64)
_NARROW: Final = ExpertTiles(outputs=64, columns=128)
"""The tiles for many rows; the latter for numbers in 8 bits or fewer, as many bytes at a time."""
_ROOMY_UP: Final = {
    ("plain", _MANY_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
    ("rows", _MANY_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
    ("blocks", _MANY_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
    ("plain", _MOST_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
    ("mxfp4", _MOST_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
}
_ROOMY_DOWN: Final = {
    ("plain", _MANY_ROWS): ExpertTiles(outputs=128, columns=64),
    ("rows", _MANY_ROWS): ExpertTiles(outputs=128, columns=64),
    ("blocks", _MANY_ROWS): ExpertTiles(outputs=128, columns=64),
    ("plain", _MOST_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
    ("mxfp4", _MOST_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
}
_EIGHT: Final = {
    _MANY_ROWS: ExpertTiles(outputs=64, columns=128),
    _MOST_ROWS: ExpertTiles(outputs=64, columns=128, warps=8),
}
_EIGHT_DOWN: Final = {("rows", _MOST_ROWS): ExpertTiles(outputs=128, columns=128, warps=8)}
"""The tiles where both sides are in 8 bits; the best of eleven for gates and ups and of eight
for the down products, or nearly, at 550 and 4,096 rows of a 30B (H200).
"""
_ROUNDED_PAIRS: Final = 8
"""With more pairs of an expert on average, rows are rounded. On an H200 a layer of a 30B then took,
in blocks, 209 us instead of 308 for 256 rows and 203 instead of 275 for 128, with scales of rows
271 instead of 322, and 234 instead of 232."""
_ROOMY_BYTES: Final = 227 * 1024
"""Where a program may take this many bytes of shared memory, rows in 16 bits take the tiles below,
and others, of 128 rows, `_USUAL` in every form. On an H200 gates and ups of 4,096 rows of gpt-oss
in 16 bits took 1,071 us instead of 1,410, those of a 30B 607 instead of 705, and what is down 306
instead of 606."""
_DEEP: Final = ExpertTiles(outputs=64, columns=32)
"""The tiles for 128 rows in 32 bits."""
_HALF_BYTES: Final = 2

_Known = Mapping[tuple[str, int], ExpertTiles]


def _tiles(known: _Known, roomy: _Known, form: str, rows: int, x: Tensor) -> ExpertTiles:
    """The tiles of a product: where they fit and x is in 16 bits, `roomy` goes first."""
    if x.dtype == FP8:
        return (known is _DOWN and _EIGHT_DOWN.get((form, rows))) or _EIGHT[rows]
    if rows == _MOST_ROWS and x.element_size() > _HALF_BYTES:
        return _DEEP
    if _is_roomy(x.device) and x.element_size() == _HALF_BYTES:
        found = roomy.get((form, rows))
        if found is not None or rows == _MOST_ROWS:
            return found or _USUAL
    is_narrow = rows != _FEW_ROWS and form in {"rows", "mxfp4"}
    return known.get((form, rows), _NARROW if is_narrow else _USUAL)


def _is_roomy(device: torch.device) -> bool:
    return not is_card(device) or shared_bytes(device) >= _ROOMY_BYTES


def up_tiles(form: str, rows: int, x: Tensor) -> ExpertTiles:
    """The tiles of gates and ups, whose rows of x come in tiles of `rows`."""
    return _tiles(_UP, _ROOMY_UP, form, rows, x)


def down_tiles(form: str, rows: int, gated: Tensor) -> ExpertTiles:
    """The tiles of the down products."""
    return _tiles(_DOWN, _ROOMY_DOWN, form, rows, gated)


def rounds(x: Tensor, gate_up: Weight, down: Weight, num_pairs: int, num_experts: int) -> bool:
    """Whether rows of so many pairs are rounded to 8 bits: by experts in 8 bits, where tiles are
    large and the card multiplies such numbers. All outputs of a tile must share a block's scale.
    Only in bfloat16, as the products of dense weights.
    """
    if not isinstance(gate_up, Fp8Weight) or not isinstance(down, Fp8Weight):
        return False
    if gate_up.is_blocked and (gate_up.shape[1] % BLOCK or down.shape[1] % BLOCK):
        return False
    is_many = num_pairs > _ROUNDED_PAIRS * num_experts
    return is_many and x.dtype == torch.bfloat16 and has_fp8(x.device)


def rounded_rows(num_pairs: int, num_experts: int, device: torch.device) -> int:
    """Rows of the tiles of a list of rounded rows."""
    return max(_MANY_ROWS, list_rows(num_pairs, num_experts, device))


def list_rows(num_pairs: int, num_experts: int, device: torch.device) -> int:
    """The rows of a list's tiles that are fast."""
    if num_pairs >= _MOST_ROWS * num_experts and _is_roomy(device):
        return _MOST_ROWS
    return _MANY_ROWS if num_pairs > 32 * num_experts else _FEW_ROWS
