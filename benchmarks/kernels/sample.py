"""Choosing tokens from the logits of a real vocabulary, beside torch's argmax and the reference."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.kernels.case import KernelCase, Variant, equal
from kernels.sample import Draws, kernel, reference

VOCAB_SIZE = 151_936
TILES = [(1024, 4), (2048, 4), (2048, 8), (4096, 4), (4096, 8), (8192, 8)]
FILTERS = {"top_k 20 top_p 0.95": (20, 0.95), "top_p 0.9": (0, 0.9)}


def cases(device: torch.device) -> Iterator[KernelCase]:
    """bf16 logits: greedy, drawn, and drawn with filters."""
    small = device.type == "cpu"
    vocab_size = 1003 if small else VOCAB_SIZE
    for num_rows in (2,) if small else (1, 8, 64, 256):
        yield _case(f"greedy {num_rows}", num_rows, vocab_size, 0.0, device)
        yield _case(f"draw {num_rows}", num_rows, vocab_size, 0.6, device)
    for num_rows in (2,) if small else (1, 64, 256):
        for name, (top_k, top_p) in FILTERS.items():
            yield _case(
                f"{name} {num_rows}", num_rows, vocab_size, 0.6, device, top_k=top_k, top_p=top_p
            )


def _case(
    name: str,
    num_rows: int,
    vocab_size: int,
    temperature: float,
    device: torch.device,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
) -> KernelCase:
    filtered = top_k > 0 or top_p < 1.0

    def make() -> tuple[torch.Tensor, Draws, torch.Tensor]:
        logits = torch.randn(num_rows, vocab_size, device=device, dtype=torch.bfloat16) * 3
        draws = Draws(
            seeds=torch.randint(2**62, (num_rows,), device=device),
            temperature=torch.full((num_rows,), temperature, device=device),
            top_k=torch.full((num_rows,), top_k, dtype=torch.int32, device=device),
            top_p=torch.full((num_rows,), top_p, device=device),
            min_p=torch.zeros(num_rows, device=device),
            filtered=filtered,
        )
        return logits, draws, torch.arange(num_rows, dtype=torch.int32, device=device)

    variants = [_variant(tile, num_warps) for tile, num_warps in TILES]
    if filtered:
        # A draw without filters: the difference is the filters' cost.
        variants.append(Variant("without filters", _unfiltered, peer=True, checked=False))
    else:
        variants.append(Variant("argmax", lambda logits, *_: logits.argmax(1), True, False))
    if num_rows <= 64:
        variants.append(Variant("torch reference", reference.pick, peer=True))
    return KernelCase(
        name=name,
        make=make,
        variants=variants,
        expected=reference.pick,
        moved_bytes=2 * num_rows * vocab_size,
        flops=0,
        accept=equal,
    )


def _variant(tile: int, num_warps: int) -> Variant:
    def run(logits: torch.Tensor, draws: Draws, positions: torch.Tensor) -> torch.Tensor:
        return kernel.pick(logits, draws, positions, tile=tile, num_warps=num_warps)

    return Variant(f"tile={tile} warps={num_warps}", run)


def _unfiltered(logits: torch.Tensor, draws: Draws, positions: torch.Tensor) -> torch.Tensor:
    return kernel.pick(logits, replace(draws, filtered=False), positions)
