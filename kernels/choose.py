"""Which implementation serves a tensor: the Triton kernel or the plain-torch reference.

Owns the rule and the one switch, `HERMA_KERNELS=reference`. Must not know any kernel. Entries
import their kernel inside the branch that needs it: on a CPU, Triton is never loaded. torch's
`meta` device is the pretended device (`kernels.recorder`).
"""

import os
from functools import cache
from typing import Final

import torch
from torch import Tensor

_REFERENCE_ONLY: Final = os.environ.get("HERMA_KERNELS") == "reference"

_PDL_CAPABILITY: Final = (9, 0)
"""Programmatic dependent launch came with Hopper."""


def uses_triton(x: Tensor) -> bool:
    """Whether operations on `x` run in Triton: CUDA tensors, unless the environment forbids it."""
    return (x.is_cuda or x.is_meta) and not _REFERENCE_ONLY


def is_card(device: torch.device) -> bool:
    """Whether kernels on `device` are compiled; else Triton interprets them, in tests."""
    return device.type in ("cuda", "meta")


def has_pdl(device: torch.device) -> bool:
    """Whether kernels on `device` may start before the kernel ahead of them has ended.

    Pass it as the kernel's `PDL` and as `launch_pdl`. False on a CPU, so in the interpreter.
    """
    return is_card(device) and capability(device) >= _PDL_CAPABILITY


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a card, or of the pretended device."""
    if device.type == "meta":
        from triton.runtime import driver

        arch: int = driver.active.get_current_target().arch
        return divmod(arch, 10)
    return torch.cuda.get_device_capability(device.index)
