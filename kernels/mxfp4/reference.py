"""The definition of a weight in MXFP4: its numbers."""

from typing import Final

import torch
from torch import Tensor

from kernels.mxfp4.placing import in_order
from kernels.mxfp4.weight import GROUP, Mxfp4Weight

_BIAS: Final = 127
_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of the numbers without their sign, by their bits."""


def dequantise(weight: Mxfp4Weight, dtype: torch.dtype) -> Tensor:
    """The numbers [N, K], each rounded once to `dtype`."""
    pairs = in_order(weight)
    bits = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(1).int()
    table = torch.tensor(_VALUES + tuple(-value for value in _VALUES), device=bits.device)
    powers = torch.exp2(weight.powers.float() - _BIAS)
    return (table[bits] * powers.repeat_interleave(GROUP, 1)).to(dtype)
