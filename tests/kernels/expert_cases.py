"""Rows, what they choose, and stacks of experts, as tests of their kernels have them."""

import torch
from torch import Tensor

from kernels.experts import (
    Activation,
    Routed,
)
from kernels.fp8 import Fp8Weight, Weight, quantize_weight
from kernels.int4 import quantize
from kernels.mxfp4 import Mxfp4Weight

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


CLAMPED = Activation(1.702, 1.0, 1.5)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def routed_rows(kind: str, num_rows: int, count: int, active: int) -> Routed:
    """All rows on the same experts, any, or never the first and the last."""
    generator = torch.Generator().manual_seed(4)
    if kind == "same":
        experts = torch.arange(active).expand(num_rows, active)
    else:
        first, last = (1, count - 1) if kind == "unchosen" else (0, count)
        rows = [torch.randperm(last - first, generator=generator)[:active] for _ in range(num_rows)]
        experts = torch.stack(rows) + first
    weights = torch.rand(num_rows, active, generator=generator)
    return Routed(experts.int().contiguous(), weights)


def formed(stack: Tensor, form: str) -> Weight:
    match form:
        case "rows":
            return quantize_weight(stack)
        case "blocks":
            blocks = -(-stack.shape[0] // 128), -(-stack.shape[1] // 128)
            return Fp8Weight(quantize_weight(stack).values, torch.rand(blocks) * 0.01 + 0.001)
        case "int4":
            return quantize(stack)
        case "mxfp4":
            generator = torch.Generator().manual_seed(7)
            pairs = torch.randint(
                0, 256, (stack.shape[0], stack.shape[1] // 2), generator=generator
            )
            powers = torch.randint(
                120, 126, (stack.shape[0], stack.shape[1] // 32), generator=generator
            )
            return Mxfp4Weight(pairs.to(torch.uint8), powers.to(torch.uint8))
        case _:
            return stack


def assert_near(found: Tensor, wanted: Tensor, tolerance: float | None = None) -> None:
    truth = wanted.cpu().double()
    error = (found.cpu().double() - truth).norm() / truth.norm()
    assert error < (tolerance or TOLERANCE[found.dtype])
