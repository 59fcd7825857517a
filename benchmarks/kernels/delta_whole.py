"""The kernel that took states through rows before `kernels/delta_rule/row_steps.py`: a variant of
`delta_sweep.py` until a card has compared them.

Owns the kernel and its launch. A program has a whole head's [K, V] state; its warps have keys, so
each row's sums wait for all of them.
"""

# ruff: noqa: ANN001, ANN202, N803 - device code is typed by Triton

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.delta_rule import DeltaSizes
from kernels.delta_rule.pieces import gated
from kernels.delta_rule.row_steps import Places, Prepared
from kernels.launch import Launch


@triton.jit(do_not_specialize=["num_rows"])
def _whole_kernel(
    mixed_ptr, scales_ptr, rows_ptr, norm_ptr, state_ptr, starts_ptr, folds_ptr, firsts_ptr,
    slots_ptr, offsets_ptr, out_ptr, num_rows, eps,
    C: tl.constexpr, ROW: tl.constexpr, STATE: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    ROUNDS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head, span = tl.program_id(0), tl.program_id(1)
    start = tl.load(starts_ptr + span)
    if start >= 0:
        num_folds = tl.load(folds_ptr + span)
        first = tl.load(offsets_ptr + span)
        total = num_folds + tl.load(offsets_ptr + span + 1) - first
        folded, new = num_rows + tl.load(firsts_ptr + span), first - num_folds
        keys, values = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
        has_key, has_value = keys < K, values < V
        state_at = state_ptr + tl.load(slots_ptr + span).to(tl.int64) * STATE + head * K * V
        state_at += keys[:, None] * V + values[None, :]
        inside = has_key[:, None] & has_value[None, :]
        held = tl.load(state_at, inside & (start > 0), 0.0)
        weight = tl.load(norm_ptr + values, has_value, 0.0).to(tl.float32)
        query_at = mixed_ptr + head // (HV // HK) * K + keys
        value_at = mixed_ptr + 2 * HK * K + head * V + values
        dtype: tl.constexpr = out_ptr.dtype.element_ty
        if PDL:  # the state is on its way while rows are prepared
            tl.extra.cuda.gdc_wait()
        for at in range(total):
            is_new = at >= num_folds
            row = tl.where(is_new, new + at, folded + at).to(tl.int64)
            z_at = rows_ptr + tl.where(is_new, row, 0) * ROW + C + head * V + values
            z = tl.load(z_at, has_value & is_new, 0.0).to(tl.float32)
            # All at once: behind the update each would be another way to the L2 cache.
            key = tl.load(query_at + row * C + HK * K, has_key, 0.0)
            query = tl.load(query_at + row * C, has_key & is_new, 0.0)
            value = tl.load(value_at + row * C, has_value, 0.0)
            scale_at = scales_ptr + row * 2 * HV + head
            beta, kept = tl.load(scale_at), tl.load(scale_at + HV)
            held *= kept
            update = beta * (value - tl.sum(held * key[:, None], 0))
            held += key[:, None] * update[None, :]
            if at == num_folds:
                # The slot again: addresses that wait for the store would take registers, and two
                # programs fit a multiprocessor with 128.
                slot = tl.load(slots_ptr + span, volatile=True).to(tl.int64)
                own_at = state_ptr + slot * STATE + head * K * V
                tl.store(own_at + keys[:, None] * V + values[None, :], held, inside)
            if is_new:
                read = tl.sum(held * query[:, None], 0)
                out = gated(read[None, :], z[None, :], weight[None, :], eps, V, ROUNDS, dtype)
                out_at = out_ptr + row * HV * V + head * V + values
                tl.store(out_at[None, :], out, has_value[None, :])


def whole(
    prepared: Prepared,
    rows: Tensor,
    norm: Tensor,
    eps: float,
    matrices: Tensor,
    places: Places,
    sizes: DeltaSizes,
    out: Tensor,
) -> None:
    """As `row_steps.advance`."""
    strides, rounds = (rows.stride(0), matrices.stride(0)), norm.dtype == rows.dtype
    launch = _launch(rows.device, sizes, strides, eps, rounds)
    grid = sizes.num_value_heads, len(places.slots), 1
    launch(grid, (*prepared, rows, norm, matrices, *places, out), (len(rows),))


@cache
def _launch(
    device: torch.device, sizes: DeltaSizes, strides: tuple[int, int], eps: float, rounds: bool
) -> Launch:
    row, matrix = strides
    pdl = has_pdl(device)
    keys, values = (triton.next_power_of_2(size) for size in (sizes.key_dim, sizes.value_dim))
    constants = {
        "eps": eps, "C": sizes.columns, "ROW": row, "STATE": matrix, "HK": sizes.num_key_heads,
        "HV": sizes.num_value_heads, "K": sizes.key_dim, "V": sizes.value_dim, "BLOCK_K": keys,
        "BLOCK_V": values, "ROUNDS": rounds, "PDL": pdl,
    }  # fmt: skip
    num_warps = max(1, min(8, keys * values // 2048))
    return Launch(_whole_kernel, constants, num_warps=num_warps, maxnreg=128, launch_pdl=pdl)
