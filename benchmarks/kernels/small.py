"""The row-wise kernels at prefill sizes, and the embeddings of a decode step."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses

from benchmarks.kernels.case import KernelCase, Variant, equal, within
from kernels.embed_rows import kernel as embed_kernel
from kernels.embed_rows import reference as embed_reference
from kernels.rms_norm.kernel import norm_add, rms_norm
from kernels.silu_mul.kernel import sigmoid_mul, silu_mul

EPS = 1e-6
ROWS = (256, 2048, 16_384)
WIDTHS = {1024: 3072, 4096: 12_288}
"""Hidden and inner sizes of Qwen3-0.6B and 8B."""

WARPS = (1, 2, 4, 8)
GATES = [(512, 4), (1024, 4), (1024, 8), (2048, 8), (4096, 8)]
TOLERANCE = 1.2e-2
NUM_TABLES = 257


def cases(device: torch.device) -> Iterator[KernelCase]:
    """bf16 rows."""
    small = device.type == "cpu"
    for width, inner in {64: 96}.items() if small else WIDTHS.items():
        for num_rows in (3,) if small else ROWS:
            yield _rms_norm(num_rows, width, device)
            yield _norm_add(num_rows, width, device)
            yield _silu_mul(num_rows, inner, device)
            yield _sigmoid_mul(num_rows, inner, device)
        for num_rows in (3,) if small else (1, 64, 256):
            yield _embed_rows(num_rows, width, device)


def _draw(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def _warps(run: Callable[..., Any]) -> list[Variant]:
    def variant(num_warps: int) -> Variant:
        return Variant(f"warps={num_warps}", lambda *inputs: run(*inputs, EPS, num_warps=num_warps))

    return [variant(num_warps) for num_warps in WARPS]


def _rms_norm(num_rows: int, width: int, device: torch.device) -> KernelCase:
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (width,), weight, eps=EPS)

    return KernelCase(
        name=f"rms_norm {num_rows} x {width}",
        make=lambda: (_draw(device, num_rows, width), _draw(device, width)),
        variants=[*_warps(rms_norm), Variant("torch", norm, peer=True)],
        expected=lambda x, weight: norm(x.double(), weight.double()),
        moved_bytes=4 * num_rows * width,
        flops=0,
        accept=within(TOLERANCE),
    )


def _norm_add(num_rows: int, width: int, device: torch.device) -> KernelCase:
    def norm(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + F.rms_norm(x, (width,), weight, eps=EPS)

    def ours(
        x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, eps: float, *, num_warps: int
    ) -> torch.Tensor:
        return norm_add(x, weight, eps, residual, num_warps=num_warps)

    def make() -> tuple[torch.Tensor, ...]:
        x, residual = (_draw(device, num_rows, width) for _ in range(2))
        return x, _draw(device, width), residual

    return KernelCase(
        name=f"norm_add {num_rows} x {width}",
        make=make,
        variants=[*_warps(ours), Variant("torch", norm, peer=True)],
        expected=lambda *inputs: norm(*(tensor.double() for tensor in inputs)),
        moved_bytes=6 * num_rows * width,
        flops=0,
        accept=within(TOLERANCE),
    )


def _silu_mul(num_rows: int, inner: int, device: torch.device) -> KernelCase:
    def gated(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def variant(block: int, num_warps: int) -> Variant:
        return Variant(
            f"block={block} warps={num_warps}",
            lambda gate_up: silu_mul(gate_up, block=block, num_warps=num_warps),
        )

    return KernelCase(
        name=f"silu_mul {num_rows} x {inner}",
        make=lambda: (_draw(device, num_rows, 2 * inner),),
        variants=[*(variant(*gate) for gate in GATES), Variant("torch", gated, peer=True)],
        expected=lambda gate_up: gated(gate_up.double()),
        moved_bytes=6 * num_rows * inner,
        flops=0,
        accept=within(TOLERANCE),
    )


def _sigmoid_mul(num_rows: int, inner: int, device: torch.device) -> KernelCase:
    def variant(block: int, num_warps: int) -> Variant:
        return Variant(
            f"block={block} warps={num_warps}",
            lambda x, gate: sigmoid_mul(x, gate, block=block, num_warps=num_warps),
        )

    return KernelCase(
        name=f"sigmoid_mul {num_rows} x {inner}",
        make=lambda: (_draw(device, num_rows, inner), _draw(device, num_rows, inner)),
        variants=[
            *(variant(*gate) for gate in GATES[:3]),
            Variant("torch", lambda x, gate: x * gate.sigmoid(), peer=True),
        ],
        expected=lambda x, gate: x.double() * gate.double().sigmoid(),
        moved_bytes=6 * num_rows * inner,
        flops=0,
        accept=within(TOLERANCE),
    )


def _embed_rows(num_rows: int, width: int, device: torch.device) -> KernelCase:
    embedding = _draw(device, 50 if device.type == "cpu" else 151_936, width)

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randperm(NUM_TABLES, dtype=torch.int32)[:num_rows]
        last_token = torch.randint(embedding.shape[0], (NUM_TABLES,), dtype=torch.int32)
        return rows.to(device), last_token.to(device)

    def run_of(embed: Callable[..., torch.Tensor]) -> Callable[..., Any]:
        return lambda rows, last_token: embed(rows, last_token, embedding)

    return KernelCase(
        name=f"embed_rows {num_rows} x {width}",
        make=make,
        variants=[Variant("one launch", run_of(embed_kernel.embed_rows))],
        expected=run_of(embed_reference.embed_rows),
        moved_bytes=2 * num_rows * width * embedding.element_size(),
        flops=0,
        accept=equal,
    )
