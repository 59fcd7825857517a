"""Compiles the Triton kernels of products in 4 bits for a card that is not there: `ARCH`, as 120.

Run as a program, without the interpreter. Prints the most shared memory that one takes, and what
the card has, in bytes.
"""

import sys
from importlib import import_module
from itertools import product
from typing import Any

import torch

from kernels import int4 as four_bits
from kernels.choose import shared_bytes
from kernels.int4 import GROUPS, Int4Weight
from kernels.linear import int4
from kernels.linear.epilogue import Epilogue
from kernels.recorder import pretend_device, record_launches

META = torch.device("meta")
SHAPES = [(6144, 4096), (4096, 12288)]
"""Weight rows and columns of an 8B."""


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=META)


def _launch(num_weight_rows: int, depth: int, group: int, *, has_zeros: bool) -> None:
    """Each kernel, for one and two rows, and for few, some and many."""
    groups = num_weight_rows, depth // group
    words = _empty(num_weight_rows, depth // 8, dtype=torch.int32)
    weight = Int4Weight(
        words, _empty(*groups), _empty(*groups, dtype=torch.uint8) if has_zeros else None
    )
    for num_rows in (1, 2):
        int4.by_gemv(_empty(num_rows, depth), weight, Epilogue(norm=_empty(depth), eps=1e-6))
    for num_rows in (3, 17, 64):
        residual = _empty(num_rows, num_weight_rows)
        int4.by_skinny(_empty(num_rows, depth), weight, Epilogue(residual=residual))
    four_bits.dequantise(weight, torch.bfloat16)


def main() -> None:
    """The sizes of an 8B, and of other groups eleven: columns that no tile divides."""
    pretend_device(int(sys.argv[1]))
    with record_launches() as recorded:
        for num_weight_rows, depth in SHAPES:
            _launch(num_weight_rows, depth, GROUPS[0], has_zeros=True)
        for group, has_zeros in product(GROUPS[1:], (False, True)):
            _launch(96, 11 * group, group, has_zeros=has_zeros)
    most = 0
    for kernel in recorded.values():
        function: Any = getattr(import_module(kernel.module), kernel.name)
        most = max(most, int(function.preload(kernel.specialisation).metadata.shared))
    print(most, shared_bytes(META))


if __name__ == "__main__":
    main()
