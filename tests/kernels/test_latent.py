"""Latent attention: both forms and the kernels against the definition, among poisoned rows."""

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.attention import (
    NO_ROW,
    AttentionPlan,
    ExtendSegment,
    PagedPlan,
    Segment,
    library,
    plan_attention,
)
from kernels.latent import LATENT_EPS, LatentWeights, attend, prompts
from kernels.latent import device as kernels
from kernels.latent.reference import plain_form

Segments = tuple[tuple[int, int], ...]

LONG: Segments = ((3, 1), (0, 70), (33, 15), (40, 65))
"""Segments of both sides of where the plain form begins."""

MIXED: Segments = ((3, 1), (70, 1), (0, 1), (0, 21), (33, 15))
DECODES: Segments = ((5, 1), (63, 1), (150, 1), (0, 1), (31, 1))


@dataclass(frozen=True)
class Shape:
    """Heads, their unturned and turned dimensions, those of values, and the latent's numbers."""

    heads: int = 3
    plain: int = 12
    turned: int = 8
    value: int = 20
    rank: int = 24
    block_size: int = 16

    @property
    def scale(self) -> float:
        """The scale of the scores."""
        return (self.plain + self.turned) ** -0.5


ODD = Shape()
SHAPES = [ODD, Shape(heads=40, plain=10, turned=6, value=9, rank=40, block_size=32)]


@dataclass
class Case:
    """A step of sequences whose blocks lie shuffled among NaN."""

    shape: Shape
    segments: Segments
    queries: Tensor
    rows: Tensor
    weights: LatentWeights
    cos_sin: Tensor
    cache: Tensor
    tables: Tensor

    @property
    def num_decodes(self) -> int:
        """Leading segments of one row."""
        lengths = [length for _, length in self.segments]
        return next((i for i, length in enumerate(lengths) if length > 1), len(lengths))

    def paged_plan(self) -> PagedPlan:
        """The plan for the card."""
        positions = [start + i for start, length in self.segments for i in range(length)]
        owners = [index for index, (_, length) in enumerate(self.segments) for _ in range(length)]
        prefills, row = [], self.num_decodes
        for index, (start, length) in list(enumerate(self.segments))[self.num_decodes :]:
            prefills.append(ExtendSegment(row, length, start, index))
            row += length
        given = {"dtype": torch.int32, "device": self.rows.device}
        return PagedPlan(
            torch.tensor(positions, **given),
            torch.tensor(owners, **given),
            self.tables,
            self.num_decodes,
            tuple(prefills),
        )

    def cpu_plan(self) -> AttentionPlan:
        """The plan of the CPU path."""
        segments = [
            Segment(start, length, self.tables[row].tolist())
            for row, (start, length) in enumerate(self.segments)
        ]
        return plan_attention(segments, self.shape.block_size, torch.device("cpu"))

    def to(self, where: torch.device) -> "Case":
        """This step, moved to another device."""
        moved = [part.to(where) for part in (self.queries, self.rows)]
        weights = LatentWeights(*(part.to(where) for part in self.weights[:3]))
        rest = [part.to(where) for part in (self.cos_sin, self.cache, self.tables)]
        return Case(self.shape, self.segments, moved[0], moved[1], weights, *rest)


def make_case(segments: Segments, shape: Shape, dtype: torch.dtype = torch.float32) -> Case:
    """Random numbers; of the cache only what is cached are numbers."""
    rng, generator = random.Random(1), torch.Generator().manual_seed(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    width = shape.rank + shape.turned
    needed = [-(-(start + length) // shape.block_size) for start, length in segments]
    free = list(range(sum(needed) + 2))
    rng.shuffle(free)
    cache = torch.full((len(free), shape.block_size, 1, width), torch.nan, dtype=dtype)
    tables = torch.full((len(segments), max(needed) + 1), 2**30, dtype=torch.int32)
    for index, ((start, _), count) in enumerate(zip(segments, needed, strict=True)):
        tables[index, :count] = torch.tensor([free.pop() for _ in range(count)])
        at = torch.arange(start)
        blocks = tables[index, at // shape.block_size].long()
        cache[blocks, at % shape.block_size] = normal(start, 1, width)
    num_rows = sum(length for _, length in segments)
    half = shape.turned // 2
    angles = torch.arange(256)[:, None] * 1e4 ** -(torch.arange(half) / half)
    return Case(
        shape,
        segments,
        normal(num_rows, shape.heads * (shape.plain + shape.turned)),
        normal(num_rows, width),
        LatentWeights(
            normal(shape.rank) + 1,
            normal(shape.heads, shape.plain, shape.rank) / 4,
            normal(shape.heads, shape.value, shape.rank),
        ),
        torch.cat((angles.cos(), angles.sin()), dim=1),
        cache,
        tables,
    )


def turned_by(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The halves of x [..., T], turned."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def expected(case: Case) -> tuple[Tensor, Tensor]:
    """The definition in float64: each head's keys and values of every token, one row at a time."""
    shape, weights = case.shape, case.weights
    norm, key_up, value_up = (part.double() for part in weights[:3])
    cache, outputs, row = case.cache.double(), [], 0
    queries = case.queries.double().view(-1, shape.heads, shape.plain + shape.turned)
    for index, (start, length) in enumerate(case.segments):
        for position in range(start, start + length):
            cos, sin = case.cos_sin[position].double().chunk(2)
            raw = case.rows[row].double()
            latent = raw[: shape.rank]
            latent = latent / (latent.square().mean() + LATENT_EPS).sqrt() * norm
            own = torch.cat((latent, turned_by(raw[shape.rank :], cos, sin)))
            at = torch.arange(position + 1)
            blocks = case.tables[index].long()[at // shape.block_size]
            cache[blocks[-1], position % shape.block_size, 0] = own
            seen = cache[blocks, at % shape.block_size, 0]
            made = torch.einsum("sr,hnr->hsn", seen[:, : shape.rank], key_up)
            turned = seen[:, shape.rank :].expand(shape.heads, -1, -1)
            keys = torch.cat((made, turned), dim=2)
            values = torch.einsum("sr,hvr->hsv", seen[:, : shape.rank], value_up)
            query = queries[row].clone()
            query[:, shape.plain :] = turned_by(query[:, shape.plain :], cos, sin)
            scores = torch.einsum("hd,hsd->hs", query, keys) * shape.scale
            outputs.append(torch.einsum("hs,hsv->hv", scores.softmax(-1), values).flatten())
            row += 1
    return torch.stack(outputs), cache


def distance(out: Tensor, wanted: Tensor) -> float:
    """The relative error; NaN must stand where it is not a number."""
    numbers = ~wanted.isnan()
    assert torch.equal(numbers, ~out.double().isnan())
    return float((out.double()[numbers] - wanted[numbers]).norm() / wanted[numbers].norm())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_paged", [True, False])
def test_both_forms_equal_the_definition(shape: Shape, *, is_paged: bool) -> None:
    """Decodes are absorbed, segments plain; nothing foreign is read or written."""
    case = make_case(MIXED, shape)
    plan = case.paged_plan() if is_paged else case.cpu_plan()
    wanted, cache = expected(case)
    given = case.queries, case.rows, case.weights, case.cos_sin, case.cache
    out = attend(*given, plan, scale=shape.scale)
    assert distance(out, wanted) < 1e-5
    assert distance(case.cache, cache) < 1e-6


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_parts", [1, 4])
def test_rows_equal_the_definition(shape: Shape, num_parts: int, device: torch.device) -> None:
    """Contexts of any length, cut into parts of which some are empty; padding is left alone."""
    case = make_case(DECODES, shape)
    wanted, cache = expected(case)
    moved = case.to(device)
    plan = moved.paged_plan()
    kernels.write(moved.rows, moved.weights, moved.cos_sin, moved.cache, plan)
    assert distance(moved.cache.cpu(), cache) < 1e-6
    padded = plan.positions.clone()
    padded[3] = NO_ROW
    plan.positions.copy_(padded)
    queries = moved.queries.view(len(DECODES), shape.heads, -1)
    given = queries, moved.weights, moved.cos_sin, moved.cache, plan, shape.scale
    mixed = kernels.attend_rows(*given, num_parts)
    out = torch.einsum("thr,hvr->thv", mixed, moved.weights.value_up).flatten(1).cpu()
    rows = [0, 1, 2, 4]
    assert distance(out[rows], wanted[rows]) < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_parts", [1, 4, 64])
@pytest.mark.parametrize("num_rows", [1, 4, 5])
def test_single_rows_equal_the_definition(
    shape: Shape, num_parts: int, num_rows: int, device: torch.device
) -> None:
    """Single rows equal the definition, in three launches for few rows and in four for more; what
    is cached beside them, and padding, for which nothing is written, is left alone.
    """
    case = make_case(DECODES[-num_rows:], shape)
    wanted, cache = expected(case)
    rows = [row for row in range(num_rows) if row != 2]
    before, moved = case.cache.clone(), case.to(device)
    plan = moved.paged_plan()
    if num_rows > 2:
        plan.positions[2] = NO_ROW
        start, block = case.segments[2][0], shape.block_size
        at = int(case.tables[2, start // block]), start % block
        cache[at] = before[at].double()
    heads = moved.queries.view(num_rows, shape.heads, -1)
    given = heads, moved.rows, moved.weights, moved.cos_sin, moved.cache, plan, shape.scale
    torch.use_deterministic_algorithms(True)  # what is not written stays NaN
    out = kernels.attend_singles(*given, num_parts).cpu()
    torch.use_deterministic_algorithms(False)
    assert distance(out[rows], wanted[rows]) < 1e-5
    assert distance(moved.cache.cpu(), cache) < 1e-6


def test_queries_of_a_wide_row_are_read_as_they_lie(device: torch.device) -> None:
    """Latents behind other numbers of the same row, as a layer's first product has them."""
    case = make_case(DECODES, ODD)
    wanted, _ = expected(case)
    moved = case.to(device)
    wide = torch.cat((torch.full_like(moved.rows, torch.nan), moved.rows), dim=1)
    heads = moved.queries.view(len(DECODES), ODD.heads, -1)
    given = moved.weights, moved.cos_sin, moved.cache, moved.paged_plan(), ODD.scale
    out = kernels.attend_singles(heads, wide[:, moved.rows.shape[1] :], *given)
    assert distance(out.cpu(), wanted) < 1e-5


@pytest.mark.parametrize("segments", [MIXED, LONG])
def test_a_whole_step_equals_the_definition(segments: Segments, device: torch.device) -> None:
    """Decodes and short segments by the kernel, long ones in the plain form, and all rows as single
    ones.
    """
    case = make_case(segments, ODD)
    wanted, cache = expected(case)
    for is_captured in (False, True):
        moved = make_case(segments, ODD).to(device)
        plan = moved.paged_plan()
        if is_captured:
            plan = PagedPlan(plan.positions, plan.table_rows, plan.block_tables, plan.num_decodes)
        heads = moved.queries.view(len(moved.rows), ODD.heads, -1)
        given = heads, moved.rows, moved.weights, moved.cos_sin, moved.cache, plan, ODD.scale
        assert distance(kernels.attend(*given).cpu(), wanted) < 1e-5
        assert distance(moved.cache.cpu(), cache) < 1e-6


def by_definition(
    queries: Tensor, keys: Tensor, values: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """What a form of the library computes."""
    scores = torch.einsum("thd,shd->hts", queries, keys) * scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), -torch.inf)
    return torch.einsum("hts,shd->thd", scores.softmax(-1), values), scores.logsumexp(-1)


@pytest.mark.parametrize("start", [0, 37])
@pytest.mark.parametrize("value", [9, 20, 31])
def test_padded_heads_by_a_library_equal_the_plain_form(
    value: int, start: int, device: torch.device
) -> None:
    """Values smaller than, as large as and larger than keys; behind a past and without one."""
    shape = Shape(value=value)
    moved = make_case(((0, 5),), shape).to(device)
    queries = torch.randn(21, shape.heads, shape.plain + shape.turned, device=device)
    cached = torch.randn(start + 21, shape.rank + shape.turned, device=device)
    given = queries, cached, moved.weights, start, shape.scale
    out = prompts.attend_by(by_definition, *given)
    assert out.shape == (21, shape.heads, value)
    assert distance(out.cpu(), plain_form(*given).double().cpu()) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("start", [0, 1003])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(heads=20, plain=192, turned=64, value=256, rank=512),
        Shape(heads=16, plain=128, turned=64, value=128, rank=512),
    ],
    ids=["glm-4.7-flash", "deepseek-v3"],
)
def test_published_heads_by_the_library(shape: Shape, start: int) -> None:
    """A library that serves them is found, and is as right as the plain form of 16 bits."""
    generator = torch.Generator("cuda").manual_seed(3)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device="cuda").to(torch.bfloat16)

    depth, heads = shape.plain + shape.turned, shape.heads
    weights = LatentWeights(
        normal(shape.rank) + 1,
        normal(heads, shape.plain, shape.rank) / shape.rank**0.5,
        normal(heads, shape.value, shape.rank) / shape.rank**0.5,
    )
    queries, cached = normal(131, heads, depth), normal(start + 131, shape.rank + shape.turned)
    width = max(depth, shape.value)
    assert library.form(heads, heads, width, torch.bfloat16, library.EQUAL_FORMS) is not None
    given = queries, cached, weights, start, shape.scale
    wide = LatentWeights(*(part.double() for part in weights[:3]))
    wanted = plain_form(queries.double(), cached.double(), wide, start, shape.scale)
    assert distance(prompts.attend_segment(*given), wanted) < 1e-2


def test_rows_of_16_bits_are_rounded_little(device: torch.device) -> None:
    """Rows of 16 bits are rounded little, as by the reference of the same dtype."""
    case = make_case(DECODES, ODD, torch.bfloat16)
    wanted, _ = expected(case)
    moved = case.to(device)
    plan = moved.paged_plan()
    heads = moved.queries.view(len(DECODES), ODD.heads, -1)
    given = heads, moved.rows, moved.weights, moved.cos_sin, moved.cache, plan, ODD.scale
    assert distance(kernels.attend(*given).cpu().float(), wanted) < 2e-2


def test_what_does_not_fit_is_refused() -> None:
    """A row or a cache of other numbers."""
    case = make_case(DECODES, ODD)
    given = case.weights, case.cos_sin, case.cache, case.cpu_plan()
    with pytest.raises(ValueError, match="queries"):
        attend(case.queries[:, 1:], case.rows, *given, scale=1.0)
    with pytest.raises(ValueError, match="rows"):
        attend(case.queries, case.rows[:, 1:], *given, scale=1.0)
