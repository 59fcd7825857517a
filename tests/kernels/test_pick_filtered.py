"""The filters of the Triton sampler keep what a stable sort keeps."""

from dataclasses import replace

import pytest
import torch

from kernels.sample import Draws, kernel, reference
from kernels.sample.cut import UNUSED_BITS, find_cut

FILTERS = [
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 10_000},
    {"top_p": 0.0},
    {"top_p": 0.3},
    {"top_p": 0.95},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.05},
    {},
]


def _draws(rows: list[dict[str, float]], temperature: float, device: torch.device) -> Draws:
    def column(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([row.get(name, default) for row in rows], dtype=dtype, device=device)

    return Draws(
        seeds=torch.arange(len(rows), device=device) * 7919 + 2**40,
        temperature=torch.full((len(rows),), temperature, device=device),
        top_k=column("top_k", 0, torch.int32),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        filtered=True,
    )


def _kept(logits: torch.Tensor, draws: Draws, tile: int) -> torch.Tensor:
    """What `find_cut` keeps, bool [rows, vocab]."""
    cut = find_cut(logits, draws, tile, 4)
    bits = torch.where(logits == 0, 0.0, logits.float()).view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> UNUSED_BITS[logits.dtype]
    equal = keys == cut.keys[:, None]
    rank = equal.cumsum(1) - equal.int()
    assert torch.equal(cut.equals.sum(1), equal.sum(1))
    kept = (keys > cut.keys[:, None]) | (equal & (rank < cut.ties[:, None]))
    return kept & (logits.float() >= cut.floors[:, None])


def _expected(logits: torch.Tensor, draws: Draws, slack: float) -> torch.Tensor:
    """What a stable sort keeps with top_p and min_p moved by `slack`."""
    moved = replace(draws, top_p=draws.top_p + slack, min_p=draws.min_p - slack)
    moved = replace(moved, top_p=torch.where(draws.top_p >= 1.0, 1.0, moved.top_p))
    ids = logits.float().argsort(dim=-1, descending=True, stable=True)
    values = (logits.float() / draws.temperature[:, None]).gather(1, ids)
    kept = reference._kept(values, moved)
    return torch.empty_like(kept).scatter_(1, ids, kept)


@pytest.mark.parametrize(
    ("spread", "dtype"),
    [
        (0.5, torch.float32),
        pytest.param(0.5, torch.bfloat16, marks=pytest.mark.slow),
        (6.0, torch.bfloat16),
        (0.0, torch.float16),
    ],
)
def test_the_kept_set_is_the_sorted_one(
    spread: float, dtype: torch.dtype, device: torch.device
) -> None:
    """The kept set is that of sorting, except tokens within 1e-6 of a border of top_p or min_p;
    top_k and ties are exact.
    """
    logits = (torch.randn(len(FILTERS), 300) * spread).to(dtype).to(device)
    draws = _draws(FILTERS, 0.8, device)
    kept = _kept(logits, draws, 256)
    assert (kept >= _expected(logits, draws, -1e-6)).all()
    assert (kept <= _expected(logits, draws, 1e-6)).all()
    assert (kept.sum(1) >= 1).all()
    if device.type == "cuda":
        # The same again: sums do not depend on the order of programs.
        assert torch.equal(kept, _kept(logits, draws, 256))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tokens_equal_the_reference(dtype: torch.dtype, device: torch.device) -> None:
    """Drawn from what is kept, beside greedy rows and rows without filters."""
    logits = (torch.randn(len(FILTERS), 503) * 3).to(dtype).to(device)
    draws = _draws(FILTERS, 1.2, device)
    draws.temperature[3] = 0.0
    positions = torch.arange(len(FILTERS), device=device) * 11
    ids = kernel.pick(logits, draws, positions, tile=512)
    assert torch.equal(ids, reference.pick(logits, draws, positions))


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_filters_hide_no_faults(device: torch.device) -> None:
    """NaN and inf are told even where the filters would leave them out; -inf is never drawn."""
    logits = torch.randn(4, 300).bfloat16()
    logits[0, 5], logits[1, 299] = torch.nan, torch.inf
    logits[2] = -torch.inf
    logits[3, 1:] = -torch.inf
    draws = _draws([{"top_k": 2, "top_p": 0.5}] * 4, 1.0, device)
    positions = torch.arange(4, device=device)
    ids = kernel.pick(logits.to(device), draws, positions, tile=256)
    assert ids.tolist() == [-1, -1, -1, 0]
