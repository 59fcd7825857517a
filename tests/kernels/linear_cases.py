"""Random problems for the products, with weights in any form, and their answers in float64."""

import torch
from torch import Tensor
from torch.nn import functional

from kernels import linear as entries
from kernels.fp8 import BLOCK, Fp8Weight, reference
from kernels.linear import Weight
from kernels.linear.config import Config
from kernels.linear.device import product
from kernels.linear.epilogue import Epilogue

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
EPS = 1e-6

PARTS = ["plain", "norm bias", "swiglu", "residual bias", "geglu wide-norm"]


def by_row(weight: Tensor) -> Fp8Weight:
    """One scale per row."""
    return Fp8Weight(*reference.quantize_rows(weight, None, 0.0))


def by_block(weight: Tensor) -> Fp8Weight:
    """One scale per 128 x 128, as published checkpoints have it."""
    blocks = tuple(-(-size // BLOCK) for size in weight.shape)
    scales = torch.empty(blocks)
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for row in range(blocks[0]):
        for column in range(blocks[1]):
            at = tuple(slice(i * BLOCK, (i + 1) * BLOCK) for i in (row, column))
            scales[row, column] = weight[at].float().abs().max() / 448
            values[at] = (weight[at].float() / scales[row, column]).to(values.dtype)
    return Fp8Weight(values, scales)


QUANTISERS = {"row": by_row, "block": by_block}


def wide(weight: Weight) -> Tensor:
    """In float64, exactly."""
    if isinstance(weight, Tensor):
        return weight.double()
    values, scales = weight.values.float().double(), weight.scales.double()
    if not weight.is_blocked:
        return values * scales[:, None]
    spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return values * spread[: values.shape[0], : values.shape[1]]


class Problem:
    """Random inputs of one operation on the CPU; `parts` names what stands around the product.

    `scales` makes the weight one in 8 bits, scaled by "row" or by "block".
    """

    def __init__(
        self,
        num_rows: int,
        num_out: int,
        depth: int,
        dtype: torch.dtype,
        parts: str,
        scales: str = "",
    ) -> None:
        self.generator = torch.Generator().manual_seed(num_rows * 7919 + num_out * 31 + depth)
        self.dtype = dtype
        self.is_gelu = "geglu" in parts
        self.swiglu = "swiglu" in parts or self.is_gelu
        self.x = self.random(num_rows, depth)
        dense = self.random((1 + self.swiglu) * num_out, depth, scale=depth**-0.5)
        self.weight: Weight = dense if not scales else QUANTISERS[scales](dense)
        self.norm = self.random(depth) if self.swiglu or "norm" in parts else None
        if self.norm is not None and "wide-norm" in parts:
            self.norm = self.norm.float()
        self.bias = self.random(num_out) if "bias" in parts else None
        self.residual = self.random(num_rows, num_out) if "residual" in parts else None

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=self.generator) * scale).to(self.dtype)

    def run(self, config: Config, device: torch.device) -> Tensor:
        x, weight = self.x.to(device), self.weight.to(device)
        out = product(config, x, weight, self.epilogue(device))  # type: ignore[arg-type]
        assert out.dtype == self.dtype
        return out.cpu()

    def epilogue(self, device: torch.device) -> Epilogue:
        given = Epilogue(self.norm, EPS, self.bias, self.residual, self.swiglu, self.is_gelu)
        return given.to(device)

    def enter(self, device: torch.device) -> Tensor:
        """The answer by the public function, whatever kernel it chooses."""
        given = (self.x, self.bias, self.norm, self.residual)
        x, bias, norm, residual = (None if value is None else value.to(device) for value in given)
        weight = self.weight.to(device)
        assert x is not None
        if residual is not None:
            return entries.linear_add(x, weight, residual, bias).cpu()
        if norm is None:
            return entries.linear(x, weight, bias).cpu()
        if self.swiglu:
            return entries.norm_swiglu(x, norm, EPS, weight, is_gelu=self.is_gelu).cpu()
        return entries.norm_linear(x, norm, EPS, weight, bias).cpu()

    def expected(self) -> Tensor:
        out = self.x.double()
        if self.norm is not None:
            out = out / (out.square().mean(-1, keepdim=True) + EPS).sqrt() * self.norm.double()
        out = out @ wide(self.weight).T
        if self.swiglu:
            gate, up = out.chunk(2, dim=-1)
            opened = functional.gelu(gate, approximate="tanh")
            out = (opened if self.is_gelu else gate / (1 + (-gate).exp())) * up
        for addend in (self.bias, self.residual):
            out = out if addend is None else out + addend.double()
        return out

    def check(self, out: Tensor, tolerance: float | None = None) -> None:
        expected = self.expected()
        error = (out.double() - expected).norm() / expected.norm()
        assert error < (tolerance or TOLERANCE[self.dtype]), error
