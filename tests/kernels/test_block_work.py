"""Blocks whose places only the card knows: their work, and what they attend to."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention import NO_ROW, PagedPlan, blocks_at, reference
from kernels.attention.block_work import block_work
from kernels.attention.config import PrefillConfig, WriteConfig
from kernels.attention.context_write import write_context
from kernels.attention.prefill import prefill
from kernels.attention.write import qk_norm_rope_write
from tests.kernels.attention_cases import EPS, Shape, distance, expected, make_case

CONFIG = PrefillConfig(rows=32, tile=16, warps=4, stages=2, target=16)


@given(
    st.lists(st.integers(-1, 400), min_size=1, max_size=9),
    st.integers(1, 17),
    st.sampled_from([(4, 2), (8, 1), (2, 2)]),
    st.sampled_from([1, 16, 64]),
)
def test_every_row_sees_its_keys_once(
    starts: list[int], num_rows: int, heads: tuple[int, int], target: int
) -> None:
    """Every row sees its keys once, in pieces whose results meet nowhere, and with nothing behind
    the first item without rows.
    """
    config = CONFIG._replace(target=target)
    positions = torch.tensor(starts, dtype=torch.int32)
    tables = torch.arange(len(starts), dtype=torch.int32)
    work = block_work(positions, tables, num_rows, heads, config)
    assert work.ahead is not None
    for items, sees_ahead in ((work.items, False), (work.ahead, True)):
        seen: dict[int, list[int]] = {}
        slots: set[int] = set()
        counts = items[:, 1].tolist()
        used = sum(count > 0 for count in counts)
        assert not any(counts[used:])
        for first, count, position, table, begin, end, slot, _ in items[:used].tolist():
            assert table == first // num_rows
            for row in range(first, first + count):
                last = position + row - first
                seen.setdefault(row, []).extend(range(begin, min(end, last + 1)))
            if slot >= 0:
                mine = set(range(slot, slot + count))
                assert not slots & mine
                slots |= mine
        for block, start in enumerate(starts):
            for step in range(num_rows if start >= 0 else 0):
                last = start + (num_rows if sees_ahead else step + 1)
                assert sorted(seen.pop(block * num_rows + step)) == list(range(last))
        assert not seen
        assert all(slot < work.num_partials for slot in slots)
    parts = {slot for _, first, count, step in work.merges.tolist() for slot in
             range(first, first + count * step, step)}  # fmt: skip
    assert parts == slots


@pytest.mark.parametrize("sees_ahead", [False, True])
@pytest.mark.parametrize("target", [1, 16])
def test_blocks_equal_the_definition(
    target: int, device: torch.device, *, sees_ahead: bool
) -> None:
    """Among NaN, behind contexts of any length; one block is not there."""
    shape = Shape(heads=4, kv=2, dim=32, sees_ahead=sees_ahead)
    segments = ((40, 5), (0, 5), (129, 5))
    case = make_case(segments, shape).to(device)
    config = CONFIG._replace(target=target)
    positions = torch.tensor([start for start, _ in segments], dtype=torch.int32, device=device)
    rows = torch.arange(3, dtype=torch.int32, device=device)
    work = block_work(positions, rows, 5, (shape.heads, shape.kv), config)
    plan = dataclasses.replace(case.paged_plan(), prefills=(), work=work)
    out = torch.full_like(case.qkv[:, : shape.heads * shape.dim], torch.nan)
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    queries = qk_norm_rope_write(*args, WriteConfig(heads=4))
    assert work.ahead is not None
    chosen = work._replace(items=work.ahead) if sees_ahead else work
    prefill(queries, case.keys, case.values, plan, chosen, config, out, shape.scope)
    assert distance(out.cpu(), expected(make_case(segments, shape))[0]) < 1e-5


def test_the_reference_plans_the_same_rows() -> None:
    """What a CPU computes, of blocks of which one is not there."""
    positions = torch.tensor([7, NO_ROW, 0], dtype=torch.int32)
    keys = torch.zeros(1, 16, 2, 32)
    tables = torch.zeros(3, 4, dtype=torch.int32)
    rows = torch.tensor([2, 0, 1], dtype=torch.int32)
    plan = blocks_at(positions, rows, tables, 2, 4, keys, torch.float32)
    assert plan.positions.tolist() == [7, 8, NO_ROW, NO_ROW, 0, 1]
    assert plan.table_rows.tolist() == [2, 2, 0, 0, 1, 1]
    assert [tuple(segment) for segment in plan.prefills] == [(0, 2, 7, 2), (4, 2, 0, 1)]


@pytest.mark.parametrize(
    ("kv", "dim", "is_normed"), [(2, 32, True), (3, 48, False), (1, 128, True)]
)
def test_context_is_written_as_the_reference_does(
    kv: int, dim: int, device: torch.device, *, is_normed: bool
) -> None:
    """Context is written as the reference does it, in all layers, to the slots of the rows that
    there are, and nowhere else.
    """
    generator = torch.Generator().manual_seed(kv)
    layers, block_size, count = 3, 16, 7
    rows = torch.randn(count, layers * 2 * kv * dim, generator=generator)
    norm = torch.rand(layers, kv, dim, generator=generator) if is_normed else None
    angles = torch.randn(64, dim, generator=generator)
    tables = torch.randperm(9, generator=generator)[:8].view(2, 4).int()
    positions = torch.tensor([0, 15, 16, NO_ROW, 63, 3, 50], dtype=torch.int32)
    table_rows = torch.tensor([0, 0, 0, 1, 1, 1, 1], dtype=torch.int32)
    plan = PagedPlan(positions, table_rows, tables, 0)
    caches = [torch.full((layers, 2, 9, block_size, kv, dim), torch.nan) for _ in range(2)]
    reference.write_context(rows, norm, EPS, angles, caches[0], plan)
    on_card = PagedPlan(positions.to(device), table_rows.to(device), tables.to(device), 0)
    cache = caches[1].to(device)
    write_context(
        rows.to(device), None if norm is None else norm.to(device), EPS, angles.to(device), cache,
        on_card,
    )  # fmt: skip
    assert int((~caches[0].isnan()).sum()) == layers * 2 * (count - 1) * kv * dim
    torch.testing.assert_close(cache.cpu(), caches[0], equal_nan=True, atol=1e-5, rtol=1e-5)
