"""Products of few rows with words in registers: on a CPU what is asked, on Hopper the answers."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.int4 import Int4Weight, dequantise
from kernels.linear import int4, int4_check, int4_choose, int4_rows, int4_tiles, int4_verdict
from kernels.linear.config import Int4Rows
from kernels.linear.int4_check import CheckedProduct, Inputs
from kernels.recorder import record_launches

META = torch.device("meta")
CONFIGS = [
    Int4Rows(8, 4, 4), Int4Rows(16, 4, 2), Int4Rows(4, 8, 3), Int4Rows(8, 5, 3, tiles=3),
    Int4Rows(8, 2, 2, tiles=2),
]  # fmt: skip

_IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def drawn(num_rows: int, num_weight_rows: int, depth: int, group: int = 128) -> Inputs:
    """On the pretended device."""
    return int4_check.drawn(
        CheckedProduct(num_rows, num_weight_rows, depth, group, "zeros"), torch.bfloat16, META
    )


def suits(inputs: Inputs, *, swiglu: bool = False, has_residual: bool = False) -> bool:
    return int4_rows.suits(
        inputs.x, inputs.weight, has_norm=True, has_residual=has_residual, swiglu=swiglu
    )


def test_it_suits_few_rows_of_whole_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weight rows by eights, groups of 128 columns, and what two programs have memory for."""
    monkeypatch.setattr(int4_rows, "runs_on", lambda _: False)
    assert not suits(drawn(1, 64, 4096))
    monkeypatch.setattr(int4_rows, "runs_on", lambda _: True)
    assert all(suits(drawn(num_rows, 24, 5120)) for num_rows in (1, 2, 3, 4))
    assert suits(drawn(1, 48, 17408), swiglu=True)
    refused = [drawn(5, 64, 4096), drawn(1, 20, 4096), drawn(1, 64, 4096, 64), drawn(4, 64, 17408)]
    assert not any(map(suits, refused))
    assert not suits(drawn(1, 24, 4096), swiglu=True)
    assert not suits(drawn(1, 48, 4096), swiglu=True, has_residual=True)


@pytest.mark.parametrize(
    ("num_weight_rows", "depth", "warps"),
    [(4096, 4096, 8), (4096, 12288, 16), (4224, 12288, 16), (4232, 12288, 8)],
)
def test_few_programs_of_many_columns_have_more_warps(
    num_weight_rows: int, depth: int, warps: int
) -> None:
    """As long as two on each of 132 multiprocessors have all rows."""
    assert int4_choose.chosen_rows(num_weight_rows, depth).warps == warps


@pytest.mark.parametrize(
    ("num_weight_rows", "depth", "tiles"),
    [(6144, 4096, 1), (24576, 4096, 2), (8192, 5120, 1), (34816, 5120, 2), (16384, 5120, 2)],
)
def test_more_programs_than_run_at_once_take_two_tiles(
    num_weight_rows: int, depth: int, tiles: int
) -> None:
    """Where warps divide the columns evenly; no residual is loaded for several."""
    config = int4_choose.chosen_rows(num_weight_rows, depth)
    macros = int4_rows.constants_of(config, 1, depth, has_norm=True)
    assert config.tiles == macros["TILES"] == tiles
    assert int4_rows.constants_of(config, 1, depth, has_residual=True)["TILES"] == 1
    assert int4_rows.constants_of(config, 1, depth + 128)["TILES"] == 1


def test_no_more_chunks_are_on_their_way_than_there_are() -> None:
    assert int4_rows.constants_of(Int4Rows(8, 4, 4), 1, 2048)["AT_ONCE"] == 2
    assert int4_rows.constants_of(Int4Rows(8, 4, 4), 1, 12288)["AT_ONCE"] == 4


@given(wanted=st.integers(0, 2**26), size=st.integers(0, 2**26), programs=st.integers(1, 3000))
def test_what_is_asked_for_lies_within_the_weight(wanted: int, size: int, programs: int) -> None:
    """By whole pieces of 16 bytes, all but one such piece of each program."""
    share = int4_rows.share_of(wanted, size, programs)
    assert share % 16 == 0
    assert min(wanted, size) - 16 * programs < share * programs <= min(wanted, size)


def test_it_multiplies_few_rows_where_it_was_found_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others, and all where rows must not depend on their number, are left to `int4_tiles`."""
    for module in (int4_rows, int4_tiles):
        monkeypatch.setattr(module, "runs_on", lambda _: True)

    def kernels(num_rows: int, *, invariant: bool = False) -> list[str]:
        inputs = drawn(num_rows, 64, 1024)
        with record_launches() as recorded:
            int4.product(inputs.x, inputs.weight, invariant=invariant)
        return [kernel.name for kernel in recorded.values()]

    assert [kernels(n) for n in (1, 3, 4)] == [["int4_rows"]] * 3
    assert kernels(5) == kernels(1, invariant=True) == ["int4_tiles"]
    monkeypatch.setattr(int4_verdict, "has_rows", lambda *_: False)
    assert kernels(1) == ["int4_tiles"]


@pytest.mark.gpu
@pytest.mark.skipif(not _IS_HOPPER or find_spec("cuda") is None, reason="needs a Hopper card")
@pytest.mark.usefixtures("poisoned")
class TestOnHopper:
    """Parity with the widened weight; each answer twice."""

    @pytest.mark.parametrize("config", CONFIGS)
    @pytest.mark.parametrize("num_rows", [1, 2, 3, 4])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_products(self, config: Int4Rows, num_rows: int, dtype: torch.dtype) -> None:
        """Last tiles of eight rows, chunks that no warps divide, with all that may follow."""
        for num_weight_rows, depth, parts in (
            (8, 128, "zeros"), (200, 2304, "norm residual"), (1008, 5120, "zeros norm swiglu"),
            (272, 12288, "zeros residual other_scales"), (400, 1024, "bias swiglu gelu"),
        ):  # fmt: skip
            case = CheckedProduct(num_rows, num_weight_rows, depth, 128, parts)
            inputs = int4_check.drawn(case, dtype)
            exact = int4_check.exact(case, inputs)
            x, weight = inputs.x.cuda(), inputs.weight.to(torch.device("cuda"))
            others = {
                name: part.cuda() if isinstance(part, torch.Tensor) else part
                for name, part in inputs.given.items()
            }
            out = int4_rows.product(x, weight, config, **others)
            assert int4_check.fault_of(out.cpu(), exact) == ""
            assert torch.equal(out, int4_rows.product(x, weight, config, **others))

    @pytest.mark.parametrize("ahead_mb", [1, 16, 4096])
    def test_what_is_multiplied_next_changes_nothing(self, ahead_mb: int) -> None:
        """It is asked for, all of it at most, and left as it is."""
        drawn = int4_check.drawn(CheckedProduct(1, 1000, 1024, 128, "zeros"), torch.bfloat16)
        weight: Int4Weight = drawn.weight.to(torch.device("cuda"))
        for num_weight_rows in (16, 1234):
            ahead = Int4Weight(
                torch.zeros(num_weight_rows, 128, dtype=torch.int32, device="cuda"),
                torch.ones(num_weight_rows, 8, dtype=torch.bfloat16, device="cuda"),
                None,
            )
            x, config = drawn.x.cuda(), Int4Rows(8, 4, 4, ahead_mb)
            out = int4_rows.product(x, weight, config, ahead=ahead)
            torch.cuda.synchronize()
            assert not ahead.words.any()
            assert torch.equal(out, int4_rows.product(x, weight, config))

    def test_an_order_of_columns(self) -> None:
        """Rows are brought into it first."""
        assert int4_verdict.check(torch.device("cuda"), torch.bfloat16).has_rows
        inputs = int4_check.drawn(CheckedProduct(2, 640, 4096, 128, "zeros"), torch.bfloat16)
        weight: Int4Weight = inputs.weight.to(torch.device("cuda"))
        x = inputs.x.cuda()
        order = torch.randperm(4096, device="cuda")
        mixed = torch.empty_like(x)
        mixed[:, order] = x
        exact = x.double() @ dequantise(weight, torch.float32).double().T
        out = int4.product(mixed, replace(weight, order=order))
        assert int4_check.fault_of(out.cpu(), exact.float().cpu()) == ""
