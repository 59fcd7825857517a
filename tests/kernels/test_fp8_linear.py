"""Products with weights in 8 bits equal their definitions, with the weights that there are.

Interpreted `tl.dot` takes bfloat16 for integers: the same kernels run here in float16 and float32.
"""

import pytest
import torch

from kernels import linear as entries
from kernels.fp8 import Fp8Weight, quantize_rows, quantize_weight
from kernels.linear import library
from kernels.linear.choose import MAX_BLOCKED_ROWS, TUNED_ROWS_FP8, Op, choose, even_splits, rule
from kernels.linear.config import MAX_TILE_ROWS, Config, Gemv, Skinny, Wide
from kernels.linear.device import product
from kernels.linear.epilogue import Epilogue
from kernels.linear.measured import TUNED_FP8 as TUNED
from kernels.linear.skinny import skinny
from tests.fakes.pairs import pairwise_cases
from tests.kernels.linear_cases import EPS, PARTS, TOLERANCE, Problem, by_block, by_row

GEMV = Gemv(block_n=4, block_k=64, num_warps=2)
SKINNY = Skinny(block_n=16, block_k=32, splits=1, num_warps=4, num_stages=3)
SPLIT = SKINNY._replace(splits=3)


def _shape(num_rows: int, num_out: int, depth: int, parts: str, scales: str) -> tuple[int, ...]:
    """Gates fill whole blocks: where they do not, a block would hold gates and ups."""
    return num_rows, 128 if "glu" in parts and scales == "block" else num_out, depth


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("case", "parts", "scales"),
    pairwise_cases(
        [
            ((1, 37, 70), torch.bfloat16),
            ((2, 133, 200), torch.float32),
            ((3, 6, 256), torch.float16),
        ],
        PARTS,
        ["row", "block"],
    ),
)
def test_matrix_vector_products(
    case: tuple[tuple[int, int, int], torch.dtype], parts: str, scales: str, device: torch.device
) -> None:
    """Products of a matrix and a vector where N and K do not fit the blocks of the kernel or of the
    scales.
    """
    shape, dtype = case
    num_rows, num_out, depth = _shape(*shape, parts, scales)
    problem = Problem(num_rows, num_out, depth, dtype, parts, scales)
    problem.check(problem.run(GEMV, device))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("case", "parts", "scales"),
    pairwise_cases(
        [
            ((1, 37, 70), SKINNY),
            ((16, 133, 200), SPLIT),
            ((33, 19, 160), SPLIT),
            ((5, 8, 96), SPLIT._replace(fuses_norm=False)),
        ],
        PARTS,
        ["row", "block"],
    ),
)
def test_tensor_core_products(
    case: tuple[tuple[int, int, int], Skinny], parts: str, scales: str, device: torch.device
) -> None:
    """Rows are padded, K is cut unevenly."""
    shape, config = case
    num_rows, num_out, depth = _shape(*shape, parts, scales)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    problem = Problem(num_rows, num_out, depth, dtype, parts, scales)
    problem.check(problem.run(config, device))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("parts", ["plain", "swiglu", "residual bias"])
@pytest.mark.parametrize("config", [SKINNY, SPLIT])
def test_rows_that_come_with_scales(parts: str, config: Skinny, device: torch.device) -> None:
    """Rows that come with scales: both sides are in 8 bits; interpreted, where such numbers do not
    multiply, x is as wide as its scales leave it.
    """
    problem = Problem(5, 21, 130, torch.float16, parts, "row")
    norm, problem.norm = problem.norm, None
    values, scales = quantize_rows(problem.x, norm, EPS)
    problem.x = (values.float() * scales[:, None]).double()
    x = values if device.type == "cuda" else values.half()
    out = skinny(
        x.to(device),
        problem.weight.to(device),
        config,
        problem.epilogue(device),
        x_scales=scales.to(device),
        dtype=torch.float16,
    )
    assert out.dtype == torch.float16
    # The tensor cores add products of 8 bits in fewer bits than float32's.
    problem.check(out.cpu(), 5e-3 if device.type == "cuda" else None)


@pytest.mark.gpu
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("num_rows", [2, 16, 64, 128])
def test_rows_are_quantised_on_their_way(parts: str, num_rows: int) -> None:
    """A kernel of its own quantises the rows, after the norm."""
    problem = Problem(num_rows, 256, 512, torch.bfloat16, parts, "row")
    for config in (SPLIT, Skinny(block_n=64, block_k=128, splits=2, num_warps=4, num_stages=4)):
        out = problem.run(config._replace(quantises=True), torch.device("cuda"))
        problem.check(out, 0.06)


@pytest.mark.gpu
def test_what_starts_early_reads_what_is_done() -> None:
    """A chain in which every product reads the rows of the one before gives the same bits as one in
    which each product waits for the host.
    """
    cuda, tiles = (
        torch.device("cuda"),
        Skinny(block_n=64, block_k=256, splits=2, num_warps=4, num_stages=3, quantises=True),
    )
    drawn = torch.Generator(cuda).manual_seed(1)
    shapes = (6144, 2560), (2560, 3072)
    weights = [torch.randn(*shape, device=cuda, generator=drawn) / 100 for shape in shapes]
    gate_up, down = (quantize_weight(weight.bfloat16()) for weight in weights)
    gates = Epilogue(norm=torch.ones(2560, device=cuda).bfloat16(), swiglu=True)
    x = torch.randn(64, 2560, device=cuda)

    def chained(config: Skinny, *, is_slow: bool) -> torch.Tensor:
        hidden = x.bfloat16()
        for _ in range(50):
            gated = product(config._replace(splits=1), hidden, gate_up, gates)
            if is_slow:
                torch.cuda.synchronize()
            hidden = product(config, gated, down, Epilogue(residual=hidden))
        return hidden

    wanted = chained(tiles._replace(waits=True), is_slow=True)
    assert wanted.isfinite().all()
    for config in (tiles, tiles._replace(prefetched_bytes=2**16), tiles._replace(waits=True)):
        assert torch.equal(chained(config, is_slow=False), wanted)


@pytest.mark.parametrize("parts", ["norm bias", "residual bias"])
def test_more_rows_than_one_launch_takes(parts: str, device: torch.device) -> None:
    """Part by part, each with its part of the residual."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    problem = Problem(130, 20, 130, dtype, parts, "block")
    problem.check(problem.run(SKINNY, device))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("config", [GEMV, SKINNY])
def test_what_is_not_finite_stays_in_its_row_and_column(
    config: Config, device: torch.device
) -> None:
    """What is not finite stays in its row and column, also a NaN among the values of a weight,
    which the interpreter takes for 480.
    """
    problem = Problem(3, 33, 70, torch.float16, "norm", "row")
    problem.x[1, 69] = torch.inf
    assert isinstance(problem.weight, Fp8Weight)
    expected = torch.zeros(3, 33, dtype=torch.bool)
    expected[1] = True
    if device.type == "cuda":
        problem.weight.values.view(torch.uint8)[32, 0] = 0x7F
        expected[:, 32] = True
    spoilt = ~problem.run(config, device).isfinite()
    assert torch.equal(spoilt, expected)


@pytest.mark.parametrize(
    ("num_rows", "dtype", "scales"),
    pairwise_cases([1, 3, 16, 70, 140], list(TOLERANCE), ["row", "block"]),
)
def test_entries_agree_with_their_definitions(
    num_rows: int, dtype: torch.dtype, scales: str, device: torch.device
) -> None:
    """What the entries choose is right; on the CPU that is the reference."""
    for parts in ("bias", "norm bias", "swiglu", "residual bias"):
        problem = Problem(num_rows, 256, 272, dtype, parts, scales)
        # On a card rows are quantised too, where they have tiles.
        rounds = num_rows >= 64 or (device.type == "cuda" and scales == "row" and num_rows > 1)
        problem.check(problem.enter(device), 0.1 if rounds else TOLERANCE[torch.bfloat16])


@pytest.mark.gpu
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("scales", ["row", "block"])
def test_the_librarys_products(parts: str, scales: str) -> None:
    """With scales by row the library quantises x too: its values are a 16th off at the most, 2.7 %
    on average. The residual that the library overwrites is a copy.
    """
    device = torch.device("cuda")
    problem = Problem(300, 256, 512, torch.bfloat16, parts, scales)
    x, weight = problem.x.to(device), problem.weight.to(device)
    out = library.product(x, weight, problem.epilogue(device))  # type: ignore[arg-type]
    problem.check(out.cpu(), 0.06 if scales == "row" else TOLERANCE[torch.bfloat16])


def test_what_is_chosen_for_scales_by_block_has_one_scale_per_tile() -> None:
    """The choice for scales by block has one scale per tile; the library, which would widen the
    whole weight, serves only very many rows.
    """
    for op in Op:
        for num_weight_rows, depth in [(6144, 4096), (24576, 4096), (4096, 12288), (256, 640)]:
            for num_rows in (1, 2, 5, 64, 65, 128, 129, MAX_BLOCKED_ROWS):
                config = choose(op, num_rows, num_weight_rows, depth, torch.bfloat16, 128)
                if isinstance(config, Gemv):
                    assert num_rows <= 4
                    assert 128 % config.block_n == 0
                    continue
                assert isinstance(config, Skinny)
                assert 128 % config.block_n == 0 == 128 % config.block_k
                assert not config.quantises
                assert config.splits == even_splits(depth, config.block_k, config.splits)
    assert choose(Op.LINEAR, MAX_BLOCKED_ROWS + 1, 4096, 4096, torch.bfloat16, 128) is None
    assert choose(Op.LINEAR, MAX_TILE_ROWS + 1, 4096, 4096, torch.bfloat16, 1) is None
    assert choose(Op.LINEAR, 1, 4096, 4096, torch.float32, 128) is None


def test_configurations_fit_the_card() -> None:
    """Shared memory, registers and splits of everything that may be chosen for scales by row."""
    chosen = [(key[1], key[3], config) for key, config in TUNED.items() if config is not None]
    for op in Op:
        for num_weight_rows, depth in [(6144, 4096), (34816, 5120), (5120, 17408), (256, 768)]:
            for rows in TUNED_ROWS_FP8:
                config = rule(op, rows, num_weight_rows, depth, is_fp8=True)
                assert isinstance(config, Gemv | None) or config.quantises
                if config is not None:
                    chosen.append((rows, depth, config))
    for rows, depth, config in chosen:
        if isinstance(config, Wide):
            continue  # it cuts its stages to the card's memory itself
        if isinstance(config, Gemv):
            assert rows <= 4
            assert config.block_n * depth / (config.num_warps * 32 * 4) <= 128
            continue
        x_bytes = min(MAX_TILE_ROWS, max(16, rows)) * (1 if config.quantises else 2)
        shared = (config.block_n + x_bytes) * config.block_k * config.num_stages
        assert shared <= 227 * 1024
        assert config.splits == even_splits(depth, config.block_k, config.splits)


def test_weights_that_do_not_fit_are_refused() -> None:
    """Weights that do not fit are refused by the type itself, or by the function."""
    values = torch.zeros(200, 300, dtype=torch.float8_e4m3fn)
    Fp8Weight(values, torch.ones(200))
    Fp8Weight(values, torch.ones(2, 3))
    for scales in (torch.ones(201), torch.ones(3, 2), torch.ones(200).half()):
        with pytest.raises(ValueError, match="scales"):
            Fp8Weight(values, scales)
    with pytest.raises(ValueError, match="contiguous"):
        Fp8Weight(values, torch.ones(400)[::2])
    with pytest.raises(ValueError, match="matrix"):
        Fp8Weight(values.float(), torch.ones(200))
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match="weight"):
        entries.linear(x, by_row(torch.ones(4, 9)))
    with pytest.raises(ValueError, match="gates"):
        entries.norm_swiglu(x, torch.zeros(8), EPS, by_block(torch.ones(200, 8)))
