"""Small products that show whether a kernel in CUDA C++ computes correctly on a card.

Owns the products, their exact results and what counts as wrong. Must not know which card it is, nor
the consequences of a fault: tensors and a product in, a line out.

The shapes are not those of a model. Together they use every tile and every part of the kernel, and
last tiles, steps and groups that are not full. They take less than half a second of a card and of
a processor, once their kernels are compiled.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.int4 import Int4Weight, dequantise, packed
from kernels.linear import int4_choose
from kernels.linear.config import Int4Ampere, Int4Tiles
from kernels.linear.epilogue import NOTHING, Epilogue
from kernels.linear.int4_choose import grouped

Product = Callable[..., Tensor]
"""The signature of `int4_tiles.product` and `int4_ampere.product`."""

EPS: Final = 1e-6

_HOST: Final = torch.device("cpu")

_MEAN_ERROR: Final = 8e-3
_MOST_ERROR: Final = 0.1
"""Limits of the mean error and of the largest error, relative to the root mean square of the exact
result. Rounding results to bfloat16, and weights before the product, makes mean errors of 1.4e-3 to
2.9e-3, and 0.03 for single numbers, more for large ones. A column of a thousand that is left out
makes 3e-2, a wrong tile 1.
"""

_OWN_ERROR: Final = 1 / 64
"""An additional error of a single number relative to itself: four times its rounding to bfloat16.
"""

_SPREAD: Final = 4.8
"""The standard deviation of numbers less their zero points; it keeps products at the size of x."""


class CheckedProduct(NamedTuple):
    """One product: rows of x, weight rows, columns, and the columns of a group. `num_times`
    products follow each other without waiting, each with the result of the previous one. `config`
    None: that of `int4_tiles` which `int4_choose` chooses; others are those of larger products.
    `num_splits` is for `int4_ampere`, whose tiles have none of their own.
    """

    num_rows: int
    num_weight_rows: int
    depth: int
    group: int
    parts: str = ""
    num_times: int = 1
    config: Int4Tiles | Int4Ampere | None = None
    num_splits: int = 1

    def has(self, part: str) -> bool:
        """Whether `parts` names it."""
        return part in self.parts.split()


def _lone(
    warps_m: int,
    warps_k: int,
    m_tiles: int,
    splits: int,
    stages: int,
    *,
    turns: int = 1,
    wide: int = 1,
) -> Int4Tiles:
    return Int4Tiles(
        warps_m=warps_m,
        warps_k=warps_k,
        m_tiles=m_tiles,
        eights=1,
        splits=splits,
        stages=stages,
        blocks=2,
        turns=turns,
        wide=wide,
        lone=True,
    )


PRODUCTS: Final = (
    CheckedProduct(1, 200, 2304, 128, "zeros norm"),
    CheckedProduct(1, 96, 8192, 128, "bias"),  # by eight programs of a cluster
    CheckedProduct(4, 136, 1088, 64, "residual"),  # a last step of 64 columns
    CheckedProduct(4, 1024, 1024, 128, "zeros", num_times=8),
    CheckedProduct(
        8,
        200,
        3072,
        64,
        "residual",
        config=Int4Tiles(
            warps_m=1, warps_k=4, m_tiles=2, eights=1, splits=1, stages=6, blocks=2, turns=2, wide=2
        ),
    ),
    CheckedProduct(7, 1024, 1024, 128, "zeros", num_times=8, config=_lone(2, 4, 2, 1, 4, wide=2)),
    CheckedProduct(
        1, 500, 3072, 128, "zeros norm swiglu", config=_lone(1, 4, 3, 1, 6, turns=2, wide=2)
    ),  # one row in shared memory, a last tile of 24 gates that is not full
    CheckedProduct(
        1, 200, 4608, 128, "zeros residual", config=_lone(1, 4, 2, 2, 8, turns=2, wide=2)
    ),  # clusters whose programs have an odd number of stages
    CheckedProduct(
        1, 200, 4096, 128, "zeros residual", config=_lone(1, 2, 1, 1, 12, turns=4, wide=2)
    ),
    CheckedProduct(1, 1024, 1024, 64, "zeros", num_times=8, config=_lone(2, 2, 2, 1, 6)),
    CheckedProduct(1, 200, 3072, 128, "zeros norm", config=_lone(1, 4, 2, 1, 4, turns=2, wide=4)),
    CheckedProduct(
        1, 200, 9216, 128, "zeros residual", config=_lone(1, 4, 2, 1, 6, turns=3, wide=4)
    ),
    CheckedProduct(
        1, 136, 7168, 128, "zeros norm", config=_lone(2, 2, 2, 1, 6)
    ),  # a row that is longer than registers hold
    CheckedProduct(1, 200, 2304, 128, "norm swiglu", config=_lone(2, 4, 3, 1, 4)),
    CheckedProduct(16, 400, 1024, 128, "zeros norm swiglu"),
    CheckedProduct(
        16,
        136,
        2304,
        128,
        "zeros norm",
        config=Int4Tiles(
            warps_m=2, warps_k=2, m_tiles=2, eights=2, splits=1, stages=6, blocks=1, turns=3
        ),
    ),
    CheckedProduct(30, 200, 2368, 32, "zeros other_scales"),
    CheckedProduct(64, 264, 4160, 64, "zeros residual"),
    CheckedProduct(130, 200, 1024, 128, "swiglu gelu"),  # three tiles of rows
    CheckedProduct(5, 200, 2304, 128, "zeros invariant"),
)


WGMMA_PRODUCTS: Final = (
    CheckedProduct(64, 392, 2304, 128, "zeros residual", config=grouped(4, 2, 8, 2)),
    CheckedProduct(30, 520, 1088, 64, "zeros swiglu", config=grouped(12, 1, 4, 1)),
    CheckedProduct(130, 200, 2048, 128, "bias", config=grouped(8, 1, 8, 3)),
    CheckedProduct(128, 392, 2304, 128, "zeros residual", config=grouped(12, 1, 16, 4)),
)
"""The products by warp groups, in bfloat16: where only these are wrong, single warps multiply."""


_AMPERE: Final = {
    1: (
        CheckedProduct(1, 200, 2336, 32, "zeros norm"),  # a last step of 32 columns
        CheckedProduct(5, 136, 4160, 64, "residual", num_splits=3),
        CheckedProduct(7, 200, 1024, 128, "zeros norm swiglu", num_splits=2),
        CheckedProduct(4, 1024, 1024, 128, "zeros", num_times=8, num_splits=2),
    ),
    2: (
        CheckedProduct(16, 400, 1024, 128, "zeros norm swiglu"),
        CheckedProduct(11, 200, 2304, 128, "norm bias", num_splits=2),
    ),
    4: (
        CheckedProduct(30, 200, 2368, 32, "zeros other_scales"),
        CheckedProduct(17, 264, 4160, 64, "residual", num_splits=3),
    ),
    8: (
        CheckedProduct(64, 264, 4160, 64, "zeros residual", num_splits=2),
        CheckedProduct(130, 200, 1024, 128, "swiglu gelu"),  # three tiles of rows
    ),
}
"""The checked products by eights of rows in a tile of `int4_ampere`."""


def ampere_products(configs: Sequence[Int4Ampere]) -> tuple[CheckedProduct, ...]:
    """The products by `int4_ampere`: each of the tiles multiplies all products of as many rows."""
    return tuple(
        case._replace(config=config._replace(splits=case.num_splits))
        for config in configs
        for case in _AMPERE[config.eights]
    )


class Inputs(NamedTuple):
    """The inputs of one product, all on one device; x is multiplied as it is, without an order of
    columns.
    """

    x: Tensor
    weight: Int4Weight
    epilogue: Epilogue


def first_fault(
    product: Product,
    device: torch.device,
    dtype: torch.dtype,
    settle: Callable[[], None],
    cases: Sequence[CheckedProduct] = PRODUCTS,
) -> str:
    """What is wrong with the first of `cases` that is, in one line; "" if none is.

    `settle` waits for the device. Errors of a compiler or a driver are faults; what `settle` raises
    is raised.
    """
    for case in cases:
        inputs = drawn(case, dtype)
        try:
            found = launched(case, _moved(inputs, device), product)
            settle()
            fault = fault_of(found.cpu(), exact(case, inputs))
        except (RuntimeError, ValueError) as error:
            settle()
            fault = str(error).partition("\n")[0]
        if fault:
            size = f"{case.num_rows} rows, {case.num_weight_rows} x {case.depth}"
            return f"{size}, groups of {case.group}, {case.parts or 'bare'}: {fault}"
    return ""


def record(product: Product, dtype: torch.dtype, cases: Sequence[CheckedProduct]) -> None:
    """Launch all on the pretended device (`kernels.recorder`)."""
    for case in cases:
        launched(case, drawn(case, dtype, torch.device("meta")), product)


def launched(case: CheckedProduct, inputs: Inputs, product: Product) -> Tensor:
    """The last answer; nothing is waited for."""
    config = case.config or int4_choose.chosen(
        case.num_rows, case.num_weight_rows, case.depth, invariant=case.has("invariant")
    )
    x = inputs.x
    num_out = case.num_weight_rows // 2 if case.has("swiglu") else case.num_weight_rows
    for _ in range(case.num_times):
        # Freed at once, so that the answer is likely to be written where NaN is.
        x.new_full((case.num_rows, num_out), torch.nan)
        x = product(x, inputs.weight, config, inputs.epilogue)
    return x


def drawn(case: CheckedProduct, dtype: torch.dtype, device: torch.device = _HOST) -> Inputs:
    """Inputs on the CPU, the same every time, or of the pretended device; x in `dtype`, one of the
    two of 16 bits.
    """
    is_meta = device.type == "meta"
    generator = None if is_meta else torch.Generator().manual_seed(case.depth + case.num_rows)
    normal = partial(torch.randn, generator=generator, device=device)
    even = partial(torch.rand, generator=generator, device=device)
    whole = partial(torch.randint, generator=generator, device=device)
    shape = case.num_weight_rows, case.depth // case.group
    numbers = whole(0, 16, (shape[0], case.depth))
    zeros = whole(6, 11, shape).to(torch.uint8)
    scales = (even(shape) + 0.5) * case.depth**-0.5 / _SPREAD
    other = torch.bfloat16 if dtype == torch.float16 else torch.float16
    weight = Int4Weight(
        packed(numbers, case.group),
        scales.to(other if case.has("other_scales") else dtype),
        zeros if case.has("zeros") else None,
    )
    x = normal(case.num_rows, case.depth).to(dtype)
    epilogue = NOTHING
    # The row's scale is applied in bfloat16 alone: in float16 an unscaled row may not fit.
    if case.has("norm") and dtype == torch.bfloat16:
        epilogue = Epilogue(norm=(even(case.depth) + 0.5).to(dtype), eps=EPS)
    if case.has("residual"):
        residual = normal(case.num_rows, case.num_weight_rows).to(dtype)
        epilogue = epilogue._replace(residual=residual)
    if case.has("bias"):
        epilogue = epilogue._replace(bias=normal(case.num_weight_rows).to(dtype))
    if case.has("swiglu"):
        epilogue = epilogue._replace(swiglu=True, is_gelu=case.has("gelu"))
    return Inputs(x, weight, epilogue)


def exact(case: CheckedProduct, inputs: Inputs) -> Tensor:
    """The answer by the widened weight in float32, on the CPU."""
    weight = dequantise(inputs.weight, torch.float32).t()
    dtype, (norm, _, bias, residual, swiglu, is_gelu) = inputs.x.dtype, inputs.epilogue
    out = rows = inputs.x.float()
    for _ in range(case.num_times):
        if norm is not None:
            rows = rows * (rows.square().mean(-1, keepdim=True) + EPS).rsqrt() * norm
        out = rows @ weight
        if swiglu:
            gate, up = out.chunk(2, dim=1)
            opened = functional.gelu(gate, approximate="tanh") if is_gelu else functional.silu(gate)
            out = opened * up
        out = out + (0.0 if bias is None else bias) + (0.0 if residual is None else residual)
        rows = out.to(dtype).float()
    return out


def fault_of(found: Tensor, exact: Tensor) -> str:
    """How an answer differs from the exact one, in one line; "" if by rounding only."""
    if found.shape != exact.shape:
        return f"{tuple(found.shape)} instead of {tuple(exact.shape)}"
    if not found.isfinite().all():
        return f"{int((~found.isfinite()).sum())} of {found.numel()} numbers are not finite"
    unit = exact.square().mean().sqrt()
    errors = (found.float() - exact).abs()
    mean = float(errors.square().mean().sqrt() / unit)
    most = float((errors - _OWN_ERROR * exact.abs()).max() / unit)
    if mean <= _MEAN_ERROR and most <= _MOST_ERROR:
        return ""
    return f"errors of {mean:.1e} on average and {most:.1e} at most"


def _moved(inputs: Inputs, device: torch.device) -> Inputs:
    return Inputs(inputs.x.to(device), inputs.weight.to(device), inputs.epilogue.to(device))
