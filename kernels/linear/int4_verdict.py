"""Which devices `int4_tiles` serves: those on which it was seen to be right, in this process.

Owns the verdict of each device, and the mark of a check that never ended. Must not know the
products of the check. Without a verdict the Triton kernels serve: nothing relies on a check that
was not made.

A kernel may also break the device's context, or never end. This process can then compute nothing
on that device: the check raises `CardBroken` and leaves its mark, a word in a file in Triton's
cache. The next process finds it, checks nothing, and has the Triton kernels serve. The file is
locked meanwhile, so that processes that start at once check one after the other.
"""

import time
from collections.abc import Callable
from fcntl import LOCK_EX, flock
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import torch
from triton.runtime.cache import get_cache_manager

from kernels.cuda.hopper import header, runs_on
from kernels.cuda.source import compiler_version
from kernels.linear import int4_check, int4_tiles

_LONGEST_S: Final = 10.0
"""A thousand times what a product of the check takes."""
_POLL_S: Final = 1e-3
_NEXT: Final = "the next start leaves it out"


class CardBroken(Exception):
    """The kernel broke the context of its device, or did not end: this process cannot use it."""


class Verdict(NamedTuple):
    """Whether `int4_tiles` serves a device, and a line for people. `is_fault`: it should have, with
    all its ways to multiply. `has_wgmma`: that of warp groups serves too.
    """

    serves: bool
    text: str
    is_fault: bool = False
    has_wgmma: bool = False


_verdicts: dict[tuple[torch.device, torch.dtype], Verdict] = {}


def verdict_on(device: torch.device, dtype: torch.dtype) -> Verdict | None:
    """For rows of that dtype; None before a check."""
    return _verdicts.get((_indexed(device), dtype))


def serves(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a check has found it right. On the pretended device it counts as right: where it is
    not, the Triton kernels are compiled when they are first launched.
    """
    if device.type == "meta":
        return True
    verdict = _verdicts.get((device, dtype))
    return verdict is not None and verdict.serves


def has_wgmma(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether its warp groups multiply as well, in bfloat16; see `serves`."""
    if device.type == "meta":
        return dtype == torch.bfloat16
    verdict = _verdicts.get((device, dtype))
    return verdict is not None and verdict.has_wgmma


def check(device: torch.device, dtype: torch.dtype) -> Verdict:
    """Find out, once in a process, outside of captures; on the pretended device only the launches
    of a check are recorded. Raises `CardBroken`.
    """
    device = _indexed(device)
    known = _verdicts.get((device, dtype))
    if known is None:
        known = _verdicts[device, dtype] = _verdict(device, dtype)
    return known


def _indexed(device: torch.device) -> torch.device:
    """As tensors name theirs."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _verdict(device: torch.device, dtype: torch.dtype) -> Verdict:
    if not runs_on(device) or dtype not in int4_tiles.HALVES:
        return Verdict(False, f"4-bit products: Triton's kernels, in {dtype} on {device}")
    int4_check.record(dtype)  # on a card this waits for what is being compiled ahead
    if device.type == "meta":
        return Verdict(True, "4-bit products: int4_tiles, as far as is known ahead")
    begun_at = time.perf_counter()
    settle = partial(wait_for, device)
    run = partial(int4_check.first_fault, int4_tiles.product, device, dtype, settle)
    mark = mark_of(device)
    verdict = judge(mark, run)
    if verdict.serves and dtype == torch.bfloat16:
        # A mark of its own: warp groups that never end are left out alone next time.
        own = mark.with_name(f"{mark.name}_wgmma")
        grouped = judge(own, partial(run, int4_check.WGMMA_PRODUCTS))
        verdict = with_wgmma(verdict, grouped)
    return verdict._replace(text=f"{verdict.text} ({time.perf_counter() - begun_at:.1f} s)")


def judge(mark: Path, run: Callable[[], str]) -> Verdict:
    """The verdict by the fault that `run` finds, "" for none. `mark` has a word in it while it
    runs, and keeps it if `run` raises or the process dies; where it has one, `run` is not called.
    """
    mark.parent.mkdir(parents=True, exist_ok=True)
    with mark.open("a", encoding="utf-8") as file:
        flock(file, LOCK_EX)
        if mark.stat().st_size:
            fault = f"an earlier check did not end; remove {mark} to have it made again"
        else:
            file.write("begun")
            file.flush()
            fault = run()
            file.truncate(0)
    if fault:
        return Verdict(False, f"4-bit products: Triton's kernels, int4_tiles: {fault}", True)
    return Verdict(True, "4-bit products: int4_tiles, which was right here")


def with_wgmma(verdict: Verdict, grouped: Verdict) -> Verdict:
    """That of the kernel with that of its warp groups, which many rows can do without."""
    if grouped.serves:
        return verdict._replace(has_wgmma=True)
    why = grouped.text.partition("int4_tiles: ")[2]
    text = f"4-bit products: int4_tiles, without warp groups, which are wrong here: {why}"
    return verdict._replace(text=text, is_fault=True)


def mark_of(device: torch.device) -> Path:
    """Named after the card, its driver, and all that the kernel is made of."""
    from kernels.cuda.driver import version

    card = str(torch.cuda.get_device_properties(device))
    source = Path(int4_tiles.__file__).with_suffix(".cu").read_text(encoding="utf-8")
    parts = [card, str(version()), compiler_version(), source, *header().values()]
    key = sha256("\0".join(parts).encode()).hexdigest()
    return Path(get_cache_manager(key).cache_dir) / "int4_check"


def wait_for(device: torch.device) -> None:
    """Until all that was launched has ended. Raises `CardBroken`."""
    until = time.monotonic() + _LONGEST_S
    try:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        while not event.query():
            if time.monotonic() > until:
                raise CardBroken(f"int4_tiles did not end in {_LONGEST_S:.0f} s; {_NEXT}")
            time.sleep(_POLL_S)
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise CardBroken(f"int4_tiles broke the context of {device}: {why}; {_NEXT}") from error
