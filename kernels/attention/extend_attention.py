"""Attention of segments in CUDA C++, for Hopper: `extend_attention.cu`.

Owns the kernel's constants, its generated instructions, and the launch. Must not know which
segments it serves, nor how they were cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kernels.attention.config import EXTEND_TILE
from kernels.choose import multiprocessors
from kernels.cuda.hopper import header, runs_on, wgmma
from kernels.cuda.source import CudaSource

_DIM: Final = 128
_STAGES: Final = 2
_BLOCK_SIZES: Final = (16, 32, 64, 128)
_TILE_BYTES: Final = EXTEND_TILE * _DIM * 2
_BARRIER_BYTES: Final = 128
_THREADS: Final = 384
_SUMS: Final = EXTEND_TILE // 2


def _products(_: Mapping[str, int]) -> dict[str, str]:
    """Scores of 64 rows and a tile's keys, the mixing of its values, and waiting for either."""
    scored, mixed = "u64 queries, u64 keys", "u32 a, u32 b, u32 c, u32 d, u64 values"
    tiles = ["queries"], "keys"
    held = ", ".join([f'"+f"(sums[{number}])' for number in range(_SUMS)])
    used = ", ".join([f'"+r"(weights[{number}])' for number in range(_SUMS // 2)])
    lines = [
        # The first ones count from zero.
        _function("score_first", scored, wgmma(EXTEND_TILE, 0, *tiles, tail="0, 1, 1, 0, 0")),
        _function("score", scored, wgmma(EXTEND_TILE, 0, *tiles, tail="1, 1, 1, 0, 0")),
        # Values lie as they are cached, their rows are columns here: the last 1.
        _function("mix", mixed, wgmma(_DIM, 0, "abcd", "values", tail="1, 1, 1, 1")),
        _function("wait_first", "", _waits(0, held)),
        _function("wait_scores", "", _waits(1, held)),
        _function("wait_mixed", f"u32 (&weights)[{_SUMS // 2}]", _waits(0, f"{held}, {used}")),
    ]
    return {**header(), "products.h": "".join(lines)}


def _function(name: str, parameters: str, body: str) -> str:
    signature = f"float (&sums)[{_SUMS}]{parameters and ', '}{parameters}"
    return f"__device__ __forceinline__ void {name}({signature}) {{{body}\n}}\n\n"


def _waits(left: int, held: str) -> str:
    """Wait until all but `left` groups of products are done; keeps their operands in place."""
    return f'\n  asm volatile("wgmma.wait_group.sync.aligned {left};" : {held} :: "memory");'


attend_items: Final = CudaSource(
    __name__, "attend_items", Path(__file__).with_name("extend_attention.cu"), _products
)


def serves(
    device: torch.device,
    num_heads: int,
    shape: tuple[int, ...],
    cache_dtype: torch.dtype,
    dtype: torch.dtype,
) -> bool:
    """Whether this card runs it: queries of `dtype`, blocks of `shape` [block size, KV, D]."""
    block_size, num_kv, head_dim = shape
    is_narrow = dtype == cache_dtype == torch.bfloat16
    fits = head_dim == _DIM and block_size in _BLOCK_SIZES and num_heads // num_kv <= EXTEND_TILE
    return is_narrow and fits and runs_on(device)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    items: Tensor,
    first_row: int,
    out: Tensor,
    partial: Tensor,
    lse: Tensor,
) -> None:
    """The items of a `PrefillWork` in tiles of `EXTEND_TILE`: queries [rows, H, D] bfloat16 of all
    segments, caches [blocks, block size, KV, D], into `out` [T, H D] or, of cut ones, float32
    partial results [slots, H, D] and their log-sum-exps [slots, H], powers of two. All begin at
    multiples of 16 bytes.

    Ask `serves` first. Raises `CompileError`, `DriverError`, and `ValueError` on another device
    than the current one.
    """
    num_blocks, block_size, num_kv, head_dim = keys.shape
    num_rows, num_heads, _ = queries.shape
    constants = constants_of(num_heads, num_kv, block_size)
    if queries.is_meta:
        attend_items.record(constants)
        return
    from kernels.cuda.driver import heads_map, launch, loaded

    device, programs = queries.device, items.shape[0] * num_kv
    group, slots = num_heads // num_kv, (num_blocks * block_size, num_kv, head_dim)
    launch(
        loaded(attend_items, constants, _THREADS, shared_bytes(), device),
        min(programs, multiprocessors(device)),
        torch.cuda.current_stream(device).cuda_stream,
        (
            heads_map(
                queries.data_ptr(), (num_rows, num_heads, head_dim), group, EXTEND_TILE // group
            ),
            heads_map(keys.data_ptr(), slots, 1, block_size),
            heads_map(values.data_ptr(), slots, 1, block_size),
        ),
        (items, tables, out, partial, lse),
        (programs, tables.stride(0), first_row),
    )


def constants_of(num_heads: int, num_kv: int, block_size: int) -> dict[str, int]:
    """The kernel's macros."""
    return {
        "H": num_heads, "KV": num_kv, "BLOCK_SIZE": block_size, "TILE": EXTEND_TILE,
        "STAGES": _STAGES,
    }  # fmt: skip


def shared_bytes() -> int:
    """What a program takes: queries of two items, and stages of keys and of values."""
    return (2 + 2 * _STAGES) * _TILE_BYTES + _BARRIER_BYTES
