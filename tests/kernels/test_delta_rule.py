"""The gated delta rule is that of `transformers`, and its chunks are its rows."""

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs

from kernels.delta_rule import CHUNK
from kernels.delta_rule.reference import chunked, short_conv, step

HEADS, GROUP, K, V = 2, 3, 16, 12
LENGTHS = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 200]


def recurrent(*case: Tensor) -> tuple[Tensor, Tensor]:
    """The rule row by row."""
    *given, state = case
    held, out = state.unsqueeze(0), torch.empty_like(given[2])
    for row in range(len(out)):
        at = slice(row, row + 1)
        out[at], held = step(*(x[at] for x in given), held)
    return out, held[0].clone()


def _case(length: int, kind: str = "plain") -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(length)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    gates = -torch.rand(length, HEADS * GROUP, generator=generator)
    gates = {"open": gates * 1e-4, "shut": gates * 20.0}.get(kind, gates)
    keys = drawn(length, HEADS, K)
    if kind == "repeated" and length:
        keys[:] = keys[0]
    betas = torch.rand(length, HEADS * GROUP, generator=generator)
    values = drawn(length, HEADS * GROUP, V)
    return drawn(length, HEADS, K), keys, values, gates, betas, drawn(HEADS * GROUP, K, V)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", ["plain", "open", "shut", "repeated"])
def test_chunks_are_rows(length: int, kind: str) -> None:
    """Chunks equal rows behind a state, with gates near 0 and near -20, and with keys that are all
    the same.
    """
    case = _case(length, kind)
    before = case[-1].clone()
    (found, state), (expected, last) = chunked(*case), recurrent(*case)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state, last, atol=1e-5, rtol=1e-5)
    assert torch.equal(case[-1], before)


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_both_are_those_of_transformers(length: int) -> None:
    """Our rule by rows and by chunks is that of transformers, with its own norm of queries and
    keys.
    """
    *given, state = _case(length)
    batched = [x.unsqueeze(0) for x in given]
    for rule in (theirs.torch_recurrent_gated_delta_rule, theirs.torch_chunk_gated_delta_rule):
        out, last = rule(
            *batched,
            initial_state=state.unsqueeze(0),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        for ours in (recurrent, chunked):
            found, new = ours(*given, state)
            torch.testing.assert_close(found, out[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(new, last[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cut", [1, 3, 64, 150])
def test_a_split_is_no_split(cut: int) -> None:
    """The state behind one part begins the next; so does the tail of a convolution."""
    *given, state = _case(200)
    whole, last = recurrent(*given, state)
    first, between = chunked(*(x[:cut] for x in given), state)
    second, end = chunked(*(x[cut:] for x in given), between)
    torch.testing.assert_close(torch.cat((first, second)), whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(end, last, atol=1e-5, rtol=1e-5)
    rows, weight = given[0].flatten(1), torch.randn(HEADS * K, 4)
    out, tail = short_conv(rows, weight, torch.zeros(3, HEADS * K))
    head, middle = short_conv(rows[:cut], weight, torch.zeros(3, HEADS * K))
    rest, at_end = short_conv(rows[cut:], weight, middle)
    torch.testing.assert_close(torch.cat((head, rest)), out)
    assert torch.equal(at_end, tail)
    assert torch.equal(tail, rows[-3:])
