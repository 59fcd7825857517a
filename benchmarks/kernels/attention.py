"""Attention over the paged cache at Qwen3's sizes: decodes, extend segments, and their preparation.

Owns the sizes and the swept configurations. The fastest are entered in `kernels.attention.choose`.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.case import KernelCase, Variant, within
from kernels.attention import ExtendSegment, PagedPlan, PrefillWork, library, reference
from kernels.attention.config import EXTEND_CONFIG, DecodeConfig, PrefillConfig, WriteConfig
from kernels.attention.decode import decode
from kernels.attention.plan import Scope
from kernels.attention.prefill import prefill
from kernels.attention.shares import decode_shares
from kernels.attention.work import prefill_work, segment_bucket, to_device
from kernels.attention.write import qk_norm_rope_write

EPS = 1e-6
DIM, KV, BLOCK_SIZE = 128, 8, 32
HEADS = {"0.6B": 16, "8B": 32}
SCOPE = Scope(DIM**-0.5)
MULTIPROCESSORS = 132
TOLERANCE = 1.5e-2
EXPECTED_ROWS = 128
"""Rows of a segment whose scores the reference holds at once: 0.5 GB behind 32k tokens."""

LONG_ROWS = 1024
"""From this many rows on the library is tried, and few of our configurations."""

DECODES: list[tuple[str, list[int]]] = [
    ("1 x 256", [256]),
    ("1 x 8k", [8192]),
    ("1 x 32k", [32768]),
    ("8 x 16k", [16384] * 8),
    ("64 x 256", [256] * 64),
    ("64 x 2k", [2048] * 64),
    ("256 x 500", [500] * 256),
    ("256 x 100-1900", [100 + row * 1800 // 255 for row in range(256)]),
    ("16k + 63 x 256", [16384] + [256] * 63),
]
DECODE_TILES = [
    (16, 2, 3),
    (16, 4, 3),
    (32, 2, 3),
    (32, 4, 2),
    (32, 4, 3),
    (32, 4, 4),
    (64, 4, 2),
    (64, 4, 3),
    (64, 4, 4),
    (64, 8, 3),
    (128, 8, 2),
    (128, 8, 3),
]
MEASURED_SEGMENTS: list[tuple[str, int, int]] = [
    ("2k cold", 0, 2048),
    ("8k cold", 0, 8192),
    ("16k cold", 0, 16384),
    ("32 behind 8k", 8192, 32),
    ("32 behind 32k", 32768, 32),
    ("110 behind 8k", 8192, 110),
    ("300 behind 8k", 8192, 300),
    ("512 behind 8k", 8192, 512),
    ("1000 behind 8k", 8200, 1000),
    ("1000 behind 32k", 32000, 1000),
    ("4000 behind 12k", 12_000, 4000),
    ("16k behind 16k", 16384, 16384),
]
PREFILL_TILES = [
    (128, 64, 8, 3),
    (128, 64, 8, 2),
    (128, 64, 4, 3),
    (128, 128, 8, 2),
    (128, 32, 8, 4),
    (64, 64, 4, 3),
    (64, 32, 4, 4),
]
OURS = "CUDA C++"
"""Prefix of the names of our variants."""

SMALL_MODEL_CASES = {"1 x 256", "1 x 8k", "64 x 256", "256 x 500", "8k cold", "32 behind 8k"}
"""The cases of the 0.6B, whose keys and values have the 8B's shape."""

FLOAT8_CASES = {"1 x 256", "8 x 16k", "256 x 500"}

LONG_TILES = PREFILL_TILES[:4]
"""Tiles that are worth their compile time at thousands of rows."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Every size for the 8B, some for the 0.6B; a few small ones for the interpreter."""
    if device.type == "cpu":
        yield _decode_case("0.6B", "2 x 40", [40, 3], device)
        yield _prefill_case("0.6B", "9 behind 40", 40, 9, device)
        yield _write_case("0.6B", 3, device)
        return
    for model in HEADS:
        for name, contexts in DECODES:
            if model == "8B" or name in SMALL_MODEL_CASES:
                yield _decode_case(model, name, contexts, device)
        for name, start, length in MEASURED_SEGMENTS:
            if model == "8B" or name in SMALL_MODEL_CASES:
                yield _prefill_case(model, name, start, length, device)
        yield _write_case(model, 8192, device)
    for num_seqs in (8, 32, 64):
        yield _verify_case(num_seqs, device)
    for name, contexts in DECODES:
        if name in FLOAT8_CASES:
            yield _decode_case("8B", f"{name} float8", contexts, device, torch.float8_e4m3fn)


def normal(*shape: int, device: torch.device) -> Tensor:
    """Random bfloat16."""
    return torch.randn(shape, device=device).to(torch.bfloat16)


@cache
def cos_sin(device: torch.device) -> Tensor:
    """The rotations of all measured positions."""
    angles = torch.arange(40960, device=device)[:, None] * 1e6 ** -(
        torch.arange(DIM // 2, device=device) / (DIM // 2)
    )
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def launch_of(*numbers: int) -> DecodeConfig:
    """Tile, warps, stages, programs, and then start, slack and the parts merged at once."""
    names = "tile", "warps", "stages", "target", "start", "slack", "fan"
    return DecodeConfig(rows=256, **dict(zip(names, numbers, strict=False)))


def paged(
    contexts: Sequence[int], device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Tensor]:
    """Caches and block tables [sequences, blocks] of random blocks for `contexts` tokens each."""
    needed = [-(-context // BLOCK_SIZE) for context in contexts]
    shape = (sum(needed) + 1, BLOCK_SIZE, KV, DIM)
    ids = torch.randperm(sum(needed), device=device, dtype=torch.int32)
    tables = torch.full((len(needed), max(needed)), sum(needed), dtype=torch.int32, device=device)
    for row, blocks in enumerate(ids.split(needed)):
        tables[row, : len(blocks)] = blocks
    keys, values = (normal(*shape, device=device).to(dtype) for _ in range(2))
    return keys, values, tables


def _decode_case(
    model: str,
    name: str,
    contexts: list[int],
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
) -> KernelCase:
    heads, rows = HEADS[model], len(contexts)
    positions = torch.tensor(contexts, dtype=torch.int32, device=device) - 1
    numbers = torch.arange(rows, dtype=torch.int32, device=device)

    def make() -> tuple[Tensor, ...]:
        keys, values, tables = paged(contexts, device, dtype)
        qkv = normal(rows, (heads + 2 * KV) * DIM, device=device)
        return qkv, normal(heads + KV, DIM, device=device), keys, values, tables

    def plan(tables: Tensor, shares: Tensor | None = None) -> PagedPlan:
        return PagedPlan(positions, numbers, tables, rows, shares=shares)

    def variant(config: DecodeConfig) -> Variant:
        @cache
        def shares() -> Tensor:  # once per step, so not part of a layer's time
            return decode_shares(positions, rows, KV, config)

        def run(qkv: Tensor, norm: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
            out = qkv.new_empty(rows, heads * DIM)
            planned = plan(tables, shares())
            decode(qkv, norm, EPS, cos_sin(device), keys, values, planned, config, out)
            return out

        label = f"tile {config.tile} warps {config.warps} stages {config.stages}"
        return Variant(f"{label} target {config.target}", run)

    def expected(qkv: Tensor, norm: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
        angles = cos_sin(device)
        return reference.attend(qkv, norm, EPS, angles, keys, values, plan(tables))

    return KernelCase(
        name=f"decode {model} {name}",
        make=make,
        variants=[variant(config) for config in _decode_configs(rows, sum(contexts), device)],
        expected=expected,
        moved_bytes=2 * DIM * (dtype.itemsize * KV * sum(contexts) + rows * 2 * (heads + KV)),
        flops=4 * heads * DIM * sum(contexts),
        accept=within(TOLERANCE),
    )


def _decode_configs(rows: int, tokens: int, device: torch.device) -> list[DecodeConfig]:
    capacity = 16 if rows <= 16 else 256
    if device.type == "cpu":
        return [DecodeConfig(tile=16, warps=4, stages=2, target=16, rows=capacity)]
    few = rows * KV <= MULTIPROCESSORS
    targets = [MULTIPROCESSORS * n for n in ((1, 2, 4, 8) if few else (4, 8, 16, 32))]
    # Beyond one piece per tile all targets are equal.
    return [
        DecodeConfig(tile, warps, stages, target, rows=capacity)
        for (tile, warps, stages), target in itertools.product(DECODE_TILES, targets)
        if tile <= tokens / rows and (target == targets[0] or tokens * KV > tile * target // 2)
    ]


def _prefill_case(
    model: str, name: str, start: int, length: int, device: torch.device
) -> KernelCase:
    heads = HEADS[model]
    segment = ExtendSegment(first_row=0, num_rows=length, start=start, table_row=0)
    nothing = torch.empty(0, dtype=torch.int32, device=device)

    def make() -> tuple[Tensor, ...]:
        return normal(length, heads, DIM, device=device), *paged([start + length], device)

    def ours(config: PrefillConfig) -> Variant:
        @cache
        def work() -> PrefillWork:
            return to_device(prefill_work([segment], 0, heads, KV, config, library=False), device)

        def run(queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
            out = queries.new_empty(length, heads * DIM)
            plan = PagedPlan(nothing, nothing, tables, 0, (segment,))
            prefill(queries, keys, values, plan, work(), config, out)
            return out

        label = f"rows {config.rows} tile {config.tile} warps {config.warps}"
        label = OURS if config.cuda else f"{label} stages {config.stages}"
        return Variant(f"{label} target {config.target} waves {config.waves}", run)

    def theirs(form: library.Form) -> Variant:
        def run(queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
            plan = PagedPlan(nothing, nothing, tables, 0, (segment,))
            return library.attend_segment(form, queries, keys, values, plan, segment).flatten(1)

        return Variant(f"cudnn {form.__name__}", run, peer=True)

    def expected(queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
        parts = [
            reference.attend_rows(
                rows, keys, values, start + EXPECTED_ROWS * number, tables[0], SCOPE
            )
            for number, rows in enumerate(queries.split(EXPECTED_ROWS))
        ]
        return torch.cat(parts).flatten(1)

    seen = length * start + length * (length + 1) // 2
    forms = library.FORMS if device.type == "cuda" and length >= LONG_ROWS else ()
    return KernelCase(
        name=f"prefill {model} {name}",
        make=make,
        variants=[ours(c) for c in _prefill_configs(length, device)] + [theirs(f) for f in forms],
        expected=expected,
        moved_bytes=2 * DIM * (2 * KV * (start + length) + 2 * heads * length),
        flops=4 * heads * DIM * seen,
        accept=within(TOLERANCE),
    )


def _verify_case(num_seqs: int, device: torch.device) -> KernelCase:
    """Drafts of an 8B's sequences, 16 rows of each behind 400 tokens, laid out for a graph."""
    heads, start, length = HEADS["8B"], 400, 16
    segments = [ExtendSegment(row * length, length, start, row) for row in range(num_seqs)]
    num_rows = num_seqs * length
    nothing = torch.empty(0, dtype=torch.int32, device=device)

    def make() -> tuple[Tensor, ...]:
        contexts = [start + length] * num_seqs
        return normal(num_rows, heads, DIM, device=device), *paged(contexts, device)

    @cache
    def work() -> PrefillWork:
        bucket = segment_bucket(num_rows, num_seqs, heads, KV, EXTEND_CONFIG, longest=length)
        words = np.zeros(bucket.num_words, np.int32)
        bucket.lay_out(segments, 0, words)
        return bucket.work(torch.from_numpy(words).to(device))

    def run(queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
        out = queries.new_empty(num_rows, heads * DIM)
        plan = PagedPlan(nothing, nothing, tables, 0, tuple(segments))
        prefill(queries, keys, values, plan, work(), EXTEND_CONFIG, out)
        return out

    def expected(queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
        parts = [
            reference.attend_rows(rows, keys, values, start, table, SCOPE)
            for rows, table in zip(queries.split(length), tables, strict=True)
        ]
        return torch.cat(parts).flatten(1)

    tokens = num_seqs * (start + length)
    return KernelCase(
        name=f"verify 8B {num_seqs} x 16",
        make=make,
        variants=[Variant(OURS, run)],
        expected=expected,
        moved_bytes=4 * DIM * (KV * tokens + heads * num_rows),
        flops=4 * heads * DIM * length * tokens,
        accept=within(TOLERANCE),
    )


def _prefill_configs(length: int, device: torch.device) -> list[PrefillConfig]:
    if device.type == "cpu":
        return [PrefillConfig(rows=16, tile=16, warps=4, stages=2, target=8, piece=16)]
    tiles = LONG_TILES if length >= LONG_ROWS else PREFILL_TILES
    waves = (4,) if length >= LONG_ROWS else (1, 4)
    configs = [PrefillConfig(*tile, target=MULTIPROCESSORS) for tile in tiles]
    return [one._replace(waves=n) for one, n in itertools.product((*configs, EXTEND_CONFIG), waves)]


def _write_case(model: str, rows: int, device: torch.device) -> KernelCase:
    heads = HEADS[model]
    positions = torch.arange(rows, dtype=torch.int32, device=device)
    zeros, segment = torch.zeros_like(positions), ExtendSegment(0, rows, 0, 0)

    def make() -> tuple[Tensor, ...]:
        qkv = normal(rows, (heads + 2 * KV) * DIM, device=device)
        return qkv, normal(heads + KV, DIM, device=device), *paged([rows], device)

    def plan(tables: Tensor) -> PagedPlan:
        return PagedPlan(positions, zeros, tables, 0, (segment,))

    def variant(config: WriteConfig) -> Variant:
        def run(qkv: Tensor, norm: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
            angles = cos_sin(device)
            rows_plan = plan(tables)
            return qk_norm_rope_write(
                qkv, norm, EPS, angles, keys, values, rows_plan, config
            ).flatten(1)

        return Variant(f"heads {config.heads} warps {config.warps}", run)

    def expected(qkv: Tensor, norm: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
        turned = reference.prepare(qkv, norm, EPS, cos_sin(device), keys, values, plan(tables))
        return turned.flatten(1)

    shapes = itertools.product((8, 16, 32, 64), (2, 4, 8))
    return KernelCase(
        name=f"norm, turn, write {model} {rows}",
        make=make,
        variants=[variant(WriteConfig(*shape)) for shape in shapes],
        expected=expected,
        moved_bytes=4 * DIM * rows * (heads + 2 * KV),
        flops=0,
        accept=within(TOLERANCE),
    )
