"""Shapes that are answered quickly are those of the operation itself."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from workers.engine.compile.shapes_only import ShapesOnly

IDS = torch.tensor([3, 0, 2])
FEW = torch.tensor([1, -1, 2], dtype=torch.int32)
ROWS = torch.ones(3, 8, dtype=torch.bfloat16)
WEIGHT = torch.ones(5, 8, dtype=torch.bfloat16)

CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "linear": (F.linear, (ROWS, WEIGHT)),
    "linear with bias": (F.linear, (ROWS, WEIGHT, torch.ones(5, dtype=torch.bfloat16))),
    "embedding": (F.embedding, (IDS, WEIGHT)),
    "add": (lambda x: x + 1, (FEW,)),
    "add of a float": (lambda x: x + 0.5, (FEW,)),
    "add of a tensor": (lambda x, y: x + y, (FEW, IDS)),
    "equal": (lambda x: x == -1, (FEW,)),
    "equal tensors": (lambda x, y: x == y, (ROWS, ROWS[:1])),
    "where": (torch.where, (FEW == -1, FEW, IDS)),
    "where of a row": (torch.where, (FEW == -1, FEW, IDS[:1])),
    "rows": (lambda x, y: x[y], (ROWS, IDS.clamp(max=2))),
    "slice": (lambda x: x[1:], (ROWS,)),
    "chosen": (lambda x, y: x[:, y], (ROWS, IDS)),
    "add in place": (lambda x, y: x.add_(y), (ROWS, ROWS)),
    "product in place": (lambda x, y, z: x.addmm_(y, z.t()), (WEIGHT[:3, :5], ROWS, WEIGHT)),
    "times in place": (lambda x, y: x.mul_(y), (ROWS, ROWS)),
    "sigmoid": (lambda x: x.sigmoid_(), (ROWS,)),
    "clamp": (lambda x: x.clamp_(min=0), (FEW,)),
    "bounded": (lambda x: x.clamp(min=0), (FEW,)),
    "bounded on both sides": (lambda x: x.clamp(0, max=2), (IDS,)),
    "bounded by a float": (lambda x: x.clamp(min=0.5), (FEW,)),
    "bounded by a tensor": (lambda x, y: x.clamp(max=y), (FEW, IDS)),
    "log-softmax": (lambda x: x.log_softmax(dim=-1), (ROWS,)),
    "log-softmax of another dtype": (lambda x: x.log_softmax(-1, dtype=torch.float32), (ROWS,)),
    "joined": (lambda *parts: torch.cat(parts), (ROWS, ROWS[:1])),
    "joined sideways": (lambda *parts: torch.cat(parts, dim=1), (ROWS, ROWS)),
    "joined with another dtype": (lambda *parts: torch.cat(parts), (FEW, IDS)),
    "copied": (lambda x, y, z: x.index_copy_(0, y, z), (FEW, IDS.clamp(max=2), FEW)),
}


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_torch(case: str) -> None:
    """Shape, dtype and strides; also where torch itself is asked."""
    function, operands = CASES[case]
    expected = function(*[operand.clone() for operand in operands])
    with ShapesOnly():
        found = function(*[operand.to("meta") for operand in operands])
    assert found.is_meta
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.stride() == expected.stride()


def test_a_product_in_8_bits() -> None:
    """The shape of a product in 8 bits, of which the CPU has only other forms."""
    values = torch.empty(3, 16, dtype=torch.float8_e4m3fn, device="meta")
    weight = torch.empty(32, 16, dtype=torch.float8_e4m3fn, device="meta")
    with ShapesOnly():
        found = torch._scaled_mm(
            values, weight.t(), scale_a=torch.ones(3, 1), scale_b=torch.ones(1, 32),
            bias=None, out_dtype=torch.bfloat16, use_fast_accum=True,
        )  # fmt: skip
    assert (tuple(found.shape), found.dtype) == ((3, 32), torch.bfloat16)


def test_what_has_memory_is_computed() -> None:
    """Tables of angles, block tables: all that is not on the pretended device."""
    with ShapesOnly():
        assert (FEW + 1).tolist() == [2, 0, 3]
        assert IDS[FEW.clamp(min=0).long()].tolist() == [0, 3, 2]
