"""Steps of attention with poisoned surroundings, and what must come out of them in float64."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.attention import (
    AttentionPlan,
    ExtendSegment,
    PagedPlan,
    Segment,
    SharedRun,
    plan_attention,
)
from kernels.attention.plan import Scope

EPS = 1e-6
MAX_POSITIONS = 2048
Segments = tuple[tuple[int, int], ...]
Runs = tuple[SharedRun, ...]


@dataclass(frozen=True)
class Shape:
    """Heads and caches; `cache_dtype` None is that of the rows. Of `norms`, "wide" are float32,
    "none" leave queries and keys as they are, and "all" norm values too. `scale`, `window` and
    `sees_ahead` are `attend`'s.
    With `sinks` each head has one, small and large ones. A case that `borrows` is made by
    `borrowing`.
    """

    heads: int = 4
    kv: int = 2
    dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    norms: str = "plain"
    scale: float | None = None
    window: int = 0
    sees_ahead: bool = False
    sinks: bool = False
    borrows: bool = False

    def sink_scores(self, device: torch.device | str = "cpu") -> Tensor | None:
        """As the kernels take them."""
        return torch.linspace(-4, 6, self.heads, device=device) if self.sinks else None

    @property
    def scope(self) -> Scope:
        """As the kernels take it."""
        scale = self.dim**-0.5 if self.scale is None else self.scale
        return Scope(scale, self.window, self.sees_ahead, self.borrows)


@dataclass(frozen=True)
class Case:
    """One step: rows of (start, length) sequences whose blocks lie shuffled among NaN."""

    shape: Shape
    segments: Segments
    qkv: Tensor
    qk_norm: Tensor | None
    cos_sin: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor

    @property
    def num_decodes(self) -> int:
        """Leading segments of one row."""
        lengths = [length for _, length in self.segments]
        return next((i for i, length in enumerate(lengths) if length > 1), len(lengths))

    def paged_plan(self) -> PagedPlan:
        """The plan for the card, sequence i in table row i."""
        positions = [start + i for start, length in self.segments for i in range(length)]
        rows = [index for index, (_, length) in enumerate(self.segments) for _ in range(length)]
        prefills, row = [], self.num_decodes
        for index, (start, length) in enumerate(
            self.segments[self.num_decodes :], self.num_decodes
        ):
            prefills.append(ExtendSegment(row, length, start, index))
            row += length
        return PagedPlan(
            positions=torch.tensor(positions, dtype=torch.int32, device=self.qkv.device),
            table_rows=torch.tensor(rows, dtype=torch.int32, device=self.qkv.device),
            block_tables=self.tables,
            num_decodes=self.num_decodes,
            prefills=tuple(prefills),
        )

    def cpu_plan(self) -> AttentionPlan:
        """The plan of the CPU path."""
        segments = [
            Segment(start, length, self.tables[row].tolist())
            for row, (start, length) in enumerate(self.segments)
        ]
        return plan_attention(segments, self.shape.block_size, torch.device("cpu"))

    def to(self, device: torch.device) -> "Case":
        """This step, moved to another device."""
        names = ("qkv", "qk_norm", "cos_sin", "keys", "values", "tables")
        parts = {name: getattr(self, name) for name in names}
        moved = {name: part if part is None else part.to(device) for name, part in parts.items()}
        return replace(self, **moved)


def make_case(segments: Segments, shape: Shape, seed: int = 0) -> Case:
    """A step of random numbers. Only cached positions of the caches are numbers."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    needed = [-(-(start + length) // shape.block_size) for start, length in segments]
    free = list(range(sum(needed) + 2))
    rng.shuffle(free)
    cache_shape = (len(free), shape.block_size, shape.kv, shape.dim)
    keys, values = torch.full(cache_shape, torch.nan), torch.full(cache_shape, torch.nan)
    tables = torch.full((len(segments), max(needed) + 1), 2**30, dtype=torch.int32)
    for index, ((start, _), count) in enumerate(zip(segments, needed, strict=True)):
        ids = torch.tensor([free.pop() for _ in range(count)])
        tables[index, :count] = ids
        where = ids.repeat_interleave(shape.block_size)[:start], torch.arange(start)
        slots = where[0], where[1] % shape.block_size
        for cache in (keys, values):
            cache[slots] = torch.randn(start, shape.kv, shape.dim, generator=generator)
    rows = sum(length for _, length in segments)
    width = (shape.heads + 2 * shape.kv) * shape.dim
    frequencies = 1e4 ** -(torch.arange(shape.dim // 2) / (shape.dim // 2))
    angles = torch.arange(MAX_POSITIONS)[:, None] * frequencies
    cache_dtype = shape.cache_dtype or shape.dtype
    num_normed = shape.heads + shape.kv * (1 + (shape.norms == "all"))
    norm = torch.rand(num_normed, shape.dim, generator=generator).to(shape.dtype) + 0.5
    norms = {"plain": norm, "wide": norm.float(), "none": None, "all": norm}
    return Case(
        shape,
        segments,
        (3 * torch.randn(rows, width, generator=generator)).to(shape.dtype),
        norms[shape.norms],
        torch.cat((angles.cos(), angles.sin()), dim=1),
        keys.to(cache_dtype),
        values.to(cache_dtype),
        tables,
    )


def borrowing(case: Case, keys: Tensor, values: Tensor) -> Case:
    """The case's queries alone, over caches that hold the keys and values of its rows already."""
    shape = case.shape
    return replace(
        case,
        shape=replace(shape, borrows=True),
        qkv=case.qkv[:, : shape.heads * shape.dim].contiguous(),
        qk_norm=None if case.qk_norm is None else case.qk_norm[: shape.heads],
        keys=keys.to(case.keys.dtype),
        values=values.to(case.values.dtype),
    )


def shared_case(segments: Segments, runs: Runs, shape: Shape, seed: int = 0) -> Case:
    """A step whose decodes hold the same blocks where they share."""
    case = make_case(segments, shape, seed)
    for first_row, num_rows, begin, end, table_row in runs:
        assert not begin % shape.block_size
        assert not end % shape.block_size
        blocks = slice(begin // shape.block_size, end // shape.block_size)
        assert all(start >= end for start, _ in segments[first_row : first_row + num_rows])
        case.tables[first_row : first_row + num_rows, blocks] = case.tables[
            table_row, blocks
        ].clone()
    return case


def expected(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Output [T, H D] and the caches after the step, float64, rounded only to the cache."""
    shape = case.shape
    heads = case.qkv.double().view(-1, shape.heads + 2 * shape.kv, shape.dim)
    if case.qk_norm is not None:
        root = (heads.square().mean(-1, keepdim=True) + EPS).sqrt()
        count = len(case.qk_norm)
        weighed = heads[:, :count] / root[:, :count] * case.qk_norm.double()
        heads = torch.cat((weighed, heads[:, count:]), dim=1)
    query_key, fresh = heads[:, : -shape.kv], heads[:, -shape.kv :]
    plan = case.paged_plan()
    cos, sin = case.cos_sin.double()[plan.positions.long()].unsqueeze(1).chunk(2, dim=-1)
    first, second = query_key.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    keys, values = case.keys.double(), case.values.double()
    out, row = [], 0
    for index, (start, length) in enumerate(case.segments):
        rows, context = slice(row, row + length), start + length
        blocks = case.tables[index, : -(-context // shape.block_size)].long()
        position = torch.arange(start, context, device=blocks.device)
        slots = blocks[position // shape.block_size], position % shape.block_size
        keys[slots] = _rounded(turned[rows, shape.heads :], case.keys.dtype)
        values[slots] = _rounded(fresh[rows], case.values.dtype)
        k, v = (cache[blocks].flatten(0, 1)[:context] for cache in (keys, values))
        out.append(_plain(turned[rows, : shape.heads], k, v, start, shape))
        row += length
    return torch.cat(out).flatten(1), keys, values


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.clamp(-448, 448).to(dtype).double() if dtype.itemsize == 1 else x


def _plain(queries: Tensor, keys: Tensor, values: Tensor, start: int, shape: Shape) -> Tensor:
    scope = shape.scope
    groups = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = torch.einsum("thd,shd->hts", queries, keys) * scope.scale
    first_hidden = keys.shape[0] if scope.sees_ahead else start + 1
    hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(first_hidden)
    if scope.window:
        hidden |= torch.ones_like(hidden).tril(start - scope.window)
    scores = scores.masked_fill(hidden, -torch.inf)
    sinks = shape.sink_scores(scores.device)
    if sinks is not None:
        own = sinks.double().view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        scores = torch.cat((scores, own), dim=-1)
    weights = scores.softmax(-1)[..., : keys.shape[0]]
    return torch.einsum("hts,shd->thd", weights, values)


def distance(out: Tensor, wanted: Tensor) -> float:
    """||out - wanted|| / ||wanted|| where `wanted` is a number; NaN must stand where it is not."""
    numbers = ~wanted.isnan()
    assert torch.equal(numbers, ~out.double().isnan())
    difference = out.double()[numbers] - wanted[numbers]
    return float(difference.norm() / wanted[numbers].norm())


def laid_out(segments: Sequence[tuple[int, int]], first_row: int) -> list[ExtendSegment]:
    """Segments (start, length) one after another in the rows of a step, from `first_row` on."""
    laid, row = [], first_row
    for index, (start, length) in enumerate(segments):
        laid.append(ExtendSegment(row, length, start, index))
        row += length
    return laid
