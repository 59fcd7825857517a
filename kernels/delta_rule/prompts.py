"""Spans of rows on a card: convolution, chunks, norm; which kernels, in which tiles.

Owns the launches, the tensors between them, and the kernels ahead of the chunks and behind them.
The convolution scales queries and keys to length 1, because there one program has all columns of a
key head, while later kernels read them once for each of several value heads.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import capability, has_pdl, is_card, shared_bytes
from kernels.delta_rule.chunks import scan_kernel, system_kernel
from kernels.delta_rule.pieces import gated_rows, head_columns, silu, unit_rows
from kernels.delta_rule.plan import CHUNK, DeltaPlan
from kernels.delta_rule.shapes import DeltaSizes, DeltaState, DeltaWeights
from kernels.launch import Launch


class PromptTiles(NamedTuple):
    """How the launches are cut: `conv_run` consecutive rows of the convolution in a thread,
    `scan_values` values in a program of the scan, `norm_rows` rows in one of the norm;
    `scan_stages` chunks on their way to a scan; warps and registers.
    """

    conv_run: int = 8
    conv_warps: int = 4
    system_warps: int = 4
    system_registers: int = 128
    merge: str = "tf32"
    scan_values: int = 64
    scan_stages: int = 3
    scan_warps: int = 4
    norm_rows: int = 16
    norm_warps: int = 4


TILES: Final = PromptTiles()
OTHER_TILES: Final = TILES._replace(system_registers=255, scan_values=32)
"""The tiles for cards whose products need both factors in registers, of which a thread has at
most 255.
"""

WIDE_TILES: Final = OTHER_TILES._replace(scan_values=16)
"""The tiles for float32, which has no tensor cores and takes twice the registers."""

_SIDE: Final = 16
"""The rows of a system's blocks, which are inverted row by row."""


@triton.jit
def _conv_kernel(
    rows_ptr,  # [T, ROW], a step's rows: queries, keys, values, then z
    conv_ptr,  # [C, WIDTH], weights of the convolution
    tails_ptr,  # [slots, WIDTH - 1, C], rows ahead of a span, oldest first
    starts_ptr,  # int32 [S], position of each span's first row
    slots_ptr,  # int32 [S]
    offsets_ptr,  # int32 [S + 1], first row of each span
    chunks_ptr,  # int32 [N, 2], span and number of each chunk
    mixed_ptr,  # [T, C], in the rows' dtype: what comes out
    C: tl.constexpr,  # columns of queries, keys and values
    ROW: tl.constexpr,  # numbers from row to row
    TAIL: tl.constexpr,  # numbers from slot to slot of the tails
    WIDTH: tl.constexpr,  # taps of the convolution
    HK: tl.constexpr,  # key heads
    K: tl.constexpr,  # numbers of a key
    V: tl.constexpr,  # numbers of a value
    CHUNK: tl.constexpr,  # rows of a chunk
    RUN: tl.constexpr,  # rows side by side in a thread
    BLOCK: tl.constexpr,  # the power of two from a head's columns on
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """One head's columns of a chunk, in runs of rows side by side: a run's rows are loaded once,
    not WIDTH times. The first chunk of a span keeps the span's last rows for the next step; no
    other reads those of before.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    span = tl.load(chunks_ptr + 2 * tl.program_id(0))
    if span >= 0:
        first = tl.load(chunks_ptr + 2 * tl.program_id(0) + 1) * CHUNK
        offset = tl.load(offsets_ptr + span).to(tl.int64)
        length = (tl.load(offsets_ptr + span + 1) - offset).to(tl.int32)
        part = tl.program_id(1)
        columns, inside, is_key = head_columns(part, HK, K, V, BLOCK)
        tail_ptr = tails_ptr + tl.load(slots_ptr + span).to(tl.int64) * TAIL + columns
        held = inside & (tl.load(starts_ptr + span) > 0)
        begin = first + RUN * tl.arange(0, CHUNK // RUN)
        loaded = ()
        for step in tl.static_range(RUN + WIDTH - 1):
            source = begin + step - (WIDTH - 1)
            is_row = ((source >= 0) & (source < length))[:, None] & inside[None, :]
            x_at = rows_ptr + offset * ROW + source[:, None] * ROW + columns[None, :]
            x = tl.load(x_at, is_row, 0.0).to(tl.float32)
            if step < WIDTH - 1:
                is_old = (source < 0)[:, None] & held[None, :]
                old_at = tail_ptr[None, :] + (source[:, None] + WIDTH - 1) * C
                x += tl.load(old_at, is_old, 0.0).to(tl.float32)
            loaded += (x,)  # type: ignore[assignment]
        weights = ()
        for back in tl.static_range(WIDTH):
            weight = tl.load(conv_ptr + columns * WIDTH + back, inside, 0.0)
            weights += (weight.to(tl.float32)[None, :],)  # type: ignore[assignment]
        scale = tl.where(part < HK, K**-0.5, 1.0)
        dtype: tl.constexpr = mixed_ptr.dtype.element_ty
        for step in tl.static_range(RUN):
            sums = loaded[step] * weights[0]  # type: ignore[misc]
            for back in tl.static_range(1, WIDTH):
                sums += loaded[step + back] * weights[back]
            out = silu(sums, dtype)
            if is_key:
                out = (unit_rows(out.to(tl.float32)) * scale).to(dtype)
            at = begin + step
            out_at = mixed_ptr + offset * C + at[:, None] * C + columns[None, :]
            tl.store(out_at, out, (at < length)[:, None] & inside[None, :])
        if first == 0:
            tl.debug_barrier()
            row_ptr = rows_ptr + offset * ROW + columns
            _keep_last(row_ptr, tail_ptr, length, inside, held, C, ROW, WIDTH)


@triton.jit
def _keep_last(
    row_ptr, tail_ptr, length, inside, held, C: tl.constexpr, ROW: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """A span's last rows become the tail; of a shorter span, behind the last of the old one."""
    for place in tl.static_range(WIDTH - 1):
        last = length - (WIDTH - 1) + place
        new = tl.load(row_ptr + last.to(tl.int64) * ROW, inside & (last >= 0), 0.0)
        old = tl.load(tail_ptr + (length + place) * C, held & (last < 0), 0.0)
        tl.store(tail_ptr + place * C, tl.where(last >= 0, new, old), inside)


@triton.jit(do_not_specialize=["num_rows", "first"])
def _norm_kernel(
    read_ptr,  # [T, HV, V], what is read of the states
    rows_ptr,  # [T, ROW], a step's rows: queries, keys, values, then z
    norm_ptr,  # [V], weights of the norm
    out_ptr,  # [T, HV, V], in the rows' dtype
    num_rows,  # rows of the step
    first,  # first row that is normed
    eps,  # epsilon of the norm
    C: tl.constexpr,  # columns of queries, keys and values
    ROW: tl.constexpr,  # numbers from row to row
    HV: tl.constexpr,  # value heads
    V: tl.constexpr,  # numbers of a value
    ROWS: tl.constexpr,  # rows of a program
    BLOCK_V: tl.constexpr,  # the power of two from V on
    ROUNDS: tl.constexpr,  # whether the norm's weights have the rows' dtype
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    rows = first + tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    values = tl.arange(0, BLOCK_V)
    inside = (rows < num_rows)[:, None] & (values < V)[None, :]
    columns = tl.program_id(1) * V + values[None, :]
    at = rows[:, None] * HV * V + columns
    weight = tl.load(norm_ptr + values, values < V, 0.0).to(tl.float32)
    z = tl.load(rows_ptr + rows[:, None] * ROW + C + columns, inside, 0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    read = tl.load(read_ptr + at, inside, 0.0).to(tl.float32)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tl.store(out_ptr + at, gated_rows(read, z, weight[None, :], eps, V, ROUNDS, dtype), inside)


def prompts(
    rows: Tensor,
    gates: Tensor,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    plan: DeltaPlan,
    sizes: DeltaSizes,
    out: Tensor,
    tiles: PromptTiles | None = None,
) -> None:
    """The spans behind the decodes, into `out` [T, HV V]; moves their states on."""
    tiles = tiles or _tiles_of(rows)
    num_rows, heads = len(rows), sizes.num_value_heads
    num_spans, num_chunks = len(plan.starts) - plan.num_decodes, len(plan.chunks)
    strides = rows.stride(0), state.tails.stride(0), state.matrices.stride(0)
    rounds = weights.norm.dtype == rows.dtype
    width = weights.conv.shape[1]
    launches = _launches(rows.device, rows.dtype, sizes, strides, width, eps, rounds, tiles)
    mixed = rows.new_empty(num_rows, sizes.columns)
    num_places = (num_rows // CHUNK + num_spans) * heads
    solved, scores = (rows.new_empty(num_places, CHUNK, CHUNK) for _ in range(2))
    blocks = rows.new_empty(num_places, CHUNK, _SIDE, dtype=torch.float32)
    factors = rows.new_empty(num_places, 3, CHUNK, dtype=torch.float32)
    read = rows.new_empty(num_rows, heads, sizes.value_dim)
    starts, slots, offsets, chunks = plan.starts, plan.slots, plan.offsets, plan.chunks
    launches.conv(
        (num_chunks, 2 * sizes.num_key_heads + heads, 1),
        (rows, weights.conv, state.tails, starts, slots, offsets, chunks, mixed),
    )
    launches.system(
        (num_chunks, heads, 1),
        (
            mixed,
            gates,
            weights.decay,
            weights.dt_bias,
            offsets,
            chunks,
            blocks,
            solved,
            scores,
            factors,
        ),
        (plan.num_decodes,),
    )
    launches.scan(
        (num_spans, heads, triton.cdiv(sizes.value_dim, launches.scan_values)),
        (mixed, solved, scores, factors, state.matrices, starts, slots, offsets, read),
        (plan.num_decodes,),
    )
    launches.norm(
        (triton.cdiv(num_rows - plan.num_decodes, tiles.norm_rows), heads, 1),
        (read, rows, weights.norm, out),
        (num_rows, plan.num_decodes),
    )


def _tiles_of(rows: Tensor) -> PromptTiles:
    if rows.dtype == torch.float32:
        return WIDE_TILES
    return TILES if _has_wgmma(rows.device) else OTHER_TILES


def _has_wgmma(device: torch.device) -> bool:
    """Whether products read a factor from shared memory, as Hopper's do."""
    return is_card(device) and capability(device) == (9, 0)


class _Launches(NamedTuple):
    conv: Launch
    system: Launch
    scan: Launch
    norm: Launch
    scan_values: int


@cache
def _launches(
    device: torch.device,
    dtype: torch.dtype,
    sizes: DeltaSizes,
    strides: tuple[int, int, int],
    width: int,
    eps: float,
    rounds: bool,
    tiles: PromptTiles,
) -> _Launches:
    row, tail, matrix = strides
    keys, values = (
        max(16, triton.next_power_of_2(size)) for size in (sizes.key_dim, sizes.value_dim)
    )
    pdl = has_pdl(device)
    part = min(tiles.scan_values, values)
    conv = {
        "C": sizes.columns, "ROW": row, "TAIL": tail, "WIDTH": width, "HK": sizes.num_key_heads,
        "K": sizes.key_dim, "V": sizes.value_dim, "CHUNK": CHUNK, "RUN": tiles.conv_run,
        "BLOCK": max(keys, values), "PDL": pdl,
    }  # fmt: skip
    system = {
        "C": sizes.columns, "HK": sizes.num_key_heads, "HV": sizes.num_value_heads,
        "K": sizes.key_dim, "CHUNK": CHUNK, "BLOCK_K": keys, "SIDE": _SIDE, "PRECISION": "ieee",
        "MERGE": "ieee" if dtype == torch.float32 else tiles.merge, "PDL": pdl,
    }  # fmt: skip
    scan = {name: system[name] for name in ("C", "HK", "HV", "K", "CHUNK", "BLOCK_K", "PRECISION")}
    scan |= {"STATE": matrix, "V": sizes.value_dim, "BLOCK_V": part, "PDL": pdl}
    scan["STAGES"] = _stages(device, dtype, keys, part, tiles.scan_stages)
    norm = {
        "eps": eps, "C": sizes.columns, "ROW": row, "V": sizes.value_dim,
        "HV": sizes.num_value_heads, "ROWS": tiles.norm_rows, "BLOCK_V": values, "ROUNDS": rounds,
        "PDL": pdl,
    }  # fmt: skip
    return _Launches(
        conv=Launch(_conv_kernel, conv, num_warps=tiles.conv_warps),
        system=Launch(
            system_kernel,
            system,
            num_warps=tiles.system_warps,
            maxnreg=tiles.system_registers,
        ),
        scan=Launch(scan_kernel, scan, num_warps=tiles.scan_warps),
        norm=Launch(_norm_kernel, norm, num_warps=tiles.norm_warps),
        scan_values=part,
    )


def _stages(device: torch.device, dtype: torch.dtype, keys: int, values: int, most: int) -> int:
    """As many stages as fit into the card's shared memory beside 32 KiB for exchanges. On Hopper a
    product reads its operands from shared memory until it ends; on other cards it copies them to
    registers first.
    """
    if not is_card(device):
        return 1
    chunk_bytes = CHUNK * (2 * keys + values + 2 * CHUNK) * dtype.itemsize
    num_held = max(1, (shared_bytes(device) - 32 * 1024) // chunk_bytes)
    return min(most, num_held if _has_wgmma(device) else num_held + 1)
