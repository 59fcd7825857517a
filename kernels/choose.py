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


_FP8_CAPABILITY: Final = (8, 9)

_PRETENDED_MULTIPROCESSORS: Final = 132
"""The multiprocessors of the pretended device: those of an H200."""

_SHARED_KIB: Final = {
    (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227, (10, 3): 227,
    (12, 0): 99, (12, 1): 99,
}  # fmt: skip


def uses_triton(x: Tensor) -> bool:
    """Whether operations on `x` run in Triton: CUDA tensors, unless the environment forbids it."""
    return (x.is_cuda or x.is_meta) and not _REFERENCE_ONLY


def is_card(device: torch.device) -> bool:
    """Whether kernels on `device` are compiled; else Triton interprets them, in tests."""
    return device.type in ("cuda", "meta")


def has_pdl(device: torch.device) -> bool:
    """Whether kernels on `device` may start before the kernel ahead of them has ended.

    Pass it as the kernel's `PDL`. False on a CPU, so in the interpreter.
    """
    return is_card(device) and capability(device) >= _PDL_CAPABILITY


@cache
def shared_bytes(device: torch.device) -> int:
    """What a program on a card may take of shared memory, by NVIDIA's tables of capabilities. A
    capability that they do not have counts as the smallest.
    """
    return _SHARED_KIB.get(capability(device), min(_SHARED_KIB.values())) * 1024


@cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors a card has, or the pretended device."""
    if device.type != "cuda":
        return _PRETENDED_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def has_fp8(device: torch.device) -> bool:
    """Whether kernels on a card know e4m3: since Ada."""
    return capability(device) >= _FP8_CAPABILITY


def indexed(device: torch.device) -> torch.device:
    """The device with its index, as tensors name it."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a card, or of the pretended device."""
    if device.type == "meta":
        from triton.runtime import driver

        arch: int = driver.active.get_current_target().arch
        return divmod(arch, 10)
    return torch.cuda.get_device_capability(device.index)
