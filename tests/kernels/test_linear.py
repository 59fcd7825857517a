"""The fused products equal their definitions in double precision, on any shape and path.

Interpreted `tl.dot` takes bfloat16 for integers, so bfloat16 meets the tensor cores on the card
only; the same kernels run here in float16 and float32.
"""

from collections.abc import Iterator

import pytest
import torch

from kernels import linear as entries
from kernels.linear.choose import MAX_ROWS, TUNED_ROWS, Op, choose, even_splits, rule
from kernels.linear.config import MAX_TILE_ROWS, Config, Gemv, Skinny
from kernels.linear.measured import TUNED
from tests.kernels.linear_cases import EPS, PARTS, TOLERANCE, Problem

GEMV = Gemv(block_n=4, block_k=64, num_warps=2)
SKINNY = Skinny(block_n=16, block_k=32, splits=1, num_warps=4, num_stages=3)
SPLIT = SKINNY._replace(splits=3)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 37, 70), torch.bfloat16),
        ((4, 6, 256), torch.float16),
        ((2, 1, 129), torch.float32),
        ((3, 65, 8), torch.bfloat16),
    ],
)
def test_matrix_vector_products(
    shape: tuple[int, int, int], dtype: torch.dtype, parts: str, device: torch.device
) -> None:
    """One to four rows; neither N nor K fits the blocks."""
    problem = Problem(*shape, dtype, parts)
    problem.check(problem.run(GEMV, device))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((1, 37, 70), SKINNY),
        ((1, 37, 70), SPLIT),
        ((16, 8, 96), SPLIT),
        ((33, 19, 40), SPLIT),
        ((16, 8, 96), SPLIT._replace(fuses_norm=False)),
        ((37, 19, 72), SPLIT._replace(block_rows=16)),
        ((40, 33, 40), SKINNY._replace(block_rows=32)),
    ],
)
def test_tensor_core_products(
    shape: tuple[int, int, int], config: Skinny, parts: str, device: torch.device
) -> None:
    """Rows are padded, K is cut unevenly, or into more parts than it has blocks."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    problem = Problem(*shape, dtype, parts)
    problem.check(problem.run(config, device))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("num_rows", [2, 5, 17, 32, 63, 64, 100, 130])
def test_every_padding(num_rows: int, device: torch.device) -> None:
    """Rows are padded to powers of two up to 128, then tiled; float32 sums stay float32."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    problem = Problem(num_rows, 21, 72, dtype, "residual bias")
    problem.check(problem.run(SPLIT, device))


def test_splits_add_up_the_same_every_time(device: torch.device) -> None:
    """The order of arrival changes no bit, and the counters start again from zero."""
    problem = Problem(5, 50, 500, torch.float16, "swiglu")
    outs = [problem.run(SPLIT, device) for _ in range(3)]
    assert all(torch.equal(out, outs[0]) for out in outs)
    problem.check(outs[0])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("config", [GEMV, SKINNY, SPLIT])
def test_what_is_not_finite_stays_in_its_row_and_column(
    config: Config, device: torch.device
) -> None:
    """A NaN in a row of x spoils that row only, one in a weight row that column only."""
    problem = Problem(3, 33, 70, torch.float16, "norm")
    problem.x[1, 69] = torch.inf
    problem.weight[32, 0] = torch.nan
    spoilt = ~problem.run(config, device).isfinite()
    expected = torch.zeros(3, 33, dtype=torch.bool)
    expected[1] = expected[:, 32] = True
    assert torch.equal(spoilt, expected)


@pytest.mark.parametrize("num_rows", [1, 3, 16, 64, 70])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_entries_agree_with_their_definitions(
    num_rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    """What the entries choose is right; on the CPU that is the reference."""
    for parts in ("bias", "norm bias", "swiglu", "residual bias"):
        problem = Problem(num_rows, 130, 264, dtype, parts)
        out = problem.enter(device)
        problem.check(out, max(TOLERANCE[dtype], TOLERANCE[torch.bfloat16]))


SHAPES = [
    (op, num_weight_rows, depth)
    for hidden, inner, heads, kv in [
        (256, 768, 8, 4), (1024, 3072, 16, 8), (2048, 6144, 16, 8), (2560, 9728, 32, 8),
        (4096, 12288, 32, 8), (5120, 17408, 40, 8), (5120, 25600, 64, 8),
    ]
    for op, num_weight_rows, depth in [
        (Op.NORM_LINEAR, (heads + 2 * kv) * 128, hidden),
        (Op.LINEAR_ADD, hidden, heads * 128),
        (Op.NORM_SWIGLU, 2 * inner, hidden),
        (Op.LINEAR_ADD, hidden, inner),
        (Op.NORM_LINEAR, 151936, hidden),
        (Op.NORM_LINEAR, 96, hidden),
    ]
]  # fmt: skip


def _configs() -> Iterator[tuple[Config, int, int]]:
    for op, num_weight_rows, depth in SHAPES:
        for rows in TUNED_ROWS:
            if rows > MAX_ROWS:
                break
            config = rule(op, rows, num_weight_rows, depth)
            assert config is not None
            yield config, rows, depth
    for (_, rows, _, depth), config in TUNED.items():
        if config is not None:
            yield config, rows, depth


def test_configurations_fit_the_card() -> None:
    """Shared memory, registers and rows of everything that may be chosen stay within bounds."""
    for config, rows, depth in _configs():
        if isinstance(config, Gemv):
            assert rows <= 4
            # Weights in registers: 4 bytes each, of 255 per thread.
            assert config.block_n * depth * 2 / (config.num_warps * 32 * 4) <= 160
        elif isinstance(config, Skinny):
            padded = config.block_rows or min(MAX_TILE_ROWS, max(16, rows))
            shared = (config.block_n + padded) * config.block_k * 2 * config.num_stages
            assert shared <= 227 * 1024
            assert config.splits == even_splits(depth, config.block_k, config.splits)


def test_many_rows_and_float32_are_the_librarys() -> None:
    """Ours are chosen for a few rows of half precision."""
    assert choose(Op.LINEAR, 65, 4096, 4096, torch.bfloat16) is None
    assert choose(Op.LINEAR, 0, 4096, 4096, torch.bfloat16) is None
    assert choose(Op.LINEAR, 1, 4096, 4096, torch.float32) is None
    assert isinstance(choose(Op.LINEAR, 1, 4099, 4096, torch.float16), Gemv)
    assert isinstance(choose(Op.LINEAR, 40, 4099, 4096, torch.bfloat16), Skinny)


@pytest.mark.parametrize(
    ("most", "found"),
    [(257, 257), (2048, 1985), (4096, 3971), (8192, 7943), (20_000, 7943)],
)
def test_the_most_rows_that_the_library_multiplies(most: int, found: int) -> None:
    """The most rows of gates and ups that the library multiplies on any card; beyond them our
    kernel does where it serves the product.
    """
    assert entries.library_rows(most) == found
    shape = 24_576, 4096, torch.bfloat16
    served = [choose(Op.NORM_SWIGLU, n, *shape, has_wide=True) for n in range(found, most + 1)]
    assert served[0] is None
    assert all(served[1:])


def test_shapes_that_do_not_fit_are_refused() -> None:
    """Every entry checks its arguments before it computes."""
    x, weight = torch.zeros(2, 3), torch.zeros(4, 3)
    with pytest.raises(ValueError, match="weight"):
        entries.linear(x, torch.zeros(4, 5))
    with pytest.raises(ValueError, match="weight"):
        entries.linear(x, weight.half())
    with pytest.raises(ValueError, match="bias"):
        entries.linear(x, weight, torch.zeros(3))
    with pytest.raises(ValueError, match="norm"):
        entries.norm_linear(x, torch.zeros(4), EPS, weight)
    with pytest.raises(ValueError, match="odd"):
        entries.norm_swiglu(x, torch.zeros(3), EPS, torch.zeros(5, 3))
    with pytest.raises(ValueError, match="residual"):
        entries.linear_add(x, weight, torch.zeros(2, 3))
