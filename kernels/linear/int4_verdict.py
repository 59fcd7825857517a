"""Which kernel in CUDA C++ serves a device: its candidate, if a check in this process found it
correct there.

Owns the candidate and the verdict of each device, and the mark of a check that did not end. Must
not know the products of the check. Without a verdict the Triton kernels serve.

The kernel may also break the device's context, or never end. Then this process can compute nothing
on that device any more: the check raises `CardBroken` and leaves its mark, a line in a file in
Triton's cache. The next process finds the mark, makes no check and uses the Triton kernels. A check
that was interrupted leaves none, and one that was killed is made again (`int4_mark`).
"""

import time
from collections.abc import Callable
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

import torch

from kernels.choose import capability, indexed, is_card, shared_bytes
from kernels.cuda import hopper
from kernels.cuda.card_mark import mark_path
from kernels.linear import int4_ampere, int4_check, int4_mark, int4_tiles

_LONGEST_S: Final = 10.0
"""The longest time of a product: a thousand times what one of the check takes."""
_POLL_S: Final = 1e-3
_NEXT: Final = "the next start leaves it out"


class CardBroken(Exception):
    """The kernel broke the context of its device, or did not end: this process cannot use it."""


class CandidateKernel(StrEnum):
    """A kernel in CUDA C++ for products in 4 bits."""

    TILES = "int4_tiles"
    AMPERE = "int4_ampere"


class KernelVerdict(NamedTuple):
    """Whether the candidate serves a device, and a line for operators. `is_fault`: a check failed.
    `has_wgmma`: the products of `int4_tiles` by warp groups serve too.
    """

    serves: bool
    text: str
    is_fault: bool = False
    has_wgmma: bool = False


_verdicts: dict[tuple[torch.device, torch.dtype], KernelVerdict] = {}


def candidate(compute_capability: tuple[int, int]) -> CandidateKernel | None:
    """Which kernel is checked on such a card, and serves where it is right: on Hopper the one that
    its copy engine feeds, from Ampere on elsewhere the one with asynchronous copies.
    """
    if compute_capability == (9, 0):
        return CandidateKernel.TILES
    return CandidateKernel.AMPERE if compute_capability >= (8, 0) else None


@cache
def candidate_on(device: torch.device) -> CandidateKernel | None:
    """The candidate of a device; None without a card or a compiler."""
    if not is_card(device) or not hopper.has_compiler():
        return None
    return candidate(capability(device))


def verdict_on(device: torch.device, dtype: torch.dtype) -> KernelVerdict | None:
    """The verdict for rows of that dtype; None before a check."""
    return _verdicts.get((indexed(device), dtype))


def serves(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a check has found the candidate correct. On the pretended device it counts as
    correct; if it is not, the Triton kernels are compiled when they are first launched.
    """
    if device.type == "meta":
        return True
    verdict = _verdicts.get((device, dtype))
    return verdict is not None and verdict.serves


def serving(device: torch.device, dtype: torch.dtype) -> CandidateKernel | None:
    """The kernel that serves rows of that dtype; see `serves`."""
    return candidate_on(device) if serves(device, dtype) else None


def has_wgmma(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products by warp groups, in bfloat16, are correct too; see `serves`."""
    if device.type == "meta":
        return dtype == torch.bfloat16
    verdict = _verdicts.get((device, dtype))
    return verdict is not None and verdict.has_wgmma


def check(device: torch.device, dtype: torch.dtype) -> KernelVerdict:
    """Check the candidate, once in a process; call it outside captures. On the pretended device it
    only records the launches of a check. Raises `CardBroken`.
    """
    device = indexed(device)
    known = _verdicts.get((device, dtype))
    if known is None:
        known = _verdicts[device, dtype] = _verdict(device, dtype)
    return known


def _verdict(device: torch.device, dtype: torch.dtype) -> KernelVerdict:
    kernel = candidate_on(device)
    if kernel is None or dtype not in int4_tiles.HALVES:
        return KernelVerdict(False, f"4-bit products: Triton's kernels, in {dtype} on {device}")
    has_groups = kernel is CandidateKernel.TILES and dtype == torch.bfloat16
    product, cases = _checked(kernel, device)
    others = int4_check.WGMMA_PRODUCTS if has_groups else ()
    # On a card this waits for what is being compiled ahead.
    int4_check.record(product, dtype, (*cases, *others))
    if device.type == "meta":
        return KernelVerdict(True, f"4-bit products: {kernel}, as far as is known ahead")
    begun_at = time.perf_counter()
    settle = partial(wait_for, device)
    run = partial(int4_check.first_fault, product, device, dtype, settle)
    mark = mark_of(device)
    verdict = judge(mark, partial(run, cases), kernel)
    if verdict.serves and has_groups:
        # A mark of its own: warp groups that never end are left out alone next time.
        own = mark.with_name(f"{mark.name}_wgmma")
        grouped = judge(own, partial(run, int4_check.WGMMA_PRODUCTS))
        verdict = with_wgmma(verdict, grouped)
    return verdict._replace(text=f"{verdict.text} ({time.perf_counter() - begun_at:.1f} s)")


def _checked(
    kernel: CandidateKernel, device: torch.device
) -> tuple[int4_check.Product, tuple[int4_check.CheckedProduct, ...]]:
    """A kernel's launch, and the products that it is checked by."""
    match kernel:
        case CandidateKernel.TILES:
            return int4_tiles.product, int4_check.PRODUCTS
        case CandidateKernel.AMPERE:
            configs = int4_ampere.configs_on(shared_bytes(device))
            return int4_ampere.product, int4_check.ampere_products(configs)


def judge(
    mark: Path, run: Callable[[], str], kernel: CandidateKernel = CandidateKernel.TILES
) -> KernelVerdict:
    """The verdict on a kernel by the fault that `run` finds, "" for none. `mark` has words in it
    while it runs, and keeps them if the kernel breaks the card or the process dies: see
    `int4_mark`. Where it has a reason, `run` is not called.
    """
    with int4_mark.held(mark) as file:
        if fault := int4_mark.reason(file):
            fault = f"{fault}; remove {mark} to have it made again"
        else:
            with int4_mark.marked(file, CardBroken):
                fault = run()
    if fault:
        return KernelVerdict(False, f"4-bit products: Triton's kernels, {kernel}: {fault}", True)
    return KernelVerdict(True, f"4-bit products: {kernel}, which was right here")


def with_wgmma(verdict: KernelVerdict, grouped: KernelVerdict) -> KernelVerdict:
    """The kernel's verdict with that of its products by warp groups, which it can do without."""
    if grouped.serves:
        return verdict._replace(has_wgmma=True)
    why = grouped.text.partition("int4_tiles: ")[2]
    text = f"4-bit products: int4_tiles, without warp groups, which are wrong here: {why}"
    return verdict._replace(text=text, is_fault=True)


def mark_of(device: torch.device) -> Path:
    """The mark's path; its name is a hash of the card, its driver, and the kernel's sources."""
    is_ampere = candidate_on(device) is CandidateKernel.AMPERE
    source = (int4_ampere.int4_ampere if is_ampere else int4_tiles.int4_tiles).path
    headers = hopper.header("ampere.h" if is_ampere else "hopper.h")
    return mark_path(device, "int4_check", source.read_text(encoding="utf-8"), *headers.values())


def wait_for(device: torch.device) -> None:
    """Wait until all that was launched has ended. Raises `CardBroken`."""
    until = time.monotonic() + _LONGEST_S
    try:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        while not event.query():
            if time.monotonic() > until:
                raise CardBroken(f"4-bit products did not end in {_LONGEST_S:.0f} s; {_NEXT}")
            time.sleep(_POLL_S)
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise CardBroken(f"4-bit products broke the context of {device}: {why}; {_NEXT}") from error
