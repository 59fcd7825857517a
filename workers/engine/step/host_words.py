"""The numbers of a step on their way from the host to the card, read by a kernel.

Owns page-locked memory, used in turn, and when a place in it is free again. Must not know what the
numbers mean.

A copy takes its turn behind the copies that other streams have begun in the same direction. While
prefixes come back from the host these are tens of MiB, and a step would wait a millisecond for its
hundred bytes. A kernel that reads the host's memory waits for nobody (vllm's `UvaBuffer` is made
for the same reason). Launch it where what follows does not begin early (`launch_pdl`): before a
captured graph.
"""

from __future__ import annotations

from functools import cache
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from kernels.page_rows import read_words

BY_KERNEL: Final = True
"""Whether a card reads the host's memory; else numbers are copied."""

_HALF_WORDS: Final = 512 * 1024
_MOST_WORDS: Final = 64 * 1024
"""Of one call: 256 KiB. More is copied."""

_ALIGNED: Final = 4
"""Words: places begin at multiples of 16 bytes, for which kernels are compiled."""

Words = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@final
class HostWords:
    """Two halves of page-locked memory. Places are taken one behind the other; a half is used again
    when the card has read all that was taken of it, which it long has.
    """

    def __init__(self) -> None:
        self._memory = torch.zeros((2, _HALF_WORDS), dtype=torch.int32).pin_memory()
        self._numbers = self._memory.numpy()
        self._read = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self._half = self._at = 0

    def put(self, values: Words) -> Tensor:
        """A copy of the int32 `values` in a place of its own; launch its reading at once."""
        size = values.size
        if self._at + size > _HALF_WORDS:
            self._read[self._half].record()
            self._half, self._at = 1 - self._half, 0
            self._read[self._half].synchronize()
        at, self._at = self._at, self._at + -(-size // _ALIGNED) * _ALIGNED
        self._numbers[self._half, at : at + size] = values.reshape(-1)
        return self._memory[self._half, at : at + size]


def send_words(target: Tensor, values: Words) -> None:
    """Set `target`, int32 and contiguous, to `values` of its shape, without waiting. Steps in
    flight that read it do so before.
    """
    if target.is_cpu:
        target.copy_(torch.from_numpy(values))
    elif BY_KERNEL and 0 < values.size <= _MOST_WORDS:
        is_card = target.is_cuda  # else the device that records kernels
        source = _host_words(target.device).put(values) if is_card else target.view(-1)
        read_words(source, target.view(-1))
    else:
        target.copy_(torch.from_numpy(values).pin_memory(), non_blocking=True)


def sent_words(values: Words, device: torch.device) -> Tensor:
    """The int32 `values` on the device, without waiting."""
    target = torch.empty(values.shape, dtype=torch.int32, device=device)
    send_words(target, values)
    return target


@cache
def _host_words(device: torch.device) -> HostWords:
    with torch.cuda.device(device):
        return HostWords()
