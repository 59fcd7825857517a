"""Whether experts are multiplied in CUDA C++ on a device: where a card has shown that they are
right, and a check of this very card finds the same.

Owns the verdict of each device, sizes and form, and which a card has run. Must not know the
products of the check, which a process of its own makes: one that the kernel breaks costs a line.
Without a verdict Triton's kernels serve.

A check imports torch and opens a context of the card, which takes seconds. So one that was right
leaves a file in Triton's cache, named after the card, its driver, the compiler, the sources and the
sizes; later starts read it. One that was not is made again.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import torch

from kernels.choose import capability, indexed
from kernels.cuda.card_mark import mark_path
from kernels.experts import counted, listed, mxfp4, rounded, wide
from kernels.experts.card_check import CheckedMixture
from kernels.experts.headers import headers
from kernels.mxfp4 import placing

RAN: Final = frozenset(
    {
        ((9, 0), 2880, 2880, "mxfp4"),
        ((9, 0), 2048, 768, "blocks"),
        ((9, 0), 2048, 768, "rows"),
        ((9, 0), 2048, 512, "blocks"),
        ((9, 0), 2048, 512, "rows"),
    }
)
"""Capability, hidden size, gates of an expert and form of the stacks: what was right on a card, an
H200.
"""

_LONGEST_S: Final = 120.0
"""Seconds of a check at most: its kernels may have to be compiled first, on a loaded host."""

_NAME: Final = "experts"

_Key = tuple[int, int, str]
"""Hidden size, gates of an expert, form."""


class MixtureVerdict(NamedTuple):
    """Whether the kernel serves, and a line for operators. `is_fault`: a check failed."""

    serves: bool
    text: str
    is_fault: bool = False


_verdicts: dict[tuple[torch.device, _Key], MixtureVerdict] = {}


def serves(device: torch.device, hidden: int, width: int, form: str) -> bool:
    """Whether a check has found the kernels right for these sizes, in this form. On the pretended
    device they count as right where a card has run them.
    """
    key = hidden, width, form
    if device.type == "meta":
        return _has_run(device, key)
    verdict = _verdicts.get((device, key))
    return verdict is not None and verdict.serves


def fault_on(device: torch.device) -> str:
    """The lines of checks that failed there, one behind the other; "" without any."""
    device = indexed(device)
    faults = [each.text for (on, *_), each in _verdicts.items() if on == device and each.is_fault]
    return "; ".join(faults)


def check(device: torch.device, mixture: CheckedMixture, command: Sequence[str]) -> MixtureVerdict:
    """Check the kernel, once in a process for the same sizes. `command` runs
    `kernels.experts.card_check`.
    """
    device = indexed(device)
    key = device, (mixture.hidden, mixture.width, mixture.form)
    if key not in _verdicts:
        _verdicts[key] = _verdict(device, mixture, command)
    return _verdicts[key]


def _verdict(
    device: torch.device, mixture: CheckedMixture, command: Sequence[str]
) -> MixtureVerdict:
    if not mxfp4.runs_on(device):
        return MixtureVerdict(False, f"{_NAME}: Triton's kernels, on {device}")
    if not _has_run(device, (mixture.hidden, mixture.width, mixture.form)):
        size = f"{mixture.hidden} x {mixture.width}, {mixture.form}"
        return MixtureVerdict(
            False, f"{_NAME}: Triton's kernels; none in CUDA C++ has run {size} on such a card"
        )
    words = msgspec.json.encode({"mixture": mixture, "device": device.index})
    return judge(mark_of(device, mixture), lambda: asked(command, words))


def judge(mark: Path, run: Callable[[], str]) -> MixtureVerdict:
    """The verdict by the fault that `run` finds, "" for none; not called where `mark` is."""
    if mark.exists():
        return MixtureVerdict(True, f"{_NAME}: kernels in CUDA C++, which were right here before")
    begun_at = time.perf_counter()
    fault = run()
    took = f"({time.perf_counter() - begun_at:.1f} s)"
    if fault:
        text = f"{_NAME}: Triton's kernels, those in CUDA C++: {fault} {took}"
        return MixtureVerdict(False, text, is_fault=True)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return MixtureVerdict(True, f"{_NAME}: kernels in CUDA C++, which were right here {took}")


def asked(command: Sequence[str], words: bytes, longest_s: float = _LONGEST_S) -> str:
    """The fault that a check's process finds, "" for none: also its end without an answer."""
    try:
        done = subprocess.run(
            command, input=words, capture_output=True, check=False, timeout=longest_s
        )
    except subprocess.TimeoutExpired:
        return f"its check did not end in {longest_s:g} s"
    except OSError as error:
        return f"its check did not start: {error}"
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = f": {said[-1]}" if said else ""
        return f"its check ended with status {done.returncode}{why}"
    try:
        return msgspec.json.decode(done.stdout, type=str)
    except msgspec.DecodeError as error:
        return f"its check answered what is no answer: {error}"


def mark_of(device: torch.device, mixture: CheckedMixture) -> Path:
    """Where a check that was right leaves its file."""
    sources = [Path(mxfp4.__file__), mxfp4.mxfp4_experts.path]
    sources += Path(counted.__file__), Path(listed.__file__), listed.listed_experts.path
    sources += Path(wide.__file__), wide.wide_experts.path
    sources += Path(rounded.__file__), rounded.rounded_experts.path, Path(placing.__file__)
    return mark_path(
        device,
        "experts_right",
        torch.__version__,
        sys.version,
        repr(mixture),
        *(source.read_text(encoding="utf-8") for source in sources),
        *headers("ampere.h").values(),
        *headers("hopper.h").values(),
    )


def _has_run(device: torch.device, key: _Key) -> bool:
    # First what needs no driver: a pretended device may have none.
    is_known = any(known[1:] == key for known in RAN)
    return is_known and mxfp4.runs_on(device) and (capability(device), *key) in RAN
