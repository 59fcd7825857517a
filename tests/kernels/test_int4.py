"""4-bit weights: their layout, their quantisation, and products on the CPU and on a card."""

from dataclasses import replace
from typing import Final

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from kernels.int4 import (
    GROUPS,
    MIDDLE,
    Int4Weight,
    dequantise,
    in_order,
    packed,
    quantize,
    unpacked,
)
from kernels.int4 import kernel as int4_kernel
from kernels.linear import int4, linear, linear_add, norm_linear, norm_swiglu
from kernels.linear.epilogue import Epilogue
from kernels.rms_norm import reference as norms

TOLERANCE: Final = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
EPS: Final = 1e-6


def drawn(
    num_rows: int, depth: int, group: int, *, zeros: bool, scale_dtype: torch.dtype = torch.float16
) -> Int4Weight:
    generator = torch.Generator().manual_seed(depth + group)
    values = torch.randint(0, 16, (num_rows, depth), generator=generator)
    shape = num_rows, depth // group
    scales = (torch.rand(shape, generator=generator) + 0.5) * depth**-0.5 / 4
    found = torch.randint(0, 16, shape, generator=generator).to(torch.uint8) if zeros else None
    return Int4Weight(packed(values, group), scales.to(scale_dtype), found)


@pytest.mark.parametrize("group", GROUPS)
def test_words_hold_what_was_packed(group: int) -> None:
    values = torch.randint(0, 16, (7, 3 * group))
    words = packed(values, group)
    assert words.shape == (7, 3 * group // 8)
    assert torch.equal(unpacked(words), values.to(torch.int32))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("num_rows", "group"), [(67, 64), (33, 128), (131, 32), (1, 32)])
def test_widened_numbers_are_exact(
    num_rows: int, group: int, zeros: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """`(q - z) s`, rounded once, for rows that no tile divides; zero points up to 16."""
    weight = drawn(num_rows, 3 * group, group, zeros=zeros)
    if weight.zeros is not None:
        weight.zeros[0, 1] = 16
    values = unpacked(weight.words).view(num_rows, 3, group)
    middle = MIDDLE if weight.zeros is None else weight.zeros.int()[..., None]
    exact = (values - middle).double() * weight.scales.double()[..., None]
    found = int4_kernel.dequantise(weight.to(device), dtype).cpu()
    assert torch.equal(found, exact.view(num_rows, 3 * group).to(dtype))
    assert torch.equal(dequantise(weight, dtype), found)


def test_quantisation_keeps_zeros_and_stays_near() -> None:
    """Half a step at the most inside the chosen range; the error of normal numbers is a tenth."""
    weight = torch.randn(24, 256, generator=torch.Generator().manual_seed(1))
    weight[3, 128:] = 0
    weight[4] = 2.5
    found = dequantise(quantize(weight), torch.float32)
    assert float((found - weight)[:3].norm() / weight[:3].norm()) < 0.12
    assert torch.equal(found[3, 128:], weight[3, 128:])
    assert torch.allclose(found[4], weight[4], rtol=0.01)


@pytest.mark.parametrize("depth", [96, 256])
def test_a_matrix_without_memory_has_the_shapes_of_one_that_has(depth: int) -> None:
    """A matrix without memory has the shapes of one that has it, for runs that only record what
    they launch.
    """
    weight = torch.randn(24, depth, dtype=torch.bfloat16)
    real, bare = quantize(weight), quantize(weight.to("meta"))
    assert real.zeros is not None
    assert bare.zeros is not None
    pairs = (real.words, bare.words), (real.scales, bare.scales), (real.zeros, bare.zeros)
    for one, other in pairs:
        assert (other.shape, other.dtype, other.is_meta) == (one.shape, one.dtype, True)
        assert other.stride() == one.stride()


@pytest.mark.parametrize(("depth", "group"), [(96, 32), (192, 64), (256, 128)])
def test_the_largest_group_that_divides_is_taken(depth: int, group: int) -> None:
    assert quantize(torch.randn(4, depth)).group == group
    with pytest.raises(ValueError, match="no group"):
        quantize(torch.randn(4, depth + 8))


@pytest.mark.parametrize(
    "part",
    [
        {"words": torch.zeros(4, 16)},
        {"scales": torch.zeros(4, 3)},
        {"zeros": torch.zeros(4, 1)},
        {"order": torch.arange(5)},
    ],
)
def test_parts_that_do_not_fit_are_refused(part: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"words|groups|zeros|order"):
        replace(drawn(4, 128, 128, zeros=False), **part)


SHAPES: Final = [
    (1, 40, 128, 128),
    (2, 24, 384, 64),
    (3, 70, 256, 128),
    (17, 96, 96, 32),
    (70, 130, 640, 128),
]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "parts", ["bias", "norm zeros", "residual", "swiglu zeros", "norm invariant"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_products_are_those_of_the_widened_weight(
    shape: tuple[int, int, int, int], parts: str, dtype: torch.dtype, device: torch.device
) -> None:
    """Any number of rows, sizes that no tile divides, orders of columns; as the CPU has them."""
    num_rows, num_out, depth, group = shape
    generator = torch.Generator().manual_seed(num_rows)
    weight = drawn(num_out, depth, group, zeros="zeros" in parts)
    if num_rows == 3:
        weight = replace(weight, order=torch.randperm(depth, generator=generator))
    dense = in_order(weight, dtype).double()
    x = torch.randn(num_rows, depth, generator=generator).to(dtype)
    norm = (torch.rand(depth, generator=generator) + 0.5).to(dtype)
    rows = norms.rms_norm(x, norm, EPS) if "norm" in parts or "swiglu" in parts else x
    wanted = F.linear(rows.double(), dense)
    epilogue = Epilogue(eps=EPS, swiglu="swiglu" in parts)
    if "swiglu" in parts:
        gate, up = wanted.chunk(2, dim=1)
        wanted, own = F.silu(gate) * up, norm_swiglu(x, norm, EPS, weight)
    elif "residual" in parts:
        residual = torch.randn(num_rows, num_out, generator=generator).to(dtype)
        epilogue = epilogue._replace(residual=residual)
        wanted, own = residual.double() + wanted, linear_add(x, weight, residual)
    elif "bias" in parts:
        bias = torch.randn(num_out, generator=generator).to(dtype)
        epilogue = epilogue._replace(bias=bias)
        wanted, own = wanted + bias.double(), linear(x, weight, bias)
    else:
        own = norm_linear(x, norm, EPS, weight)
    if rows is not x:
        epilogue = epilogue._replace(norm=norm)
    out = int4.product(
        x.to(device),
        weight.to(device),
        epilogue.to(device),
        invariant="invariant" in parts,
    )
    for found in (out.cpu(), own):
        assert found.dtype == dtype
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error < TOLERANCE[dtype], float(error)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("sorts", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_every_group_by_triton(
    group: int, zeros: bool, sorts: bool, num_rows: int, device: torch.device
) -> None:
    """Every group by Triton, with and without zero points and act order: each kernel's way through
    the words. Eleven groups of columns, which are no whole tile of any.
    """
    depth = 11 * group
    weight = drawn(37, depth, group, zeros=zeros)
    generator = torch.Generator().manual_seed(group)
    if sorts:
        weight = replace(weight, order=torch.randperm(depth, generator=generator))
    x = torch.randn(num_rows, depth, generator=generator)
    wanted = F.linear(x.double(), in_order(weight, torch.float32).double())
    found = int4.product(x.to(device), weight.to(device)).cpu()
    error = (found.double() - wanted).norm() / wanted.norm()
    assert error < TOLERANCE[torch.float32], float(error)


@pytest.mark.usefixtures("poisoned")
def test_rows_do_not_depend_on_their_neighbours(device: torch.device) -> None:
    """Bit for bit, where that is asked for."""
    weight = drawn(64, 256, 128, zeros=True).to(device)
    x = torch.randn(70, 256, generator=torch.Generator().manual_seed(1)).to(device)
    whole = int4.product(x, weight, invariant=True)
    for count in (1, 5, 64):
        found = int4.product(x[:count].contiguous(), weight, invariant=True)
        assert torch.equal(found, whole[:count])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("num_rows", [1, 2, 4, 16, 33, 64, 200, 256, 300])
@pytest.mark.parametrize(("num_out", "depth"), [(6144, 4096), (4096, 12288)])
def test_the_sizes_of_an_8b(num_rows: int, num_out: int, depth: int) -> None:
    """The kernels' real configurations, and a widened weight."""
    cuda = torch.device("cuda")
    weight = drawn(num_out, depth, 128, zeros=True).to(cuda)
    x = torch.randn(num_rows, depth, device=cuda, dtype=torch.bfloat16)
    wanted = x.double() @ dequantise(weight, torch.bfloat16).double().t()
    assert float((linear(x, weight).double() - wanted).norm() / wanted.norm()) < 1e-2
    norm = torch.rand(depth, device=cuda, dtype=torch.bfloat16) + 0.5
    rows = norms.rms_norm(x, norm, EPS).double() @ dequantise(weight, torch.bfloat16).double().t()
    gate, up = rows.chunk(2, dim=1)
    found = norm_swiglu(x, norm, EPS, weight)
    wanted = F.silu(gate) * up
    assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-2
