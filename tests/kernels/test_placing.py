"""Weights in MXFP4 whose bits are placed: the same numbers, and who may read them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.experts import Routing, choose, listed, mxfp4, reads_placed, verdict, wide
from kernels.experts.choose import Way
from kernels.mxfp4 import Mxfp4Weight, check_placed, dequantise, place
from kernels.mxfp4.placing import in_order
from tests.kernels.drawn_mixtures import Mixture, drawn_inputs

BFLOATS = 0x81C081C0


def _weight(words: list[int]) -> Mxfp4Weight:
    """A row of these words, as a checkpoint has them."""
    as_bytes = b"".join(word.to_bytes(4, "little") for word in words)
    pairs = torch.frombuffer(bytearray(as_bytes), dtype=torch.uint8).view(1, -1)
    return Mxfp4Weight(pairs, torch.full((1, pairs.shape[1] // 16), 127, dtype=torch.uint8))


def _bfloats(word: int) -> list[int]:
    """The bits of eight columns as the kernels take them out of a placed word (`e2m1.h`)."""

    def turned(left: int) -> int:
        return (word << left | word >> (32 - left)) & 0xFFFFFFFF

    apart = (word & 0x001B001B) * ((1 << 3) + (1 << 8) + (1 << 14))
    pairs = [each & BFLOATS for each in (word, turned(10), turned(13), apart)]
    return [number for pair in pairs for number in (pair & 0xFFFF, pair >> 16)]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4))
def test_a_placed_weight_says_the_same(words: list[int]) -> None:
    """A placed weight says the same numbers, in order too, and kernels find each of them."""
    stored, wanted = _weight(words), dequantise(_weight(words), torch.float32)
    placed = place(_weight(words))
    assert torch.equal(dequantise(placed, torch.float32), wanted)
    assert torch.equal(in_order(placed), stored.pairs)
    bits = [bits for word in placed.pairs.view(torch.int32)[0].tolist() for bits in
            _bfloats(word & 0xFFFFFFFF)]  # fmt: skip
    found = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double()
    assert torch.equal((found * 2.0**126).float(), wanted[0])


def test_parts_of_a_placed_weight_are_placed() -> None:
    """Its rows, and the weight on another device."""
    weight = place(_weight([1, 2, 3, 4]))
    assert weight.rows(slice(0, 1)).is_placed
    assert weight.to(torch.device("meta")).is_placed
    check_placed(weight)
    with pytest.raises(ValueError, match="not placed"):
        check_placed(_weight([1, 2, 3, 4]))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hopper card that is not there, on which a check has found the kernels right."""
    for module in (mxfp4, listed):
        monkeypatch.setattr(module, "runs_on", lambda _: True)
        monkeypatch.setattr(module, "shared_bytes", lambda _: 227 * 1024)
    monkeypatch.setattr(wide, "runs_on", lambda _: True)
    monkeypatch.setattr(verdict, "serves", lambda *_: True)


@pytest.mark.usefixtures("card")
def test_placed_experts_are_multiplied_in_cuda_whatever_the_rows() -> None:
    """Placed experts are multiplied in CUDA C++ whatever the number of rows, others by Triton's."""
    cuda = {Way.FEW_MXFP4, Way.LISTED, Way.WIDE}
    for form, wanted in (("placed", True), ("mxfp4", False)):
        inputs = drawn_inputs(Mixture(1, 128, 64, 8, 2), form)
        for num_rows in (1, 2, 3, 8, 64, 65, 500, 9000):
            x = inputs.x.expand(num_rows, -1)
            for invariant in (False, True):
                way = choose.way(x, *inputs.stacks, 2 * num_rows, 8, invariant=invariant)
                assert (way in cuda) is wanted, (form, num_rows, invariant)


@pytest.mark.usefixtures("card")
def test_experts_are_placed_where_every_kernel_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in another dtype, of sizes that a kernel does not take, without a check that was right,
    or on a card that one of the kernels does not run on.
    """
    routing = Routing(8, 2)
    stacks = drawn_inputs(Mixture(1, 128, 64, 8, 2), "mxfp4").stacks
    assert reads_placed(*stacks, routing, torch.bfloat16)
    assert not reads_placed(*stacks, routing, torch.float16)
    assert not reads_placed(*drawn_inputs(Mixture(1, 96, 64, 8, 2), "mxfp4").stacks, routing,
                            torch.bfloat16)  # fmt: skip
    assert not reads_placed(*drawn_inputs(Mixture(1, 128, 64, 8, 2), "rows").stacks, routing,
                            torch.bfloat16)  # fmt: skip
    with monkeypatch.context() as without:
        without.setattr(wide, "runs_on", lambda _: False)
        assert not reads_placed(*stacks, routing, torch.bfloat16)
    monkeypatch.setattr(verdict, "serves", lambda *_: False)
    assert not reads_placed(*stacks, routing, torch.bfloat16)
