"""A layer of the gated delta rule on a CUDA device, and two Triton kernels of single rows: one
convolution step, and one step of the rule with its norm.

Owns the choice of kernels for rows, and the launches of these two. The state is read and written
once: a program holds one head's [K, V] numbers in registers, and norms the head's output. Here the
convolution is a kernel of its own, because several value heads share the columns of a key head and
their tail. `fused.py` has one kernel for both, for few sequences, and `streamed.py` one for many.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.delta_rule.fused import FusedTiles, fused
from kernels.delta_rule.pieces import gated, log_kept, sigmoid, unit_rows
from kernels.delta_rule.plan import DeltaPlan
from kernels.delta_rule.prompts import prompts
from kernels.delta_rule.shapes import DeltaSizes, DeltaState, DeltaWeights, GateProduct
from kernels.delta_rule.streamed import StreamTiles, streamed
from kernels.launch import Launch

_COLUMNS = 512


class StepTiles(NamedTuple):
    """Warps of a program that holds a head's state, and registers of a thread. Sums are added up by
    warps, so another number of warps rounds differently.
    """

    num_warps: int = 8
    registers: int = 128


STEP_TILES: Final = StepTiles()
"""The tiles of the two kernels here. Two programs share a multiprocessor: while one adds up, the
other loads. With these tiles a layer of the 27B takes an H200 8.3 us for one sequence, 27.4 for 8,
and 45.7, 78.6 and 141 for 16, 32 and 64 (`python -m benchmarks.kernels delta_sweep --case decode`).
"""

MANY_TILES: Final = StreamTiles()
"""For more than `_SOME` sequences: 33.0, 62.9, 121 and 459 us for 16, 32, 64 and 256. A copy of the
states would take 24.3, 48.5, 97 and 388. With three stages they take 46, 81, 142 and 530."""

SOME_TILES: Final = FusedTiles(4, 255, 32)
"""For up to `_SOME` sequences: 4.5 us for one, 19.0 for 8."""

FEW_TILES: Final = FusedTiles(8, 255, 16)
"""For up to `_FEW` sequences, with the product of their gates: 7.0 us for two, where the product
and two kernels take 14.8."""

_FEW: Final = 2
_SOME: Final = 8


def takes_product(num_rows: int, plan: DeltaPlan) -> bool:
    """Whether the gates of a step may be given as a `GateProduct`: in a step of few decodes alone
    each program computes its own gates, from two rows of the weight.
    """
    return num_rows == plan.num_decodes <= _FEW


@triton.jit
def _conv_step_kernel(
    rows_ptr, conv_ptr, tails_ptr, starts_ptr, slots_ptr, mixed_ptr,
    C: tl.constexpr, ROW: tl.constexpr, TAIL: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        # In this order, so that the kernel behind starts when all ahead of this one have ended.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    span = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < C
    tail_ptr = tails_ptr + tl.load(slots_ptr + span).to(tl.int64) * TAIL + columns
    held = inside & (tl.load(starts_ptr + span) > 0)
    x = tl.load(rows_ptr + span * ROW + columns, inside, 0.0)
    last = tl.load(conv_ptr + columns * WIDTH + WIDTH - 1, inside, 0.0).to(tl.float32)
    sums = x.to(tl.float32) * last
    for back in tl.static_range(WIDTH - 1):
        old = tl.load(tail_ptr + back * C, held, 0.0).to(tl.float32)
        sums += old * tl.load(conv_ptr + columns * WIDTH + back, inside, 0.0).to(tl.float32)
    tl.store(mixed_ptr + span * C + columns, sums * sigmoid(sums), inside)
    # Each place is read before it is written over: the oldest goes first.
    for back in tl.static_range(WIDTH - 2):
        old = tl.load(tail_ptr + (back + 1) * C, held, 0.0)
        tl.store(tail_ptr + back * C, old, inside)
    tl.store(tail_ptr + (WIDTH - 2) * C, x, inside)


@triton.jit
def _step_kernel(
    mixed_ptr, rows_ptr, gates_ptr, decay_ptr, dt_bias_ptr, norm_ptr, state_ptr, starts_ptr,
    slots_ptr, out_ptr, eps,
    C: tl.constexpr, ROW: tl.constexpr, STATE: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    ROUNDS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    span, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    keys, values = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    has_key, has_value = keys < K, values < V
    # Only the convolution may still be running: all that it does not write is asked for at once.
    state_at = state_ptr + tl.load(slots_ptr + span).to(tl.int64) * STATE + head * K * V
    state_at += keys[:, None] * V + values[None, :]
    inside = has_key[:, None] & has_value[None, :]
    held = tl.load(state_at, inside & (tl.load(starts_ptr + span) > 0), 0.0)
    gate_at = gates_ptr + span * 2 * HV + head
    b, a = tl.load(gate_at).to(tl.float32), tl.load(gate_at + HV).to(tl.float32)
    decay, dt_bias = tl.load(decay_ptr + head), tl.load(dt_bias_ptr + head)
    value_at = head * V + values
    z = tl.load(rows_ptr + span * ROW + C + value_at, has_value, 0.0).to(tl.float32)
    weight = tl.load(norm_ptr + values, has_value, 0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    key_at = mixed_ptr + span * C + head // (HV // HK) * K + keys
    query = tl.load(key_at, has_key, 0.0).to(tl.float32)
    key = tl.load(key_at + HK * K, has_key, 0.0).to(tl.float32)
    value = tl.load(mixed_ptr + span * C + 2 * HK * K + value_at, has_value, 0.0).to(tl.float32)
    query, key = unit_rows(query[None, :]) * (K**-0.5), unit_rows(key[None, :])
    beta, kept = sigmoid(b), log_kept(a, decay, dt_bias)
    held *= tl.exp(kept)
    query, key = tl.trans(query), tl.trans(key)
    update = beta * (value - tl.sum(held * key, 0))
    held += key * update[None, :]
    tl.store(state_at, held, inside)
    read = tl.sum(held * query, 0)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    out = gated(read[None, :], z[None, :], weight[None, :], eps, V, ROUNDS, dtype)
    tl.store(out_ptr + span * HV * V + value_at[None, :], out, has_value[None, :])


def mix(
    rows: Tensor,
    gates: Tensor | GateProduct,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    plan: DeltaPlan,
    sizes: DeltaSizes,
) -> Tensor:
    """See `kernels.delta_rule.mix`."""
    out = rows.new_empty(len(rows), sizes.value_columns)
    if plan.num_decodes:
        decode(rows, gates, weights, eps, state, plan, sizes, out)
    if len(plan.starts) > plan.num_decodes and len(plan.chunks):
        if isinstance(gates, GateProduct):
            raise TypeError("prompts take their gates as numbers")
        prompts(rows, gates, weights, eps, state, plan, sizes, out)
    return out


def decode(
    rows: Tensor,
    gates: Tensor | GateProduct,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    plan: DeltaPlan,
    sizes: DeltaSizes,
    out: Tensor,
    tiles: StepTiles | FusedTiles | StreamTiles | None = None,
) -> None:
    """Row i of the first `plan.num_decodes` of a step, into `out` [T, HV V]; moves states on."""
    num_decodes = plan.num_decodes
    if tiles is None:
        if isinstance(gates, GateProduct):
            tiles = FEW_TILES
        else:
            tiles = SOME_TILES if num_decodes <= _SOME else MANY_TILES
    if isinstance(tiles, FusedTiles):
        fused(rows, gates, weights, eps, state, plan, sizes, out, tiles)
        return
    if isinstance(gates, GateProduct):
        raise TypeError("these kernels take gates as numbers")
    if isinstance(tiles, StreamTiles):
        streamed(rows, gates, weights, eps, state, plan, sizes, out, tiles)
        return
    mixed = rows.new_empty(num_decodes, sizes.columns)
    strides = rows.stride(0), state.tails.stride(0), state.matrices.stride(0)
    rounds = weights.norm.dtype == rows.dtype
    width = weights.conv.shape[1]
    conv, step = _launches(rows.device, sizes, strides, width, eps, rounds, tiles)
    places = plan.starts, plan.slots
    blocks = triton.cdiv(sizes.columns, _COLUMNS)
    conv((num_decodes, blocks, 1), (rows, weights.conv, state.tails, *places, mixed))
    step(
        (num_decodes, sizes.num_value_heads, 1),
        (
            mixed,
            rows,
            gates,
            weights.decay,
            weights.dt_bias,
            weights.norm,
            state.matrices,
            *places,
            out,
        ),
    )


@cache
def _launches(
    device: torch.device,
    sizes: DeltaSizes,
    strides: tuple[int, int, int],
    width: int,
    eps: float,
    rounds: bool,
    tiles: StepTiles,
) -> tuple[Launch, Launch]:
    row, tail, matrix = strides
    keys, values = (triton.next_power_of_2(size) for size in (sizes.key_dim, sizes.value_dim))
    pdl = has_pdl(device)
    conv = {"C": sizes.columns, "ROW": row, "TAIL": tail, "WIDTH": width, "BLOCK": _COLUMNS}
    conv["PDL"] = pdl
    step = {
        "eps": eps, "C": sizes.columns, "ROW": row, "STATE": matrix, "HK": sizes.num_key_heads,
        "HV": sizes.num_value_heads, "K": sizes.key_dim, "V": sizes.value_dim, "BLOCK_K": keys,
        "BLOCK_V": values, "ROUNDS": rounds, "PDL": pdl,
    }  # fmt: skip
    num_warps = max(1, min(tiles.num_warps, tiles.num_warps * keys * values // 2**14))
    options = {"num_warps": num_warps, "launch_pdl": pdl, "maxnreg": tiles.registers}
    return (
        Launch(_conv_step_kernel, conv, num_warps=4, launch_pdl=pdl),
        Launch(_step_kernel, step, **options),
    )
