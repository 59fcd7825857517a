"""Products of rows with a weight matrix, with what stands before and after them in a layer.

Owns the checked entries. Must not know layers. A weight is [N, K], row-major, as checkpoints have
it, in x's dtype, in 4 bits (`Int4Weight`), in 8 (`Fp8Weight`), or in 16 and 8 (`DualWeight`: many
rows are quantised one by one and multiplied in 8 bits). Tensors are contiguous; a kernel is
compiled again for addresses that 16 does not divide.

On a CUDA device weights, norms and biases are parameters: kernels may read them before the kernel
ahead of them in the stream has ended, so no kernel just ahead may write them.

With `invariant` a row's result is bit for bit the same whatever rows stand beside it, and however
many; every float dtype on a card. It is slower: `kernels.linear.invariant`.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.choose import uses_triton
from kernels.fp8 import BLOCK, DualWeight, Fp8Weight, Weight
from kernels.int4 import Int4Weight
from kernels.linear import reference
from kernels.linear.choose import Op, library_rows
from kernels.linear.epilogue import Epilogue
from kernels.mxfp4 import Mxfp4Weight

if TYPE_CHECKING:
    from kernels.linear.int4_verdict import KernelVerdict

__all__ = [
    "Op",
    "Weight",
    "adds_bias_apart",
    "check_int4",
    "int4_verdict_on",
    "library_rows",
    "linear",
    "linear_add",
    "norm_linear",
    "norm_swiglu",
    "rounds_rows",
]


def linear(
    x: Tensor, weight: Weight, bias: Tensor | None = None, *, invariant: bool = False
) -> Tensor:
    """`x W^T + bias`: x [T, K], weight [N, K], bias [N] -> [T, N], all of one float dtype but a
    weight in 8 bits.

    Products are summed in float32. With a weight in 8 bits a single row is multiplied as it is, and
    several may be quantised as well, row by row: `kernels.fp8`. Raises `ValueError`.
    """
    return _product(Op.LINEAR, x, weight, Epilogue(bias=bias), invariant=invariant)


def norm_linear(
    x: Tensor,
    norm: Tensor,
    eps: float,
    weight: Weight,
    bias: Tensor | None = None,
    *,
    invariant: bool = False,
) -> Tensor:
    """`rms_norm(x, norm, eps) W^T + bias`; norm [K], possibly float32, the rest as in `linear`.

    The reference rounds the normed row to x's dtype before and after the norm's weight. The kernels
    may keep it in float32 up to the product, or apply the row's scale to the finished sum: as close
    to the definition, not bit for bit the same.
    """
    epilogue = Epilogue(norm=norm, eps=eps, bias=bias)
    return _product(Op.NORM_LINEAR, x, weight, epilogue, invariant=invariant)


def norm_swiglu(
    x: Tensor,
    norm: Tensor,
    eps: float,
    gate_up: Weight,
    *,
    is_gelu: bool = False,
    invariant: bool = False,
) -> Tensor:
    """`silu(g) * u` of the normed rows' products with gate_up [2 I, K], gate first -> [T, I]; with
    `is_gelu` the tanh form of gelu in place of silu.

    The reference rounds g, silu(g) and the result to x's dtype; the kernels round the result only.
    """
    if gate_up.shape[0] % 2:
        raise ValueError(f"gate_up {tuple(gate_up.shape)} has an odd number of rows")
    if isinstance(gate_up, Fp8Weight) and gate_up.is_blocked and gate_up.shape[0] // 2 % BLOCK:
        raise ValueError(f"a block of gate_up {tuple(gate_up.shape)} holds gates and ups")
    epilogue = Epilogue(norm=norm, eps=eps, swiglu=True, is_gelu=is_gelu)
    return _product(Op.NORM_SWIGLU, x, gate_up, epilogue, invariant=invariant)


def linear_add(
    x: Tensor,
    weight: Weight,
    residual: Tensor,
    bias: Tensor | None = None,
    *,
    invariant: bool = False,
) -> Tensor:
    """`residual + x W^T + bias`; residual [T, N]. May overwrite `residual`: use the result only.

    The reference rounds the product before the sum; the kernels round the sum only.
    """
    epilogue = Epilogue(bias=bias, residual=residual)
    return _product(Op.LINEAR_ADD, x, weight, epilogue, invariant=invariant)


def adds_bias_apart(x: Tensor, weight: Weight, bias: Tensor, *, invariant: bool = False) -> bool:
    """Whether `linear_add` of x would read and write its residual once more for the bias: of many
    rows on a card, as the library knows no product with both. Then whoever reads the sum next had
    better add the bias (`kernels.rms_norm.bias_norm`).
    """
    if not uses_triton(x) or not isinstance(weight, Tensor | DualWeight):
        return False
    from kernels.linear import device

    form = of_rows(weight, x)
    return isinstance(form, Tensor) and device.goes_to_library(
        Op.LINEAR_ADD, x, form, Epilogue(bias=bias), invariant=invariant
    )


def _product(op: Op, x: Tensor, weight: Weight, epilogue: Epilogue, *, invariant: bool) -> Tensor:
    _check(x, weight, epilogue)
    if uses_triton(x):
        from kernels.linear import device

        form = of_rows(weight, x)
        return device.chosen_product(op, x, form, epilogue, invariant=invariant)
    return reference.product(x, weight, epilogue, invariant=invariant)


def rounds_rows(
    op: Op,
    num_rows: int,
    weight: Weight,
    like: Tensor,
    *,
    bias: Tensor | None = None,
    is_gelu: bool = False,
    invariant: bool = False,
) -> bool:
    """Whether the entry `op` rounds rows of x to 8 bits, one scale each, if there are `num_rows` of
    them in the dtype and on the device of `like`: by a weight in 8 bits, where that is faster. The
    error is then three times that of 16 bits, so a check must round the same rows.
    """
    if isinstance(weight, Tensor | Int4Weight | Mxfp4Weight):
        return False
    if not uses_triton(like):
        return reference.rounds_rows(num_rows, weight)
    from kernels.linear import device

    x = like.new_empty(1).expand(num_rows, weight.shape[1])
    form = of_rows(weight, x)
    if not isinstance(form, Fp8Weight):
        return False
    epilogue = Epilogue(bias=bias, swiglu=op is Op.NORM_SWIGLU, is_gelu=is_gelu)
    return device.rounds_rows(op, x, form, epilogue, invariant=invariant)


def check_int4(device: torch.device, dtype: torch.dtype) -> "KernelVerdict":
    """Find out whether products in 4 bits are right on a CUDA device by the kernel in CUDA C++, for
    x in `dtype`. Before a check, and where they are not, Triton's kernels serve.

    Call it outside captures; only the first call in a process checks. Raises `CardBroken` if the
    kernel left the device in a state in which this process cannot use it.
    """
    from kernels.linear import int4_verdict

    return int4_verdict.check(device, dtype)


def int4_verdict_on(device: torch.device, dtype: torch.dtype) -> "KernelVerdict | None":
    """What `check_int4` has found; None before it."""
    from kernels.linear import int4_verdict

    return int4_verdict.verdict_on(device, dtype)


def of_rows(weight: Weight, x: Tensor) -> Tensor | Fp8Weight | Int4Weight:
    """The form of a weight in which rows like x are multiplied."""
    if isinstance(weight, Mxfp4Weight):
        raise TypeError("only experts have weights of MXFP4")
    return weight.of_rows(x.shape[0]) if isinstance(weight, DualWeight) else weight


def _check(x: Tensor, weight: Weight, epilogue: Epilogue) -> None:
    """Check the tensors of a product. The check runs at every product of every layer, so it
    reads each tensor's shape once at most.
    """
    norm, _, bias, residual, *_ = epilogue
    shape, weight_shape, dtype = x.shape, weight.shape, x.dtype
    weight_dtype = weight.dtype if isinstance(weight, Tensor) else dtype
    if len(shape) != 2 or len(weight_shape) != 2 or shape[1] != weight_shape[1]:
        raise ValueError(f"x {tuple(shape)}, weight {tuple(weight_shape)}")
    if dtype != weight_dtype:
        raise ValueError(f"x {dtype}, weight {weight_dtype}")
    for name, vector, size in (("norm", norm, shape[1]), ("bias", bias, weight_shape[0])):
        if vector is None:
            continue
        fits = vector.dtype == dtype or (vector is norm and vector.dtype == torch.float32)
        if vector.ndim != 1 or vector.numel() != size or not fits:
            raise ValueError(f"{name} {tuple(vector.shape)} {vector.dtype} for {size} columns")
    if residual is None:
        return
    if residual.shape != (shape[0], weight_shape[0]) or residual.dtype != dtype:
        raise ValueError(f"residual {tuple(residual.shape)} {residual.dtype} for {tuple(shape)}")
