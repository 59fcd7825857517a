"""Plain torch definitions of the fused products; the CPU path.

A weight of 8 or 4 bits is widened for every product: exact, and slow. If a weight has both forms,
many rows are rounded to 8 bits too, as on a card. Invariant products are taken of `TILE_ROWS` rows
at a time, the last ones padded: matrix libraries choose their order of summation by the number of
rows.
"""

from functools import partial
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.by_rows import by_rows
from kernels.fp8 import DualWeight, Fp8Weight, Weight
from kernels.fp8 import reference as fp8
from kernels.int4 import Int4Weight, in_order
from kernels.linear.epilogue import Epilogue
from kernels.mxfp4 import Mxfp4Weight
from kernels.mxfp4 import dequantise as widen_mxfp4
from kernels.rms_norm import reference as norms
from kernels.silu_mul import reference as gates

TILE_ROWS: Final = 16


def product(x: Tensor, weight: Weight, epilogue: Epilogue, *, invariant: bool = False) -> Tensor:
    """A product with what stands before and after it: see `Epilogue`."""
    norm, eps, bias, residual, swiglu, is_gelu = epilogue
    rows = x if norm is None else norms.rms_norm(x, norm, eps)
    out = linear(rows, weight, bias, invariant)
    if swiglu:
        gate = partial(gates.silu_mul, is_gelu=is_gelu)
        return by_rows(gate, out) if invariant else gate(out)
    return out if residual is None else residual + out


def rounds_rows(num_rows: int, weight: Fp8Weight | DualWeight) -> bool:
    """See `kernels.linear.rounds_rows`: only of a weight that has both forms."""
    return isinstance(weight, DualWeight) and isinstance(weight.of_rows(num_rows), Fp8Weight)


def linear(x: Tensor, weight: Weight, bias: Tensor | None, invariant: bool = False) -> Tensor:
    """See `kernels.linear.linear`."""
    if isinstance(weight, Fp8Weight | DualWeight) and rounds_rows(x.shape[0], weight):
        values, scales = fp8.quantize_rows(x, None, 0.0)
        x = (values.to(torch.float32) * scales[:, None]).to(x.dtype)
    if isinstance(weight, DualWeight):
        weight = weight.of_rows(x.shape[0])
    dense = _dense(weight, x.dtype)
    if not invariant:
        return F.linear(x, dense, bias)
    padded = F.pad(x, (0, 0, 0, -x.shape[0] % TILE_ROWS))
    out = x.new_empty(padded.shape[0], dense.shape[0])
    for at in range(0, padded.shape[0], TILE_ROWS):
        out[at : at + TILE_ROWS] = F.linear(padded[at : at + TILE_ROWS], dense, bias)
    return out[: x.shape[0]]


def _dense(weight: Tensor | Fp8Weight | Int4Weight | Mxfp4Weight, dtype: torch.dtype) -> Tensor:
    if isinstance(weight, Mxfp4Weight):
        return widen_mxfp4(weight, dtype)
    if isinstance(weight, Int4Weight):
        return in_order(weight, dtype)
    return weight if isinstance(weight, Tensor) else fp8.dequantise(weight, dtype)
