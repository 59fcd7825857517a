"""Triton sum of several cards' parts: push, flag, wait, add.

Owns the launch. Must not know layers, nor how the memory came about.
"""

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.all_reduce.mail import GRAIN, SLOT_BYTES, SLOTS, Mail
from kernels.choose import has_pdl
from kernels.launch import Launch

_SMALL_BYTES: Final = 2048
"""What a program pushes of a sum that all slots take at once: the row of one token is spread over
several programs.
"""

_MOST_POLLS: Final = {False: 2**30, True: 2**24}
"""The most looks at a flag without and with `is_trial`. A look takes some 0.6 us: a rank waits
about ten minutes, as long as a library's sum does, because another rank may be compiling a kernel;
ten seconds in a trial.
"""


@triton.jit(do_not_specialize=["grains"])
def _add_parts_kernel(  # noqa: C901, PLR0912 - device code is not cut into pieces
    part_ptr,  # [numbers], this rank's part
    residual_ptr,  # [numbers], added to the sum if ADDS
    out_ptr,  # [numbers], the sum
    parts_ptr,  # [RANKS] addresses of each rank's mail, [RANKS, SLOTS, 2, SLOT numbers]
    flags_ptr,  # [RANKS] addresses of each rank's flags, int32 [RANKS, SLOTS]
    counts_ptr,  # [SLOTS] int32, how often this rank has used each slot
    grains,  # numbers of a part in units of GRAIN
    RANK: tl.constexpr,  # this rank
    RANKS: tl.constexpr,  # how many there are
    GRAIN: tl.constexpr,  # numbers of 16 bytes
    BLOCK: tl.constexpr,  # numbers that a program pushes at a time
    SLOT: tl.constexpr,  # numbers of half a slot
    SLOTS: tl.constexpr,  # slots of a mail
    ADDS: tl.constexpr,  # whether there is a residual
    MOST_POLLS: tl.constexpr,  # looks at a flag before a wait ends
    TRAPS: tl.constexpr,  # whether the program ends with it; else it adds what lies there
    PDL: tl.constexpr,  # whether kernels overlap their neighbours
):
    slot = tl.program_id(0)
    numbers = grains * GRAIN
    blocks = tl.cdiv(numbers, BLOCK)
    offsets = tl.arange(0, BLOCK)
    dtype = part_ptr.dtype.element_ty
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()  # what comes next may fetch weights meanwhile
    own_mail = tl.load(parts_ptr + RANK).to(tl.pointer_type(dtype))
    own_flags = tl.load(flags_ptr + RANK).to(tl.pointer_type(tl.int32))
    count = tl.load(counts_ptr + slot)
    for block in range(slot, blocks, tl.num_programs(0)):
        at = block * BLOCK + offsets
        inside = at < numbers
        own = tl.load(part_ptr + at, mask=inside, other=0.0)
        place = (slot * 2 + (count & 1)) * SLOT + offsets
        for rank in tl.static_range(RANKS):
            if rank != RANK:
                mail = tl.load(parts_ptr + rank).to(tl.pointer_type(dtype))
                mail = tl.multiple_of(mail, 16)
                tl.store(mail + RANK * (2 * SLOTS * SLOT) + place, own, mask=inside)
        tl.debug_barrier()  # all threads have pushed before one thread sets the flag
        for rank in tl.static_range(RANKS):
            if rank != RANK:
                flags = tl.load(flags_ptr + rank).to(tl.pointer_type(tl.int32))
                tl.atomic_add(flags + RANK * SLOTS + slot, 1, sem="release", scope="sys")
        count += 1
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for rank in tl.static_range(RANKS):
            if rank == RANK:
                total += own.to(tl.float32)
            else:
                flag = own_flags + rank * SLOTS + slot
                # The other rank may be one turn ahead; the difference holds when counts wrap.
                ahead = tl.atomic_add(flag, 0, sem="acquire", scope="sys") - count
                polls = 0
                while ahead < 0:
                    ahead = tl.atomic_add(flag, 0, sem="acquire", scope="sys") - count
                    polls += 1
                    if polls == MOST_POLLS:
                        ahead = 0
                        if TRAPS:
                            tl.inline_asm_elementwise(
                                "trap; mov.u32 $0, $1;", "=r,r", [polls], dtype=tl.int32,
                                is_pure=False, pack=1,
                            )  # fmt: skip
                mail = tl.multiple_of(own_mail, 16) + rank * (2 * SLOTS * SLOT)
                # Past the first cache, which other cards do not write.
                came = tl.load(mail + place, mask=inside, other=0.0, cache_modifier=".cg")
                total += came.to(tl.float32)
        if ADDS:
            total += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + at, total.to(dtype), mask=inside)
    tl.store(counts_ptr + slot, count)


def add_parts(
    part: Tensor,
    residual: Tensor | None,
    mail: Mail,
    *,
    is_trial: bool = False,
    most_programs: int = SLOTS,
) -> Tensor:
    """See `kernels.all_reduce.add_parts`; all ranks have as many `most_programs`."""
    out = torch.empty_like(part)
    size = part.element_size()
    if not part.numel():
        return out
    pushed = _SMALL_BYTES if part.nbytes <= SLOTS * _SMALL_BYTES else SLOT_BYTES
    adds = residual is not None
    launch = _launch_of(part.device, size, pushed, mail.rank, mail.ranks, adds, is_trial)
    given = residual.contiguous() if residual is not None else part
    operands = part, given, out, mail.parts, mail.flags, mail.counts
    programs = min(most_programs, triton.cdiv(part.nbytes, pushed))
    launch((programs, 1, 1), operands, (part.nbytes // GRAIN,))
    return out


@cache
def _launch_of(
    device: torch.device,
    size: int,
    pushed: int,
    rank: int,
    ranks: int,
    adds: bool,
    is_trial: bool,
) -> Launch:
    return Launch(
        _add_parts_kernel,
        {
            "RANK": rank,
            "RANKS": ranks,
            "GRAIN": GRAIN // size,
            "BLOCK": pushed // size,
            "SLOT": SLOT_BYTES // size,
            "SLOTS": SLOTS,
            "ADDS": adds,
            "MOST_POLLS": _MOST_POLLS[is_trial],
            "TRAPS": not is_trial,
            "PDL": has_pdl(device),
        },
        num_warps=min(8, pushed // 512),
    )
