"""Paged attention equals plain causal attention, whatever the layout of blocks and rows."""

import random

import pytest
import torch

from kernels.attention import cpu as plan_module
from kernels.attention.cpu import Segment, paged_attention, plan_attention

CPU = torch.device("cpu")
Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[Segment]]


def _case(lengths: list[tuple[int, int]], heads: int, kv: int, dim: int, block_size: int) -> Case:
    """Queries, poisoned caches with random blocks for each (start, length), and the segments."""
    rng = random.Random(len(lengths) * 31 + dim)
    generator = torch.Generator().manual_seed(dim)
    needed = [-(-(start + length) // block_size) for start, length in lengths]
    free = list(range(sum(needed) + 3))
    rng.shuffle(free)
    shape = (len(free), block_size, kv, dim)
    keys, values = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    segments = []
    for (start, length), count in zip(lengths, needed, strict=True):
        ids = [free.pop() for _ in range(count)]
        for position in range(start + length):
            slot = ids[position // block_size], position % block_size
            keys[slot] = torch.randn(kv, dim, generator=generator)
            values[slot] = torch.randn(kv, dim, generator=generator)
        segments.append(Segment(start, length, tuple(ids)))
    num_rows = sum(length for _, length in lengths)
    return torch.randn(num_rows, heads, dim, generator=generator), keys, values, segments


def _naive(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, segments: list[Segment]
) -> torch.Tensor:
    groups = queries.shape[1] // keys.shape[2]
    out, row = [], 0
    for segment in segments:
        table = torch.tensor(segment.block_ids)
        all_keys = keys[table].flatten(0, 1).repeat_interleave(groups, dim=1)
        all_values = values[table].flatten(0, 1).repeat_interleave(groups, dim=1)
        for position in range(segment.start, segment.start + segment.length):
            k, v = all_keys[: position + 1].double(), all_values[: position + 1].double()
            scores = torch.einsum("hd,lhd->hl", queries[row].double(), k) / k.shape[-1] ** 0.5
            out.append(torch.einsum("hl,lhd->hd", scores.softmax(-1), v).float())
            row += 1
    return torch.stack(out)


@pytest.mark.parametrize(("heads", "kv"), [(3, 3), (8, 2), (8, 1)])
@pytest.mark.parametrize(
    "lengths",
    [
        [(0, 1)],
        [(62, 1)],
        [(0, 1), (5, 1), (63, 1), (99, 1)],
        [(3, 1), (900, 1)],
        [(0, 63)],
        [(37, 29)],
        [(0, 1), (16, 1), (40, 1), (0, 33), (17, 3), (64, 32)],
    ],
)
def test_equals_plain_attention(lengths: list[tuple[int, int]], heads: int, kv: int) -> None:
    """Decodes, prefills and chunks behind cached tokens agree; unwritten slots are never read."""
    queries, keys, values, segments = _case(lengths, heads, kv, dim=10, block_size=16)
    out = paged_attention(queries, keys, values, plan_attention(segments, 16, CPU))
    torch.testing.assert_close(out, _naive(queries, keys, values, segments), atol=2e-6, rtol=1e-5)


def test_tiles_and_groups_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and groups change nothing: with tiny memory bounds a long chunk runs in many tiles and
    each decode by itself.
    """
    lengths = [(start, 1) for start in (4, 50, 60, 61)] + [(70, 100)]
    queries, keys, values, segments = _case(lengths, 4, 2, dim=8, block_size=32)
    monkeypatch.setattr(plan_module, "MASK_ENTRIES", {"cpu": 1})
    monkeypatch.setattr(plan_module, "GATHERED_TOKENS", {"cpu": 1})
    plan = plan_attention(segments, 32, CPU)
    assert len(plan.decodes) == 4
    assert plan.prefills[0].tile_rows < 100
    out = paged_attention(queries, keys, values, plan)
    torch.testing.assert_close(out, _naive(queries, keys, values, segments), atol=2e-6, rtol=1e-5)


def test_short_and_long_decodes_do_not_share_a_gather() -> None:
    """Padding is bounded: a short sequence is not padded to a window."""
    segments = [Segment(9, 1, (0,)), Segment(10, 1, (1,)), Segment(5000, 1, tuple(range(200)))]
    assert [group.num_rows for group in plan_attention(segments, 32, CPU).decodes] == [2, 1]


def test_more_blocks_than_needed_are_ignored() -> None:
    """A segment may bring blocks for tokens to come."""
    queries, keys, values, segments = _case([(3, 1), (0, 9)], 2, 2, dim=6, block_size=4)
    longer = [Segment(s.start, s.length, (*s.block_ids, 0)) for s in segments]
    out = paged_attention(queries, keys, values, plan_attention(longer, 4, CPU))
    assert torch.equal(
        out, paged_attention(queries, keys, values, plan_attention(segments, 4, CPU))
    )


def test_rows_that_do_not_fit_are_refused() -> None:
    """Queries of another number of rows or head size are an error."""
    queries, keys, values, segments = _case([(3, 1)], 2, 2, dim=6, block_size=4)
    plan = plan_attention(segments, 4, CPU)
    with pytest.raises(ValueError, match="planned rows"):
        paged_attention(torch.cat((queries, queries)), keys, values, plan)
    with pytest.raises(ValueError, match="caches"):
        paged_attention(queries[..., :4], keys, values, plan)
