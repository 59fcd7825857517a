"""The row-wise kernels at prefill sizes: normalisation and the SwiGLU gate."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses

from benchmarks.kernels.case import Case, Variant, within
from kernels.rms_norm.kernel import rms_norm

EPS = 1e-6


def cases(device: torch.device) -> Iterator[Case]:
    """bf16 rows of Qwen3's hidden sizes."""
    sizes = [(256, 1024), (8192, 1024), (256, 4096), (8192, 4096)]
    for num_rows, width in [(3, 64)] if device.type == "cpu" else sizes:
        yield _rms_norm(num_rows, width, device)


def _rms_norm(num_rows: int, width: int, device: torch.device) -> Case:
    def make() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(num_rows, width, device=device, dtype=torch.bfloat16)
        return x, torch.randn(width, device=device, dtype=torch.bfloat16)

    def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.double(), (width,), eps=EPS) * weight.double()

    return Case(
        name=f"rms_norm {num_rows} x {width}",
        make=make,
        variants=[
            Variant("ours", lambda x, weight: rms_norm(x, weight, EPS)),
            Variant("torch", lambda x, weight: F.rms_norm(x, (width,), weight, eps=EPS), peer=True),
        ],
        expected=expected,
        moved_bytes=4 * num_rows * width,
        flops=0,
        accept=within(1.2e-2),
    )
