"""Philox4x32-10 for a few numbers in the host's memory, with numpy; the numbers are equal to those
of `reference`.

A round is a product of 64 bits whose halves are read in place, and two exclusive ors: three calls
of numpy, where torch, which has no such product of 32-bit words, needs sixteen. For a row of 151
columns that is 0.15 instead of 0.94 ms of a core. Hosts are little-endian: the low half of a
product is first.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.philox.reference import KEY_STEPS, MULTIPLIERS, ROUNDS

MOST_NUMBERS: Final = 2**15
"""The most numbers for which the cost of calls dominates. For more numbers the work dominates,
which torch gives to several cores.
"""

_FACTORS: Final = np.array(MULTIPLIERS, np.uint64).reshape(2, 1, 1)
_STEPS: Final = np.arange(ROUNDS, dtype=np.uint32)[:, None] * np.array(KEY_STEPS, np.uint32)
"""What is added to the two words of a key before each round, [rounds, 2]."""


def uniform_noise(seeds: Tensor, positions: Tensor, num_columns: int) -> Tensor:
    """See `kernels.philox.uniform_noise`."""
    num_rows, num_groups = seeds.shape[0], (num_columns + 3) // 4
    first = np.zeros((2, num_rows, num_groups), np.uint32)
    second = np.zeros_like(first)
    first[0] = np.arange(num_groups, dtype=np.uint32)
    second[0] = positions.numpy().astype(np.uint32)[:, None]
    key = np.ascontiguousarray(seeds.numpy()).view(np.uint32).reshape(-1, 2).T
    first, second = _rounds(first, second, key)
    words = np.empty((num_rows, num_groups, 2, 2), np.uint32)
    words[..., 0] = first.transpose(1, 2, 0)
    words[..., 1] = second.transpose(1, 2, 0)
    words >>= 9
    uniforms = words.astype(np.float32)
    uniforms += np.float32(0.5)
    uniforms *= np.float32(2.0**-23)
    return torch.from_numpy(uniforms).flatten(1)[:, :num_columns]


def _rounds(
    first: NDArray[np.uint32], second: NDArray[np.uint32], key: NDArray[np.uint32]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Words 0 and 2, then words 1 and 3, of the counters after all rounds: [2, rows, groups], as
    `first` and `second` have them before. `key` is [2, rows].
    """
    keys = key + _STEPS[:, :, None]
    product = np.empty(first.shape, np.uint64)
    for number in range(ROUNDS):
        np.multiply(first, _FACTORS, out=product)
        halves = product.view(np.uint32).reshape(*product.shape, 2)[::-1]
        first = halves[..., 1] ^ second
        first ^= keys[number][:, :, None]
        second = halves[..., 0].copy()  # the next product is written over these
    return first, second
