"""Which configuration serves which size: data from `python -m benchmarks.kernels attention`.

Owns the figures, in tuples: launches are looked up by them. Must not launch anything.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kernels.choose import is_card

_MULTIPROCESSORS: Final = 132


class WriteConfig(NamedTuple):
    """Heads of one row that a program takes."""

    heads: int = 16
    warps: int = 2


class DecodeConfig(NamedTuple):
    """A decode launch.

    `tile` cached tokens per step, `target` programs in all; beginning a row takes as long as
    `start` tiles, and a cut moves by up to `slack` of them to spare that. `rows` is what the launch
    has room for, few values so that few kernels are compiled; at most `fan` partial results are
    merged at once.
    """

    tile: int
    warps: int
    stages: int
    target: int
    rows: int
    fan: int = 8
    start: int = 0
    slack: int = 0


LIBRARY_GRAIN: Final = 1024
"""The library's plans are built for exact sizes: it gets whole multiples, ours does the rest."""


class PrefillConfig(NamedTuple):
    """A launch over spans: `rows` (tokens x heads of a group) by `tile` keys per step.

    `target` programs run at once. Contexts are cut into `piece` keys at the least, so that up to
    `waves` times as many end together; beginning one, and merging what it leaves, takes as long as
    `start` keys. From `library` rows on the library is faster. `cuda` is `kernels.attention.spans`,
    which has its own warps and stages.
    """

    rows: int
    tile: int
    warps: int
    stages: int
    target: int
    piece: int = 256
    waves: int = 1
    start: int = 640
    library: int = LIBRARY_GRAIN
    cuda: bool = False

    def cut_slots(self, num_heads: int, num_kv: int) -> int:
        """Rows of partial results of as many pieces as end together, each a tile's tokens."""
        return self.rows // (num_heads // num_kv) * self.waves * self.target // num_kv


_ROW_CAPACITIES: Final = (16, 256, 1024, 4096)


@cache
def write_config() -> WriteConfig:
    """How spans are normed, turned and written."""
    return WriteConfig()


@cache
def decode_config(num_rows: int, head_dim: int, cache_dtype: torch.dtype) -> DecodeConfig:
    """How `num_rows` decodes attend. Raises `ValueError` for more rows than any launch takes."""
    rows = next((capacity for capacity in _ROW_CAPACITIES if num_rows <= capacity), None)
    if rows is None:
        raise ValueError(f"{num_rows} decodes in one step; at most {_ROW_CAPACITIES[-1]}")
    if cache_dtype == torch.float32:  # parity runs; products outside the tensor cores
        return DecodeConfig(tile=16, warps=8, stages=2, target=4 * _MULTIPROCESSORS, rows=rows)
    if head_dim > 128:
        return DecodeConfig(tile=32, warps=8, stages=2, target=4 * _MULTIPROCESSORS, rows=rows)
    # The best or within 4 % of it for every size measured on an H200 (docs/log.md), but for one row
    # of 32k: 7 %.
    if num_rows <= 2:
        return DecodeConfig(tile=32, warps=2, stages=3, target=2 * _MULTIPROCESSORS, rows=rows)
    # All are on the card at once: by their shared memory four per multiprocessor.
    target, start = 4 * _MULTIPROCESSORS, 3 if num_rows <= 16 else 6
    return DecodeConfig(tile=32, warps=2, stages=3, target=target, rows=rows, start=start, slack=1)


SPAN_TILE: Final = 128
"""Rows, and keys, of a tile of `kernels.attention.spans`."""

SPANS: Final = PrefillConfig(
    rows=SPAN_TILE,
    tile=SPAN_TILE,
    warps=0,
    stages=0,
    target=_MULTIPROCESSORS,
    waves=4,
    library=16 * LIBRARY_GRAIN,
    cuda=True,
)
"""An H200 at its 700 W multiplies 543 TFLOP/s for 8k cold rows where the library has 531, and 569
for 16k where it has 575."""


def prefill_config(num_heads: int, keys: Tensor, dtype: torch.dtype) -> PrefillConfig:
    """How spans of rows of `dtype` attend to a cache like `keys` [blocks, block size, KV, D]. A
    tile holds a token of up to 32 query heads per key head at least.
    """
    shape = tuple(keys.shape[1:])
    return _prefill_config(num_heads, shape, keys.device, keys.dtype, dtype)


@cache
def _prefill_config(
    num_heads: int,
    shape: tuple[int, ...],
    device: torch.device,
    cache_dtype: torch.dtype,
    dtype: torch.dtype,
) -> PrefillConfig:
    if is_card(device):
        from kernels.attention import spans

        if spans.serves(device, num_heads, shape, cache_dtype, dtype):
            return SPANS
    if torch.float32 in (dtype, cache_dtype):
        return PrefillConfig(rows=32, tile=16, warps=8, stages=2, target=_MULTIPROCESSORS)
    if shape[-1] > 128:
        return PrefillConfig(rows=128, tile=32, warps=8, stages=2, target=_MULTIPROCESSORS)
    # The best for spans of 32 and 110 rows behind 2k to 32k too: they read the past once.
    return PrefillConfig(rows=128, tile=64, warps=8, stages=3, target=_MULTIPROCESSORS)
