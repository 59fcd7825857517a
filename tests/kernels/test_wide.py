"""Wide products: what is asked of the kernel on a CPU, and on a Hopper card what it answers."""

from importlib.util import find_spec
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.fp8 import BLOCK, FP8, Fp8Weight, dequantise, quantize_rows, quantize_weight
from kernels.linear import choose as choose_file
from kernels.linear.choose import Op, choose
from kernels.linear.config import MAX_WIDE_ROWS, Gemv, Skinny, Wide
from kernels.linear.epilogue import Epilogue
from kernels.linear.wide import constants_of, shared_bytes, suits, wide
from kernels.recorder import record_launches
from tests.fakes.uninterpreted import run_uninterpreted
from tests.kernels.linear_cases import by_block

CONFIGS = [
    Wide(groups=1, splits=1),
    Wide(groups=1, splits=2, reads_once=True),
    Wide(groups=2, splits=1),
    Wide(groups=2, splits=2, reads_once=True),
    Wide(groups=2, splits=3),
    Wide(groups=3, splits=1),
    Wide(groups=3, splits=3, reads_once=True),
    Wide(groups=1, splits=2, stages=20),
    Wide(groups=2, splits=1, cached_bytes=256),
]
BLOCKED = [
    Wide(groups=1, splits=1),
    Wide(groups=1, splits=3, stages=20),
    Wide(groups=1, splits=4, programs=2),
    Wide(groups=2, splits=1, band=4, rows=64),
    Wide(groups=2, splits=8, reads_once=True),
    Wide(groups=3, splits=1),
    Wide(groups=3, splits=4, reads_once=True),
]
ROWS = range(16, MAX_WIDE_ROWS + 1, 16)

_IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _IS_HOPPER or find_spec("cuda") is None, reason="needs a Hopper card"),
]


HALVES = [
    Wide(groups=2, splits=2, band=2, rows=128),
    Wide(groups=3, splits=2, band=2, rows=112),
    Wide(groups=1, splits=1, band=2, rows=80),
]


@pytest.mark.parametrize("config", [*CONFIGS, Wide(groups=3, splits=1, band=8)])
def test_every_program_fits_the_card(config: Wide) -> None:
    """Shared memory, which at last holds the sums in float32, and registers of all threads."""
    for rows in ROWS:
        macros = constants_of(config, rows)
        assert macros["STAGES"] >= 2
        assert shared_bytes(macros) <= 227 * 1024
        tile = 64 * config.groups
        assert rows * (tile + 4) * 4 <= macros["STAGES"] * (tile + rows) * 128
        fetching, multiplying = macros["FETCH_REGISTERS"], macros["MULTIPLY_REGISTERS"]
        assert 128 * (fetching + config.groups * multiplying) <= 65536
        assert multiplying >= rows // 2 + 26
        assert fetching % 8 == multiplying % 8 == 0


def test_tiles_of_rows_are_even() -> None:
    """No more than asked for, all of a size, and none of them empty."""
    half = Wide(groups=2, splits=2, band=2, rows=128)
    assert [half.tile_rows(rows) for rows in (16, 100, 128, 129, 208, 256, 300)] == [
        16, 112, 128, 80, 112, 128, 112
    ]  # fmt: skip
    assert [Wide(groups=3, splits=1).tile_rows(rows) for rows in (1, 208, 256, 1000)] == [
        16,
        208,
        256,
        256,
    ]


def test_where_it_does_not_run_the_rule_chooses() -> None:
    """A tuned entry of this kind is for cards that have it."""
    shape = 208, 24576, 4096, torch.bfloat16
    assert choose(Op.NORM_SWIGLU, *shape) is None
    few = choose(Op.LINEAR_ADD, 64, 4096, 12288, torch.bfloat16)
    assert few is None or isinstance(few, Skinny | Gemv)
    assert choose(Op.NORM_SWIGLU, 8192, *shape[1:]) is None
    assert isinstance(choose(Op.NORM_SWIGLU, 8192, *shape[1:], has_wide=True), Wide)
    assert isinstance(choose(Op.NORM_SWIGLU, 1000, *shape[1:], has_wide=True), Wide)
    assert choose(Op.NORM_SWIGLU, 300, *shape[1:], has_wide=True) is None
    eight = choose(Op.LINEAR_ADD, 8, 4096, 12288, torch.bfloat16, has_wide=True)
    assert eight == Wide(groups=1, splits=2, reads_once=True, stages=20)
    assert isinstance(choose(Op.LINEAR_ADD, 8, 4096, 12288, torch.bfloat16), Skinny)
    for rows, size in ((4, 4096), (17, 4096), (8, 151936)):
        assert not isinstance(
            choose(Op.NORM_LINEAR, rows, size, 4096, torch.bfloat16, has_wide=True), Wide
        )
    assert not suits(torch.empty(4, 64, dtype=torch.bfloat16), 64, 64)


def test_in_8_bits_it_serves_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 8 bits the wide kernel serves what was measured, and only where it runs; the rule for
    other cards does not know it.
    """
    sizes = [(op, rows) for op in (Op.LINEAR_ADD, Op.NORM_SWIGLU) for rows in (8, 64, 200, 8192)]
    for op, rows in sizes:
        assert not isinstance(choose(op, rows, 4160, 8320, torch.bfloat16, 1, has_wide=True), Wide)
    measured = {("linear_add", 128, 4224, 8320): Wide(groups=1, splits=2, reads_once=True)}
    monkeypatch.setattr(choose_file, "TUNED_FP8", measured)
    shape = Op.LINEAR_ADD, 100, 4224, 8320, torch.bfloat16
    assert choose(*shape, 1, has_wide=True) == Wide(groups=1, splits=2, reads_once=True)
    assert isinstance(choose(*shape, 1), Skinny)
    assert isinstance(choose(*shape, BLOCK), Skinny)


def test_what_it_cannot_compute_goes_elsewhere() -> None:
    """What the kernel cannot compute goes elsewhere, in a process of its own, where Triton
    compiles; see `wide_checks`.
    """
    run_uninterpreted(
        "tests.kernels.wide_checks",
        "check_features",
        "check_addresses",
        "check_biases",
        "check_biases_apart",
    )


@pytest.mark.parametrize("op", [Op.NORM_LINEAR, Op.NORM_SWIGLU, Op.LINEAR_ADD])
@pytest.mark.parametrize("shape", [(512, 256), (2048, 4096), (24576, 4096), (5120, 17408)])
def test_by_block_it_serves_all_rows_but_one(op: Op, shape: tuple[int, int]) -> None:
    """Where it runs: a single row keeps its numbers. Tiles have as many rows as registers hold sums
    for, and no more programs share columns than there are blocks of them.
    """
    for rows in (2, 9, 64, 128, 129, 160, 208, 257, 1000, 8192):
        config = choose(op, rows, *shape, torch.bfloat16, BLOCK, has_wide=True)
        assert isinstance(config, Wide)
        assert config.tile_rows(rows) <= config.most_blocked_rows
        assert config.band or config.tile_rows(rows) >= rows
        assert config.splits <= (1 if op is Op.NORM_SWIGLU else shape[1] // BLOCK)
        assert not isinstance(choose(op, rows, *shape, torch.bfloat16, BLOCK), Wide)
    assert isinstance(choose(op, 1, *shape, torch.bfloat16, BLOCK, has_wide=True), Gemv)


@pytest.mark.parametrize(
    ("op", "rows", "shape", "tiles"),
    [
        (Op.LINEAR_ADD, 64, (2048, 4096), (1, 3, 64)),
        (Op.NORM_LINEAR, 64, (5120, 2048), (3, 4, 64)),
        (Op.NORM_LINEAR, 64, (6144, 4096), (3, 3, 64)),
        (Op.LINEAR_ADD, 384, (2048, 4096), (2, 2, 128)),
        (Op.NORM_LINEAR, 553, (5120, 2048), (3, 1, 144)),
        (Op.LINEAR_ADD, 256, (4096, 12288), (2, 2, 128)),
        (Op.NORM_SWIGLU, 2048, (24576, 4096), (3, 1, 128)),
        (Op.LINEAR_ADD, 4096, (5120, 17408), (3, 1, 144)),
    ],
)
def test_by_block_the_rule_finds_what_was_fastest(
    op: Op, rows: int, shape: tuple[int, int], tiles: tuple[int, int, int]
) -> None:
    """Warp groups, splits and rows of a tile that were the fastest on an H200, or within 3 %."""
    config = choose(op, rows, *shape, torch.bfloat16, BLOCK, has_wide=True)
    assert isinstance(config, Wide)
    assert (config.groups, config.splits, config.tile_rows(rows)) == tiles


@pytest.mark.parametrize(
    ("config", "num_rows", "swiglu"),
    [
        (Wide(groups=3, splits=2), 64, True),
        (Wide(groups=3, splits=1), 257, False),
        (Wide(groups=3, splits=1, rows=128), 129, False),
    ],
)
def test_what_nobody_would_compute_is_refused(config: Wide, num_rows: int, swiglu: bool) -> None:
    """Ups are not added over a cluster; without a band no rows behind the first tile are taken."""
    x = torch.empty(num_rows, 128, dtype=torch.bfloat16, device="meta")
    with pytest.raises(ValueError, match="Wide"):
        wide(x, torch.empty_like(x), config, Epilogue(swiglu=swiglu))


def test_rows_of_another_width_than_the_weight_are_refused() -> None:
    """8-bit floats are read as such on both sides, with a scale for each row."""
    x, values = (
        torch.empty(64, 256, dtype=dtype, device="meta") for dtype in (torch.bfloat16, FP8)
    )
    by_row, by_block = (
        Fp8Weight(values, torch.empty(shape, dtype=torch.float32, device="meta"))
        for shape in ((64,), (1, 2))
    )
    with pytest.raises(ValueError, match=r"rows torch\.bfloat16 by a weight torch\.float8"):
        wide(x, by_row, Wide(groups=1, splits=1), x_scales=by_row.scales)
    for weight in (by_row, by_block):
        with pytest.raises(ValueError, match="scales: False"):
            wide(values, weight, Wide(groups=1, splits=1))
        with record_launches() as recorded:
            out = wide(values, weight, Wide(groups=1, splits=1), x_scales=by_row.scales)
        assert out.dtype == torch.bfloat16
        (kernel,) = recorded.values()
        assert f'"BLOCKED":{weight.is_blocked:d}' in kernel.specialisation
        assert '"FP8":1' in kernel.specialisation


def test_sums_by_block_have_fewer_rows() -> None:
    """They take registers beside those of all sums, so more rows are several tiles."""
    for groups in (1, 2, 3):
        config = Wide(groups=groups, splits=1)
        most = config.most_blocked_rows
        assert constants_of(config, most, scale_block=BLOCK)["BLOCKED"]
        with pytest.raises(ValueError, match="scales by 128"):
            constants_of(config, most + 16, scale_block=BLOCK)
        assert constants_of(config, most + 16, scale_block=1)["FP8"]
        assert config._replace(rows=most, band=8).tile_rows(most + 1) <= most
        fetching, multiplying = (
            constants_of(config, most)[f"{each}_REGISTERS"] for each in ("FETCH", "MULTIPLY")
        )
        assert 128 * (fetching + groups * multiplying) <= 65536
        assert multiplying >= most + 16


def test_on_a_pretended_device_its_compilation_is_recorded() -> None:
    """On a pretended device the compilation is recorded, so that it is done ahead, once for the
    same constants.
    """
    x = torch.empty(100, 128, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(384, 128, dtype=torch.bfloat16, device="meta")
    with record_launches() as recorded:
        assert wide(x, weight, Wide(groups=3, splits=1), Epilogue(swiglu=True)).shape == (100, 192)
        assert wide(x, weight, Wide(groups=3, splits=1), Epilogue(swiglu=True)).shape == (100, 192)
        assert wide(x, weight, Wide(groups=1, splits=2)).shape == (100, 384)
    assert [kernel.name for kernel in recorded.values()] == ["product", "product"]
    assert all(kernel.module == "kernels.linear.wide" for kernel in recorded.values())


def _problem(num_rows: int, num_weight_rows: int, depth: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(num_rows * depth)
    shapes = (num_rows, depth), (num_weight_rows, depth)
    x, weight = (torch.randn(shape, generator=generator, device="cuda") for shape in shapes)
    return x.bfloat16(), (weight * depth**-0.5).bfloat16()


def _close(out: Tensor, expected: Tensor, error: float = 4e-3) -> bool:
    return bool((out.double() - expected).norm() <= error * expected.norm())


class TestOnHopper:
    """Parity with float64; each answer twice."""

    pytestmark = on_hopper

    @pytest.mark.parametrize(("config", "num_rows"), list(product(CONFIGS, [1, 16, 77, 160, 256])))
    def test_products(self, config: Wide, num_rows: int) -> None:
        """A last tile that is not full, rows that are no multiple of 16, few and odd steps."""
        for num_weight_rows, depth in ((4, 64), (388, 64 * 5), (1024, 64 * 33)):
            x, weight = _problem(num_rows, num_weight_rows, depth)
            exact = x.double() @ weight.double().T
            residual = torch.randn_like(exact).bfloat16()
            out = wide(x, weight, config)
            assert _close(out, exact)
            assert torch.equal(out, wide(x, weight, config))
            assert _close(
                wide(x, weight, config, Epilogue(residual=residual)), exact + residual.double()
            )
            bias = torch.randn_like(exact[0]).bfloat16()
            biased = wide(x, weight, config, Epilogue(bias=bias, residual=residual))
            assert _close(biased, exact + bias.double() + residual.double())
            assert _close(wide(x, weight, config, Epilogue(bias=bias)), exact + bias.double())

    @pytest.mark.parametrize(("config", "num_rows"), list(product(HALVES, [130, 208, 256])))
    def test_tiles_of_half_the_rows(self, config: Wide, num_rows: int) -> None:
        """The last tile of rows is not full, nor that of the weight."""
        for num_weight_rows, depth in ((4, 64), (388, 64 * 5), (1024, 64 * 33)):
            x, weight = _problem(num_rows, num_weight_rows, depth)
            exact = x.double() @ weight.double().T
            residual = torch.randn_like(exact).bfloat16()
            torch.full_like(exact, torch.nan, dtype=torch.bfloat16)
            out = wide(x, weight, config, Epilogue(residual=residual))
            assert _close(out, exact + residual.double())
            assert torch.equal(out, wide(x, weight, config, Epilogue(residual=residual)))

    @pytest.mark.parametrize(("groups", "num_rows"), list(product([1, 2, 3], [1, 96, 208, 256])))
    def test_swiglu(self, groups: int, num_rows: int) -> None:
        """A last tile behind whose gates the ups begin."""
        for inner, depth in ((8, 64), (388, 64 * 9)):
            x, weight = _problem(num_rows, 2 * inner, depth)
            gate, up = (x.double() @ weight.double().T).chunk(2, dim=1)
            expected = functional.silu(gate) * up
            assert _close(
                wide(x, weight, Wide(groups=groups, splits=1), Epilogue(swiglu=True)), expected
            )

    @pytest.mark.parametrize("num_rows", [1, 256, 257, 1000, 2300])
    def test_bands(self, num_rows: int) -> None:
        """The last band is lower, the last tile of rows not full."""
        x, weight = _problem(num_rows, 2 * 200, 320)
        gate, up = (x.double() @ weight.double().T).chunk(2, dim=1)
        out = wide(x, weight, Wide(groups=3, splits=1, band=4), Epilogue(swiglu=True))
        assert _close(out, functional.silu(gate) * up)

    @pytest.mark.parametrize(("config", "num_rows"), list(product(CONFIGS, [77, 256])))
    def test_eight_bits(self, config: Wide, num_rows: int) -> None:
        """Tensor cores add up 8-bit floats with fewer bits; answers are written over NaN."""
        for num_weight_rows, depth in ((4, 128), (388, 128 * 5), (1024, 128 * 33)):
            x, weight = _problem(num_rows, num_weight_rows, depth)
            values, scales = quantize_rows(x * torch.rand_like(x[:, :1]))
            quantised = quantize_weight(weight * torch.rand_like(weight[:, :1]))
            rows = values.double() * scales.double()[:, None]
            exact = rows @ dequantise(quantised, torch.float32).double().T
            torch.full_like(exact, torch.nan, dtype=torch.bfloat16)
            out = wide(values, quantised, config, x_scales=scales)
            assert _close(out, exact, 2e-2)
            assert torch.equal(out, wide(values, quantised, config, x_scales=scales))
            residual = torch.randn_like(exact).bfloat16()
            summed = wide(values, quantised, config, Epilogue(residual=residual), x_scales=scales)
            assert _close(summed, exact + residual.double(), 2e-2)
            if config.splits == 1 and num_weight_rows % 8 == 0:
                gate, up = exact.chunk(2, dim=1)
                gated = wide(values, quantised, config, Epilogue(swiglu=True), x_scales=scales)
                assert _close(gated, functional.silu(gate) * up, 3e-2)

    @pytest.mark.parametrize(("config", "num_rows"), list(product(BLOCKED, [1, 16, 77, 130, 208])))
    def test_eight_bits_by_block(self, config: Wide, num_rows: int) -> None:
        """Odd sizes, more steps than a warp has lanes, rows of one tile and of several; each answer
        twice, over NaN.
        """
        if num_rows > config.most_blocked_rows and not config.band:
            config = config._replace(rows=config.most_blocked_rows, band=8)
        for num_weight_rows, depth in ((4, 128), (388, 128 * 5), (1024, 128 * 67)):
            x, weight = _problem(num_rows, num_weight_rows, depth)
            values, scales = quantize_rows(x * torch.rand_like(x[:, :1]))
            quantised = by_block(weight.cpu()).to(x.device)
            rows = values.double() * scales.double()[:, None]
            exact = rows @ dequantise(quantised, torch.float32).double().T
            torch.full_like(exact, torch.nan, dtype=torch.bfloat16)
            out = wide(values, quantised, config, x_scales=scales)
            assert _close(out, exact)
            torch.full_like(exact, torch.nan, dtype=torch.bfloat16)
            assert torch.equal(out, wide(values, quantised, config, x_scales=scales))
            residual, bias = (
                torch.randn_like(exact).bfloat16(),
                torch.randn_like(exact[0]).bfloat16(),
            )
            behind = Epilogue(bias=bias, residual=residual)
            summed = wide(values, quantised, config, behind, x_scales=scales)
            assert _close(summed, exact + bias.double() + residual.double())
            if config.splits == 1 and num_weight_rows % 256 == 0:
                gate, up = exact.chunk(2, dim=1)
                gated = wide(values, quantised, config, Epilogue(swiglu=True), x_scales=scales)
                assert _close(gated, functional.silu(gate) * up, 8e-3)

    def test_nothing_but_the_result_is_written(self) -> None:
        """Nothing but the result is written, and what lies behind the rows is not read, even if it
        is NaN.
        """
        x, weight = _problem(80, 388, 320)
        wider = torch.full((96, 320), float("nan"), device="cuda", dtype=torch.bfloat16)
        wider[:80] = x
        assert torch.equal(
            wide(wider[:80], weight, Wide(groups=2, splits=2)),
            wide(x, weight, Wide(groups=2, splits=2)),
        )
        assert bool(wider[80:].isnan().all())

    def test_products_follow_each_other(self) -> None:
        """Each reads what the one before wrote, though it may begin before that has ended."""
        x, weight = _problem(160, 512, 512)
        expected = x
        for _ in range(20):
            expected = (expected.double() @ weight.double().T).bfloat16()
        graph = torch.cuda.CUDAGraph()
        wide(x, weight, Wide(groups=1, splits=2))
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = x
            for _ in range(20):
                out = wide(out, weight, Wide(groups=1, splits=2))
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        assert float((out.float() - expected.float()).norm() / expected.float().norm()) < 2e-2
