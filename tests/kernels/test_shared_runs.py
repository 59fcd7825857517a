"""Decodes that share cached tokens attend as each alone would: any groups, nested ones too."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.attention import NO_ROW, PagedPlan, SharedRun, choose, paged
from kernels.attention.config import EXTEND_CONFIG, DecodeConfig, PrefillConfig
from kernels.attention.decode import _counters, decode
from kernels.attention.prefill import parts_of, prefill
from kernels.attention.shares import decode_shares
from kernels.attention.work import prefill_work, segment_bucket, to_device
from kernels.attention.write import qk_norm_rope_write
from tests.kernels.attention_cases import (
    EPS,
    Case,
    Runs,
    Segments,
    Shape,
    distance,
    expected,
    shared_case,
)
from tests.kernels.test_attention_bucket import Padded, attend_padded

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}
F8 = torch.float8_e4m3fn

DECODES = DecodeConfig(tile=16, warps=4, stages=2, target=8, rows=32, fan=2)
TILES = PrefillConfig(rows=32, tile=16, warps=4, stages=2, target=8, piece=16)


def attend(
    case: Case, runs: Runs, decodes: DecodeConfig = DECODES, tiles: PrefillConfig = TILES
) -> torch.Tensor:
    """The answer of a step among NaN: what no kernel writes stays that."""
    shape, plan, device = case.shape, case.paged_plan(), case.qkv.device
    host = prefill_work(
        plan.prefills, plan.num_decodes, shape.heads, shape.kv, tiles, library=False, runs=runs
    )
    work = to_device(host, device)
    for part in parts_of(device, shape.heads, shape.kv, shape.dim, work):
        part.fill_(torch.nan)
    shares = decode_shares(plan.positions, plan.num_decodes, shape.kv, decodes, work.shared)
    plan = replace(plan, work=work, shares=shares)
    out = torch.full_like(case.qkv[:, : shape.heads * shape.dim], torch.nan)
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    queries = qk_norm_rope_write(*args, choose.write_config())
    prefill(queries, case.keys, case.values, plan, work, tiles, out)
    decode(*args, decodes, out)
    return out


def check(
    segments: Segments, runs: Runs, shape: Shape, device: torch.device, **configs: object
) -> None:
    """Outputs and caches are those of each sequence alone."""
    case = shared_case(segments, runs, shape).to(device)
    out = attend(case, runs, **configs)  # type: ignore[arg-type]
    tolerance = TOLERANCE[shape.dtype]
    if shape.cache_dtype == F8:
        # The interpreter loses the carry when it rounds to float8: 1.99 becomes 1.
        tolerance = 4e-2 if out.is_cuda else 0.2
    wanted = expected(shared_case(segments, runs, shape))
    for got, want in zip((out, case.keys, case.values), wanted, strict=True):
        assert distance(got.cpu(), want) < tolerance
    assert not _counters(device).any()


def rows(*starts: int) -> Segments:
    """Decodes."""
    return tuple((start, 1) for start in starts)


NESTED = (
    SharedRun(1, 6, 0, 32, 1),
    SharedRun(1, 3, 32, 48, 2),
    SharedRun(1, 2, 48, 96, 1),
    SharedRun(4, 2, 32, 80, 5),
)
SHAPES = [
    Shape(heads=1, kv=1, dim=16),
    Shape(heads=6, kv=2, dim=48, block_size=32),
    Shape(heads=16, kv=1, dim=32, block_size=64),
    Shape(heads=8, kv=2, dim=128, dtype=torch.float16),
    Shape(heads=4, kv=2, dim=64, dtype=torch.bfloat16, cache_dtype=F8),
]
CASES: list[tuple[Segments, Runs]] = [
    (rows(48, 50), (SharedRun(0, 2, 0, 48, 1),)),  # one without a tail
    (rows(70, 3, 33), ()),
    (rows(17), (SharedRun(0, 1, 0, 16, 0),)),
    (rows(5, 100, 97, 200, 96, 80, 32, 0), NESTED),
    (rows(*range(64, 84)), (SharedRun(0, 20, 0, 64, 7),)),  # more than a tile holds
    (rows(*range(64, 70)), (SharedRun(0, 3, 0, 32, 0), SharedRun(3, 3, 0, 64, 4))),
    ((*rows(40, 41, 9), (30, 5), (0, 40)), (SharedRun(0, 2, 0, 32, 0),)),
    ((*rows(40, 41, 9), (30, 5)), ()),
]


@pytest.mark.parametrize(("segments", "runs"), CASES)
def test_shared_tokens_count_once_for_each(
    segments: Segments, runs: Runs, device: torch.device
) -> None:
    """Groups of one to all, several, nested, with no tail and beside segments."""
    check(segments, runs, Shape(), device)


@pytest.mark.parametrize("shape", SHAPES)
def test_any_heads_share(shape: Shape, device: torch.device) -> None:
    """Groups of 1 to 16 heads, head sizes that are no power of two, blocks of any size, float8."""
    size = shape.block_size
    runs = SharedRun(0, 3, 0, size, 1), SharedRun(1, 2, size, 2 * size, 2)
    check(rows(size, 2 * size + 3, 2 * size), runs, shape, device)


@pytest.mark.parametrize("target", [2, 64])
def test_any_programs_share(target: int, device: torch.device) -> None:
    """More or fewer than there are rows, whatever beginning one takes."""
    for start, slack in ((3, 1), (6, 2)):
        decodes = DECODES._replace(target=target, start=start, slack=slack)
        check(*CASES[3], Shape(), device, decodes=decodes, tiles=TILES._replace(target=target))


@pytest.mark.parametrize("index", [3, 6])
def test_a_padded_step_shares(index: int, device: torch.device) -> None:
    """A padded step shares at fixed sizes, beside segments and padding."""
    (segments, runs), shape = CASES[index], Shape()
    case = shared_case(segments, runs, shape).to(device)
    bucket = segment_bucket(60, 3, shape.heads, shape.kv, TILES, num_sharing=11)
    padded = Padded(case, 11, bucket, runs)
    out = attend_padded(case, padded.qkv, padded.plan)[padded.kept]
    wanted = expected(shared_case(segments, runs, shape))[0]
    assert distance(out.cpu(), wanted) < TOLERANCE[torch.float32]


def test_a_run_in_many_pieces(device: torch.device) -> None:
    """More than are merged at once."""
    runs = (SharedRun(0, 2, 0, 400, 0),)
    check(rows(400, 430, 9), runs, Shape(), device, tiles=TILES._replace(target=80))


REAL = Shape(heads=32, kv=8, dim=128, block_size=32, dtype=torch.bfloat16)
FLEET: list[tuple[Segments, Runs]] = [
    (rows(*range(1024, 1064)), (SharedRun(0, 40, 0, 1024, 3),)),
    (
        rows(*range(1000, 1030), 5, 900, 0, 1024, 1100),
        (
            SharedRun(0, 30, 0, 256, 29),
            SharedRun(0, 20, 256, 640, 0),
            SharedRun(0, 2, 640, 992, 1),
            SharedRun(25, 5, 256, 512, 26),
            SharedRun(33, 2, 0, 1024, 34),
        ),
    ),
    (rows(300, 301, 1024, 7), (SharedRun(0, 2, 0, 288, 1),)),
    (rows(300, 301, 1024, 7), ()),
]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestOnCard:
    """The real sizes, in one graph whose words change."""

    @pytest.mark.parametrize(
        "shape", [REAL, replace(REAL, heads=16), replace(REAL, cache_dtype=F8)], ids=str
    )
    def test_one_graph_serves_all_groups(self, shape: Shape) -> None:
        """Groups that change at every replay, and none; the answers are those of the steps alone,
        and the same when they come again.
        """
        cuda = torch.device("cuda")
        num_rows = max(len(segments) for segments, _ in FLEET) + 3
        cases = [shared_case(segments, runs, shape).to(cuda) for segments, runs in FLEET]
        graph = _Captured(cases, num_rows)
        found = [graph.replay(case, runs) for case, (_, runs) in zip(cases, FLEET, strict=True)]
        for (segments, runs), out in zip(FLEET, found, strict=True):
            wanted = expected(shared_case(segments, runs, shape))[0]
            assert distance(out.cpu(), wanted) < (4e-2 if shape.cache_dtype == F8 else 1.5e-2)
        again = [graph.replay(case, runs) for case, (_, runs) in zip(cases, FLEET, strict=True)]
        assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
        assert not _counters(cuda).any()


class _Captured:
    """A layer's attention of decodes that share tokens, at fixed addresses."""

    def __init__(self, cases: list[Case], num_rows: int) -> None:
        self.case, shape = cases[0], cases[0].shape
        device, dtype = self.case.qkv.device, shape.dtype
        assert self.case.qk_norm is not None
        self.qk_norm = torch.zeros_like(self.case.qk_norm)
        self.num_rows = num_rows
        config = choose.prefill_config(shape.heads, self.case.keys, dtype)
        self.bucket = segment_bucket(0, 0, shape.heads, shape.kv, config, num_sharing=num_rows)
        blocks = max(case.keys.shape[0] for case in cases), *self.case.keys.shape[1:]
        self.keys, self.values = (
            torch.zeros(blocks, dtype=self.case.keys.dtype, device=device) for _ in range(2)
        )
        width = max(case.tables.shape[1] for case in cases)
        self.tables = torch.zeros(num_rows, width, dtype=torch.int32, device=device)
        self.qkv = torch.zeros(num_rows, self.case.qkv.shape[1], dtype=dtype, device=device)
        self.positions = torch.full((num_rows,), NO_ROW, dtype=torch.int32, device=device)
        self.words = torch.zeros(self.bucket.num_words, dtype=torch.int32, device=device)
        self._step()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self._step()

    def _step(self) -> torch.Tensor:
        numbers = torch.arange(self.num_rows, dtype=torch.int32, device=self.qkv.device)
        plan = PagedPlan(
            self.positions, numbers, self.tables, self.num_rows, work=self.bucket.work(self.words)
        )
        plan = paged.prepared(plan, self.case.shape.heads, self.keys, self.qkv.dtype)
        caches = self.keys, self.values, plan
        return paged.attend(self.qkv, self.qk_norm, EPS, self.case.cos_sin, *caches)

    def replay(self, case: Case, runs: Runs) -> torch.Tensor:
        """The answers of its rows."""
        count = len(case.qkv)
        assert case.qk_norm is not None
        self.qk_norm.copy_(case.qk_norm)
        words = np.zeros(self.bucket.num_words, np.int32)
        self.bucket.lay_out((), self.num_rows, words, runs)
        self.words.copy_(torch.from_numpy(words))
        self.positions.fill_(NO_ROW)
        self.positions[:count] = case.paged_plan().positions
        self.qkv[:count] = case.qkv
        self.tables[:count, : case.tables.shape[1]] = case.tables
        for mine, theirs in ((self.keys, case.keys), (self.values, case.values)):
            mine.view(torch.uint8)[: len(theirs)] = theirs.view(torch.uint8)
        self.out.fill_(torch.nan)
        shape, work = case.shape, self.bucket.work(self.words)
        for part in parts_of(self.qkv.device, shape.heads, shape.kv, shape.dim, work):
            part.fill_(torch.nan)
        self.graph.replay()
        return self.out[:count].clone()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("shape", [REAL, replace(REAL, heads=16)], ids=str)
def test_few_pieces_and_many(shape: Shape) -> None:
    """Few pieces and many, in CUDA C++ and in Triton, with the decodes' real configuration."""
    cuda = torch.device("cuda")
    triton = PrefillConfig(rows=128, tile=64, warps=8, stages=3, target=132, piece=64)
    for segments, runs in FLEET[:2]:
        decodes = choose.decode_config(len(segments), shape.kv, shape.dim, shape.dtype)
        for tiles in (EXTEND_CONFIG._replace(piece=128), triton):
            check(segments, runs, shape, cuda, decodes=decodes, tiles=tiles)
