"""Invariant products and attention: a row's result is the same to the bit among any others.

Interpreted on a CPU, and on the card as what it compiles; there also in CUDA C++, where it serves.
"""

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from kernels import attention
from kernels import linear as entries
from kernels.attention import ExtendSegment, PagedPlan, paged
from kernels.attention.config import FIXED_PIECE, FIXED_SLOTS, PrefillConfig
from kernels.attention.prefill import prefill
from kernels.attention.work import prefill_work, segment_bucket, to_device
from kernels.attention.write import qk_norm_rope_write
from kernels.experts import ExpertWeights, Routing, route
from kernels.fp8 import quantize_weight
from kernels.latent import attend as attend_latents
from kernels.latent import device as latent_kernels
from kernels.linear.choose import Op
from kernels.linear.config import Skinny, Wide
from kernels.linear.invariant import choose_invariant
from tests.kernels import test_latent as latents
from tests.kernels.attention_cases import EPS, Case, Shape, distance, expected, make_case
from tests.kernels.linear_cases import PARTS, Problem

FIXED = PrefillConfig(
    rows=32, tile=16, warps=4, stages=2, target=8, piece=48, fixed=True, library=2**62
)
ONE_TILE = Skinny(
    block_n=16,
    block_k=32,
    splits=1,
    num_warps=4,
    num_stages=3,
    fuses_norm=False,
    block_rows=16,
    pads_rows=True,
)


@pytest.fixture(autouse=True)
def _rows_of_a_dot_are_alike(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter multiplies by NumPy's BLAS, whose sums depend on the number of a row in its
    tile on processors without AVX-512 (seen on an AMD EPYC with AVX2 alone); a card's do not. Sums
    in 64 bits are alike after they are rounded to 32.
    """
    if request.config.getoption("markexpr") == "gpu":
        return
    from triton.runtime import interpreter  # not before it is configured

    made = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *others: Any) -> Any:
        if d.data.dtype != np.float32 or a.data.dtype == np.uint8:
            return made(self, a, b, d, *others)
        # Rows that pad a step are never written: their numbers are any, and so are their products.
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
            return interpreter.TensorHandle(sums.astype(np.float32) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(1, 90)), min_size=1, max_size=6),
    st.sampled_from([16, 48, 256]),
)
def test_contexts_are_cut_by_position_alone(segments: list[tuple[int, int]], piece: int) -> None:
    """All of a row's keys once, in pieces that begin at multiples, in passes of bounded room."""
    config = FIXED._replace(piece=piece)
    laid, row = [], 0
    for index, (start, length) in enumerate(segments):
        laid.append(ExtendSegment(row, length, start, index))
        row += length
    work = prefill_work(laid, 0, 4, 2, config, library=False)
    ends = [s.start + i + 1 for s in laid for i in range(s.num_rows)]
    seen: list[list[int]] = [[] for _ in ends]
    for part in (work, *work.more):
        assert part.num_partials <= FIXED_SLOTS
        for first, rows, position, _, begin, end, slot, _ in part.items.tolist():
            assert begin % piece == 0
            assert end - begin <= piece
            assert (slot >= 0) == (position + rows > piece)
            for offset in range(rows):
                seen[first + offset] += range(begin, min(end, position + offset + 1))
    assert [sorted(keys) for keys in seen] == [list(range(end)) for end in ends]


def test_a_long_step_takes_several_passes() -> None:
    """Partial results would else take gigabytes."""
    config = FIXED._replace(piece=FIXED_PIECE)
    segments = [ExtendSegment(0, 4096, 60_000, 0)]
    work = prefill_work(segments, 0, 32, 8, config, library=False)
    assert len(work.more) > 20
    rows = sum(len(part.merges) for part in (work, *work.more))
    assert rows == 4096


def test_a_captured_step_says_what_it_holds() -> None:
    """Contexts that are too long for its items are launched kernel by kernel."""
    bucket = segment_bucket(64, 64, 32, 8, FIXED._replace(rows=128, piece=FIXED_PIECE))
    short = [ExtendSegment(row, 1, 5000, row) for row in range(64)]
    assert bucket.holds(short)
    work = prefill_work(short, 0, 32, 8, bucket.config, library=False)
    assert len(work.items) <= bucket.num_items
    assert not bucket.holds([segment._replace(start=100_000) for segment in short])
    assert not bucket.holds([ExtendSegment(0, 64, 250_000, 0)])


@given(
    st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 90)), min_size=1, max_size=6),
    st.sampled_from([16, 256, FIXED_PIECE]),
    st.sampled_from([1, 2, 4]),
)
@example([(2713, 17)], 16, 2)
def test_a_captured_step_holds_what_it_says(
    segments: list[tuple[int, int]], piece: int, group: int
) -> None:
    """All of it is laid out; anything else is refused, not written beside the room."""
    config = FIXED._replace(rows=16, piece=piece)
    laid, row = [], 0
    for index, (start, length) in enumerate(segments):
        laid.append(ExtendSegment(row, length, start, index))
        row += length
    bucket = segment_bucket(row, len(segments), 2 * group, 2, config)
    words = np.zeros(bucket.num_words, np.int32)
    if not bucket.holds(laid):
        with pytest.raises(ValueError, match="do not fit"):
            bucket.lay_out(laid, 0, words)
        return
    bucket.lay_out(laid, 0, words)
    wanted = prefill_work(laid, 0, 2 * group, 2, config, library=False)
    work = bucket.work(torch.from_numpy(words))
    assert not wanted.more
    assert np.array_equal(work.items[: len(wanted.items)].numpy(), wanted.items)
    assert np.array_equal(work.merges[: len(wanted.merges)].numpy(), wanted.merges)


def _attend(case: Case, plan: PagedPlan, config: PrefillConfig) -> Tensor:
    shape = case.shape
    out = torch.full_like(case.qkv[:, : shape.heads * shape.dim], torch.nan)
    host = prefill_work(plan.prefills, 0, shape.heads, shape.kv, config, library=False)
    plan = dataclasses.replace(plan, work=to_device(host, case.qkv.device))
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    queries = qk_norm_rope_write(*args, attention.choose.write_config())
    assert plan.work is not None
    for work in (plan.work, *plan.work.more):
        prefill(queries, case.keys, case.values, plan, work, config, out)
    return out


def _cut_up(case: Case, sizes: list[int]) -> PagedPlan:
    """The one segment of the case as several."""
    plan, segments, row = case.paged_plan(), [], 0
    for size in sizes:
        segments.append(ExtendSegment(row, size, case.segments[0][0] + row, 0))
        row += size
    return dataclasses.replace(plan, num_decodes=0, prefills=tuple(segments), invariant=True)


SHAPES = [
    Shape(heads=6, kv=2, dim=48, block_size=32),
    Shape(heads=4, kv=2, dim=32, cache_dtype=torch.float8_e4m3fn),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_in_any_segments(shape: Shape, device: torch.device) -> None:
    """One prompt whole, and in parts that end inside of pieces and tiles."""
    cuts = [[14], [1, 3, 1, 9], [8, 6]]
    outs = []
    for sizes in cuts:
        case = make_case(((40, 14),), shape).to(device)
        outs.append(_attend(case, _cut_up(case, sizes), FIXED).cpu())
    assert all(torch.equal(out, outs[0]) for out in outs)
    wanted, _, _ = expected(make_case(((40, 14),), shape))
    exact = shape.dtype == torch.float32 and shape.cache_dtype is None
    assert distance(outs[0], wanted) < (1e-5 if exact else 0.2)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("scales", ["", "block"])
def test_products_of_any_rows(scales: str, parts: str, device: torch.device) -> None:
    """A row alone, the last of some and in the second tile."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    problem = Problem(21, 128, 40, dtype, parts, scales)
    whole = problem.run(ONE_TILE, device)
    problem.check(whole, 2e-2)
    x, residual = problem.x, problem.residual
    for rows in (slice(0, 1), slice(3, 20), slice(20, 21)):
        problem.x = x[rows].clone()
        problem.residual = None if residual is None else residual[rows].clone()
        assert torch.equal(problem.run(ONE_TILE, device), whole[rows])


def test_the_cut_of_a_weight_follows_from_the_weight() -> None:
    """Rows decide about the size of tiles only; one kernel where CUDA C++ does not serve."""
    for op, num_weight_rows in product(Op, (1024, 4096, 6144, 24576, 151936)):
        configs = [
            choose_invariant(op, rows, num_weight_rows, 0, has_wide=True)
            for rows in (1, 16, 100, 256, 257, 8192)
        ]
        assert all(isinstance(config, Wide) for config in configs)
        assert len({config.splits for config in configs if config is not None}) == 1
        assert op is not Op.NORM_SWIGLU or configs[0].splits == 1  # type: ignore[union-attr]
        for scale_block in (0, 1, 128):
            known = {
                choose_invariant(op, rows, num_weight_rows, scale_block, has_wide=False)
                for rows in (1, 64, 8192)
            }
            assert len(known) == 1
    assert choose_invariant(Op.LINEAR, 0, 64, 0, has_wide=True) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestOnACard:
    """Through the entries, whatever they choose: on Hopper CUDA C++, else Triton."""

    @pytest.mark.parametrize("kind", ["dense", "biased", "fp8", "float16", "float32"])
    def test_products(self, kind: str) -> None:
        """1 to 2,000 rows of all four products of a layer."""
        generator = torch.Generator("cuda").manual_seed(3)
        dtype = {"float16": torch.float16, "float32": torch.float32}.get(kind, torch.bfloat16)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device="cuda").to(dtype)

        depth, width = 1024, 1536
        weight = drawn(width, depth) * depth**-0.5
        given = quantize_weight(weight) if kind == "fp8" else weight
        bias = drawn(width) if kind == "biased" else None
        x, residual, norm = drawn(2000, depth), drawn(2000, width), drawn(depth)

        def products(rows: slice) -> list[Tensor]:
            r = x[rows].clone()
            return [
                entries.linear(r, given, bias, invariant=True),
                entries.norm_linear(r, norm, 1e-6, given, bias, invariant=True),
                entries.norm_swiglu(r, norm, 1e-6, given, invariant=True),
                entries.linear_add(r, given, residual[rows].clone(), bias, invariant=True),
            ]

        whole = products(slice(0, 2000))
        exact = x.double() @ weight.double().T
        exact = exact if bias is None else exact + bias.double()
        assert (whole[0].double() - exact).norm() < 0.06 * exact.norm()
        for first, count in product((0, 5, 1700), (1, 2, 16, 17, 40, 64, 100, 200, 256, 257)):
            rows = slice(first, first + count)
            for found, one in zip(products(rows), whole, strict=True):
                assert torch.equal(found, one[rows]), (kind, first, count)

    @pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn])
    def test_attention(self, cache_dtype: torch.dtype | None) -> None:
        """A prompt behind a past of several pieces; row by row, whole, and in parts."""
        shape = Shape(32, 8, 128, 32, torch.bfloat16, cache_dtype)
        start, rows = FIXED_PIECE - 60, 900
        cuts = [[rows], [1] * rows, [1, 130, 1, 1, 500, rows - 633]]
        outs = []
        for sizes in cuts:
            case = make_case(((start, rows),), shape).to(torch.device("cuda"))
            plan = paged.prepared(_cut_up(case, sizes), shape.heads, case.keys, shape.dtype)
            args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values
            outs.append(paged.attend(*args, plan))
        assert all(torch.equal(out, outs[0]) for out in outs)
        wanted, _, _ = expected(make_case(((start, rows),), shape))
        assert distance(outs[0].cpu(), wanted) < 3e-2


LATENTS = [
    latents.Shape(),
    latents.Shape(heads=20, plain=24, turned=16, value=40, rank=72, block_size=32),
]


def _latent_rows(
    case: latents.Case, first: int, sizes: list[int], *, is_known: bool, padding: int = 0
) -> Tensor:
    """Rows of the one segment from `first` on, as several segments, by the kernels."""
    shape, start = case.shape, case.segments[0][0]
    part = slice(first, first + sum(sizes))
    positions = [*range(start + part.start, start + part.stop), *[-1] * padding]
    given: dict[str, Any] = {"dtype": torch.int32, "device": case.rows.device}
    segments, row = [], 0
    for size in sizes:
        segments.append(ExtendSegment(row, size, positions[row], 0))
        row += size
    plan = PagedPlan(
        torch.tensor(positions, **given), torch.zeros(len(positions), **given), case.tables, 0,
        tuple(segments) if is_known else (), invariant=True,
    )  # fmt: skip
    pad = (0, 0, 0, padding)
    rows = torch.nn.functional.pad(case.rows[part], pad)
    queries = torch.nn.functional.pad(case.queries[part], pad)
    heads = queries.view(len(positions), shape.heads, -1)
    weights = case.weights, case.cos_sin, case.cache
    return latent_kernels.attend(heads, rows, *weights, plan, shape.scale)[: sum(sizes)]


@pytest.mark.parametrize("shape", LATENTS)
def test_latents_in_any_segments(
    shape: latents.Shape, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One prompt whole and in parts, known and captured, padded, and in passes of little room;
    contexts of several pieces.
    """
    monkeypatch.setattr(latent_kernels, "_PIECE", 32)
    latent_kernels._launches.cache_clear()
    latent_kernels._merge_launch.cache_clear()
    segment = ((50, 30),)
    wanted, cache = latents.expected(latents.make_case(segment, shape))
    whole = latents.make_case(segment, shape).to(device)
    first = _latent_rows(whole, 0, [30], is_known=True)
    assert latents.distance(first.cpu(), wanted) < 1e-5
    assert latents.distance(whole.cache.cpu(), cache) < 1e-6
    for room in (2**25, 1):
        monkeypatch.setattr(latent_kernels, "_FIXED_NUMBERS", room)
        case = latents.make_case(segment, shape).to(device)
        row, outs = 0, []
        for index, sizes in enumerate(([1], [3, 1], [17], [2, 1, 5])):
            outs.append(_latent_rows(case, row, sizes, is_known=index % 2 == 0, padding=index))
            row += sum(sizes)
        assert torch.equal(torch.cat(outs), first)
        assert torch.equal(case.cache.nan_to_num(), whole.cache.nan_to_num())
    latent_kernels._launches.cache_clear()
    latent_kernels._merge_launch.cache_clear()


@pytest.mark.parametrize("shape", LATENTS)
@pytest.mark.parametrize("is_paged", [False, True])
def test_latents_of_the_reference(shape: latents.Shape, *, is_paged: bool) -> None:
    """Plain torch: alone, cut and beside another sequence, behind more keys than a tile has."""
    case = latents.make_case(((150, 21), (3, 5)), shape)
    wanted, _ = latents.expected(case)

    def rows_of(segments: list[ExtendSegment]) -> Tensor:
        own, laid, row, parts = [], [], 0, []
        for one in segments:
            own += range(one.first_row, one.first_row + one.num_rows)
            laid.append(one._replace(first_row=row))
            parts.append(attention.Segment(one.start, one.num_rows, case.tables[one.table_row]))
            row += one.num_rows
        positions = [at for one in laid for at in range(one.start, one.start + one.num_rows)]
        owners = [one.table_row for one in laid for _ in range(one.num_rows)]
        plan: Any = PagedPlan(
            torch.tensor(positions), torch.tensor(owners), case.tables, 0, tuple(laid),
            invariant=True,
        )  # fmt: skip
        if not is_paged:
            named = [part._replace(block_ids=part.block_ids.tolist()) for part in parts]
            plan = attention.plan_attention(
                named, shape.block_size, torch.device("cpu"), invariant=True
            )
        return attend_latents(
            case.queries[own], case.rows[own], case.weights, case.cos_sin, case.cache, plan,
            scale=shape.scale,
        )  # fmt: skip

    found = rows_of([ExtendSegment(0, 21, 150, 0), ExtendSegment(21, 5, 3, 1)])
    assert latents.distance(found, wanted) < 1e-5
    for sizes in ([21], [1, 20], [7, 1, 13]):
        row, outs = 0, []
        for size in sizes:
            outs.append(rows_of([ExtendSegment(row, size, 150 + row, 0)]))
            row += size
        assert torch.equal(torch.cat(outs), found[:21])


@pytest.mark.parametrize("is_gelu", [False, True])
def test_numbers_of_any_rows_on_a_cpu(*, is_gelu: bool) -> None:
    """Gates of rows that several threads share, and scores of experts: torch's loops round the last
    numbers of a share otherwise.
    """
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(700, 24, generator=generator)
    norm, gate_up = torch.ones(24), torch.randn(202, 24, generator=generator)
    whole = entries.norm_swiglu(x, norm, EPS, gate_up, is_gelu=is_gelu, invariant=True)
    routing = Routing(num_experts=7, num_active=3, is_sigmoid=True)
    experts = ExpertWeights(router=torch.randn(7, 24, generator=generator))
    weights = route(x, experts, routing, invariant=True).weights
    for begin in range(0, 700, 7):
        rows = slice(begin, begin + 1 + begin % 5)
        own = entries.norm_swiglu(x[rows], norm, EPS, gate_up, is_gelu=is_gelu, invariant=True)
        assert torch.equal(own, whole[rows])
        found = route(x[rows], experts, routing, invariant=True).weights
        assert torch.equal(found, weights[rows])
