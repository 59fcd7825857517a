"""Which configuration serves which size: data from `python -m benchmarks.kernels attention`.

Owns the rules. Must not launch anything.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kernels.attention.config import (
    EXTEND_CONFIG,
    FIXED_PIECE,
    MULTIPROCESSORS,
    NO_LIBRARY,
    DecodeConfig,
    PrefillConfig,
    SharingCosts,
    WriteConfig,
)
from kernels.choose import is_card, shared_bytes

_ROW_CAPACITIES: Final = (16, 256, 1024, 4096)

_TOKEN_BYTES: Final = 4096
"""Bytes of one token's keys and values for which `sharing_costs` were measured."""


class _Short(NamedTuple):
    """A launch for short contexts: of `DecodeConfig`, and how many programs a row has."""

    tile: int
    warps: int
    stages: int
    programs: int


_ONE: Final = _Short(tile=256, warps=8, stages=1, programs=8)
_HALVES: Final = _Short(tile=128, warps=8, stages=1, programs=32)
_HALVES_OF_MANY: Final = _Short(tile=128, warps=8, stages=1, programs=64)
_QUARTERS: Final = _Short(tile=64, warps=4, stages=2, programs=32)
_QUARTERS_OF_MANY: Final = _Short(tile=64, warps=4, stages=2, programs=64)

_FEW_KEY_HEADS: Final = 4
_SHORT: Final[Mapping[int, Mapping[int, _Short]]] = {
    1: {1024: _HALVES},
    2: {1024: _HALVES},
    4: {256: _ONE, 1024: _HALVES},
    8: {256: _ONE, 1024: _QUARTERS},
}
_SHORT_OF_MANY_HEADS: Final[Mapping[int, Mapping[int, _Short]]] = {
    1: {256: _ONE, 1024: _HALVES_OF_MANY},
    2: {256: _ONE, 1024: _HALVES_OF_MANY},
    4: {1024: _QUARTERS_OF_MANY},
    8: {256: _ONE},
}
"""Launches by rows and by the most cached tokens; the first table is for `_FEW_KEY_HEADS` heads of
keys or fewer. Programs without a share cost too, and so does the merge of parts. us of a layer of
the 30B mixture in 8 bits by block (4 heads) and of the 0.6B (8) on an H200, by the launch for any
context and by these: one row at 600 tokens 46.3 and 40.2, and 21.5 and 18.7; two 63.1 and 59.4,
25.7 and 23.2; four 81.6 and 79.0, 31.5 and 29.7; eight of the 30B 106.9 and 106.0 (`python -m
benchmarks.kernels mixture_chain` and `layer_chain`)."""

_LARGE_TILE_BYTES: Final = 104 * 1024
_LARGEST_TILE_BYTES: Final = 140 * 1024


@cache
def write_config() -> WriteConfig:
    """How segments are normed, turned and written."""
    return WriteConfig()


@cache
def decode_config(
    num_rows: int, num_kv: int, head_dim: int, cache_dtype: torch.dtype, longest: int = 0
) -> DecodeConfig:
    """How `num_rows` decodes attend, which have up to `longest` cached tokens each (0: any number).
    Raises `ValueError` for more rows than any launch takes.
    """
    rows = next((capacity for capacity in _ROW_CAPACITIES if num_rows <= capacity), None)
    if rows is None:
        raise ValueError(f"{num_rows} decodes in one step; at most {_ROW_CAPACITIES[-1]}")
    if head_dim > 256:
        # 80 KiB of shared memory in 16 bits; in float32, which parity runs alone use, 96.
        stages = 1 if cache_dtype == torch.float32 else 2
        return DecodeConfig(tile=16, warps=8, stages=stages, target=2 * MULTIPROCESSORS, rows=rows)
    if cache_dtype == torch.float32:  # parity runs; products outside the tensor cores
        return DecodeConfig(tile=16, warps=8, stages=2, target=4 * MULTIPROCESSORS, rows=rows)
    if head_dim > 128:
        # A layer of the 35B mixture (2 heads of keys) at 64 rows of 600 tokens takes 256.6 us, by
        # tiles of 32 and four times as many programs 292; one row of 8,000 tokens 55 and 100.
        target = MULTIPROCESSORS
        return DecodeConfig(tile=64, warps=8, stages=2, target=target, rows=rows, start=1, slack=1)
    for most, short in _short_of(num_kv, head_dim, cache_dtype).get(num_rows, {}).items():
        if 0 < longest <= most:
            return DecodeConfig(
                tile=short.tile,
                warps=short.warps,
                stages=short.stages,
                target=short.programs * num_rows,
                rows=rows,
            )
    is_few = num_kv <= _FEW_KEY_HEADS
    if num_rows <= 2:
        return _one_or_two(head_dim, rows, is_few=is_few)
    if is_few:
        # 64 rows of the 30B at 200, 600 and 2,000 tokens: 207.3, 221.8 and 268.3 us a layer, by
        # tiles of 32 tokens 212.4, 227.6 and 268.7.
        target = 2 * MULTIPROCESSORS
        return DecodeConfig(tile=64, warps=4, stages=3, target=target, rows=rows, start=2, slack=1)
    # All programs run at once: their shared memory allows four per multiprocessor. Within 4 % of
    # the best for every size of 8 heads of keys measured on an H200 (docs/log.md).
    target, start = 4 * MULTIPROCESSORS, 3 if num_rows <= 16 else 6
    return DecodeConfig(tile=32, warps=2, stages=3, target=target, rows=rows, start=start, slack=1)


def _one_or_two(head_dim: int, rows: int, *, is_few: bool) -> DecodeConfig:
    """How one or two decodes attend to any number of tokens. A layer at one row of 8,000 tokens
    takes 46.9 us with 4 heads of keys (the 30B mixture), and 62.5 by tiles of 32 tokens; with 8
    heads of 64 (gpt-oss) 60.1 and 65.2, with 8 of 128 (8B in 8 bits) 77.1 to 79.1 and 76.1.
    """
    if is_few:
        return DecodeConfig(tile=128, warps=8, stages=2, target=MULTIPROCESSORS, rows=rows)
    if head_dim <= 64:
        return DecodeConfig(tile=64, warps=4, stages=3, target=2 * MULTIPROCESSORS, rows=rows)
    return DecodeConfig(tile=32, warps=2, stages=3, target=2 * MULTIPROCESSORS, rows=rows)


def short_contexts(
    num_kv: int, head_dim: int, cache_dtype: torch.dtype
) -> dict[int, tuple[int, ...]]:
    """By the number of decodes, the most cached tokens of each of them in launches for short
    contexts, rising.
    """
    return {rows: tuple(of) for rows, of in _short_of(num_kv, head_dim, cache_dtype).items()}


def _short_of(
    num_kv: int, head_dim: int, cache_dtype: torch.dtype
) -> Mapping[int, Mapping[int, _Short]]:
    if head_dim > 128 or cache_dtype == torch.float32:
        return {}
    return _SHORT if num_kv <= _FEW_KEY_HEADS else _SHORT_OF_MANY_HEADS


def prefill_config(
    num_heads: int,
    keys: Tensor,
    dtype: torch.dtype,
    *,
    invariant: bool = False,
    is_scoped: bool = False,
) -> PrefillConfig:
    """How segments of rows of `dtype` attend to a cache like `keys` [blocks, block size, KV, D]. A
    tile holds at least one token with up to 32 query heads per key head. `invariant`: contexts are
    cut by position alone, without the library. `is_scoped`: layers have windows or scales of their
    own, which neither the library nor Hopper's kernel supports.
    """
    shape = tuple(keys.shape[1:])
    config = _prefill_config(num_heads, shape, keys.device, keys.dtype, dtype, is_scoped)
    if invariant:
        return _fixed(config)
    return config._replace(library=NO_LIBRARY) if is_scoped else config


@cache
def _fixed(config: PrefillConfig) -> PrefillConfig:
    return config._replace(fixed=True, piece=FIXED_PIECE, library=NO_LIBRARY)


def sharing_costs(num_heads: int, keys: Tensor, dtype: torch.dtype) -> SharingCosts:
    """The costs of sharing for decodes of `dtype` over a cache like `keys`.

    A token of 8 x 128 bfloat16 keys and values that other decodes read too takes a decode 0.6 to
    0.8 ns, and a tile 1.2 ns. Two more launches in each layer and the first results of runs take
    20 us a step (docs/decisions/0029). A tile of a float8 cache takes as long as one of bfloat16.
    """
    config = prefill_config(num_heads, keys, dtype)
    token_bytes = 2 * keys.shape[2] * keys.shape[3] * keys.element_size()
    per_token = _TOKEN_BYTES / token_bytes
    return SharingCosts(
        tile_rows=config.rows // (num_heads // keys.shape[2]),
        tile=1.6 * 2 / keys.element_size(),
        row=100,
        step=28_000 * per_token,
    )


@cache
def _prefill_config(
    num_heads: int,
    shape: tuple[int, ...],
    device: torch.device,
    cache_dtype: torch.dtype,
    dtype: torch.dtype,
    is_scoped: bool,
) -> PrefillConfig:
    if is_card(device) and not is_scoped:
        from kernels.attention import extend_attention

        if extend_attention.serves(device, num_heads, shape, cache_dtype, dtype):
            return EXTEND_CONFIG
    if shape[-1] > 256:
        # In 16 bits 132 KiB of shared memory with tiles of 32 keys and 64 rows, else 68.
        if torch.float32 in (dtype, cache_dtype):
            return PrefillConfig(rows=32, tile=16, warps=8, stages=1, target=MULTIPROCESSORS)
        is_large = not is_card(device) or shared_bytes(device) >= _LARGEST_TILE_BYTES
        rows, tile = (64, 32) if is_large else (32, 16)
        return PrefillConfig(rows=rows, tile=tile, warps=8, stages=2, target=MULTIPROCESSORS)
    if torch.float32 in (dtype, cache_dtype):
        return PrefillConfig(rows=32, tile=16, warps=8, stages=2, target=MULTIPROCESSORS)
    if shape[-1] > 128:
        # 104 KiB of shared memory; with half the rows 72.
        rows = 128 if not is_card(device) or shared_bytes(device) >= _LARGE_TILE_BYTES else 64
        return PrefillConfig(rows=rows, tile=32, warps=8, stages=2, target=MULTIPROCESSORS)
    # The best for segments of 32 and 110 rows behind 2k to 32k too: they read the past once.
    return PrefillConfig(rows=128, tile=64, warps=8, stages=3, target=MULTIPROCESSORS)
