"""Triton penalties: a program per tile of the vocabulary and penalised row, or per page of tokens.

Owns the launches.
"""

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.launch import Launch
from kernels.penalise.reference import MAX_OUTPUTS, Penalties

TILE: Final = 1024
_NUM_WARPS: Final = 4
"""The best that `python -m benchmarks.kernels penalise` tries, or within 2 % of it, for 1, 64 and
256 rows of 152k on an H200."""

_PAGE: Final = 128
_PAGE_WARPS: Final = 4


@triton.jit
def _penalise_kernel(
    logits_ptr,  # [rows, vocab_size]
    counts_ptr,  # int16 [slots, vocab_size]; below 0: in the prompt
    rows_ptr,  # int64 [penalised], row of the logits
    slots_ptr,  # int64 [penalised], row of the counts
    repetition_ptr,  # float32 [penalised]; 1: none
    frequency_ptr,  # float32 [penalised]
    presence_ptr,  # float32 [penalised]
    out_ptr,  # float32 [penalised, vocab_size]
    vocab_size,  # tokens
    MAX_OUTPUTS: tl.constexpr,  # the bits of a count that say how often a token was generated
    TILE: tl.constexpr,  # tokens of a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    tile, number = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    tokens = tile * TILE + tl.arange(0, TILE)
    inside = tokens < vocab_size
    row, slot = tl.load(rows_ptr + number), tl.load(slots_ptr + number)
    factor = tl.load(repetition_ptr + number)
    frequency, presence = tl.load(frequency_ptr + number), tl.load(presence_ptr + number)
    values = tl.load(logits_ptr + row * vocab_size + tokens, mask=inside, other=0.0).to(tl.float32)
    words = tl.load(counts_ptr + slot * vocab_size + tokens, mask=inside, other=0).to(tl.int32)
    outputs = words & MAX_OUTPUTS
    if factor != 1.0:  # a true division takes longer than all else here
        repeated = tl.where(values > 0.0, tl.div_rn(values, factor), values * factor)
        values = tl.where(words != 0, repeated, values)
    values = values - frequency * outputs.to(tl.float32)
    values = values - tl.where(outputs > 0, presence, 0.0)
    tl.store(out_ptr + number.to(tl.int64) * vocab_size + tokens, values, mask=inside)


# One compilation for every number of rows.
@triton.jit(do_not_specialize=["num_rows"])
def _count_ids_kernel(
    ids_ptr,  # int64 [rows], drawn tokens; -1 is none
    counts_ptr,  # int16 [slots, vocab_size]
    rows_ptr,  # int64 [num_rows], row of `ids`
    slots_ptr,  # int64 [num_rows], row of the counts
    num_rows,  # penalised rows
    vocab_size,  # tokens
    MAX_OUTPUTS: tl.constexpr,  # the largest count of a generated token
    PAGE: tl.constexpr,  # rows of a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    numbers = tl.program_id(0) * PAGE + tl.arange(0, PAGE)
    there = numbers < num_rows
    rows = tl.load(rows_ptr + numbers, mask=there, other=0)
    slots = tl.load(slots_ptr + numbers, mask=there, other=0)
    tokens = tl.load(ids_ptr + rows, mask=there, other=-1)
    said = there & (tokens >= 0) & (tokens < vocab_size)
    at = counts_ptr + slots * vocab_size + tokens
    words = tl.load(at, mask=said, other=0).to(tl.int32)
    grows = said & ((words & MAX_OUTPUTS) < MAX_OUTPUTS)
    tl.store(at, (words + 1).to(tl.int16), mask=grows)


# One compilation for every number of entries. A plain launch: it is made once for a sequence.
@triton.jit(do_not_specialize=["num_entries"])
def _mark_kernel(
    entries_ptr,  # int32 [num_entries, 3]: slot, token, word
    counts_ptr,  # int16 [num_slots, vocab_size]
    num_entries,  # entries; those outside the counts are left out
    num_slots,  # rows of the counts
    vocab_size,  # tokens
    PAGE: tl.constexpr,  # entries of a program
):
    entries = tl.program_id(0) * PAGE + tl.arange(0, PAGE)
    there = entries < num_entries
    slots = tl.load(entries_ptr + 3 * entries, mask=there, other=-1).to(tl.int64)
    tokens = tl.load(entries_ptr + 3 * entries + 1, mask=there, other=-1)
    words = tl.load(entries_ptr + 3 * entries + 2, mask=there, other=0)
    good = (slots >= 0) & (slots < num_slots) & (tokens >= 0) & (tokens < vocab_size)
    at = counts_ptr + slots * vocab_size + tokens
    words |= tl.load(at, mask=good, other=0).to(tl.int32)
    tl.store(at, words.to(tl.int16), mask=good)


def penalise(
    logits: Tensor,
    counts: Tensor,
    penalties: Penalties,
    out: Tensor,
    *,
    tile: int = TILE,
    num_warps: int = _NUM_WARPS,
) -> None:
    """See `kernels.penalise.penalise`."""
    num_rows, vocab_size = out.shape
    launch = _penalise_launch(logits.device, vocab_size, tile, num_warps)
    tensors = (
        logits, counts, penalties.rows, penalties.slots,
        penalties.repetition, penalties.frequency, penalties.presence, out,
    )  # fmt: skip
    launch((triton.cdiv(vocab_size, tile), num_rows, 1), tensors)


@cache
def _penalise_launch(device: torch.device, vocab_size: int, tile: int, num_warps: int) -> Launch:
    pdl = has_pdl(device)
    constants = {"vocab_size": vocab_size, "MAX_OUTPUTS": MAX_OUTPUTS, "TILE": tile, "PDL": pdl}
    # Not fused: then the numbers are the reference's, bit for bit, and memory is the limit anyway.
    return Launch(_penalise_kernel, constants, num_warps=num_warps, enable_fp_fusion=False)


def count(ids: Tensor, counts: Tensor, penalties: Penalties) -> None:
    """See `kernels.penalise.count`."""
    num_rows = penalties.rows.shape[0]
    launch = _count_launch(counts.device, counts.shape[1])
    tensors = ids, counts, penalties.rows, penalties.slots
    launch((triton.cdiv(num_rows, _PAGE), 1, 1), tensors, (num_rows,))


@cache
def _count_launch(device: torch.device, vocab_size: int) -> Launch:
    pdl = has_pdl(device)
    constants = {"vocab_size": vocab_size, "MAX_OUTPUTS": MAX_OUTPUTS, "PAGE": _PAGE, "PDL": pdl}
    return Launch(_count_ids_kernel, constants, num_warps=_PAGE_WARPS)


def mark(entries: Tensor, counts: Tensor) -> None:
    """See `kernels.penalise.mark`."""
    num_entries = entries.shape[0] // 3
    num_slots, vocab_size = counts.shape
    launch = _mark_launch(num_slots, vocab_size)
    launch((triton.cdiv(num_entries, _PAGE), 1, 1), (entries, counts), (num_entries,))


@cache
def _mark_launch(num_slots: int, vocab_size: int) -> Launch:
    constants = {"num_slots": num_slots, "vocab_size": vocab_size, "PAGE": _PAGE}
    return Launch(_mark_kernel, constants, num_warps=_PAGE_WARPS)
