"""A layer of the gated delta rule: any split is one piece, and guessed rows leave no trace."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

from kernels.delta_rule import (
    DeltaState,
    DeltaWeights,
    RowSpan,
    chunk_list,
    mix,
    most_chunks,
    plan_spans,
    plan_verified,
    verify,
)
from tests.kernels.delta_cases import EPS, SIZES, Layer, drawn_rows, layer

CPU = torch.device("cpu")
LENGTH = 150


def _mixed(of: Layer, parts: list[tuple[RowSpan, tuple[Tensor, Tensor]]]) -> list[Tensor]:
    """What each part's span puts out, all in one step."""
    rows, gates = (torch.cat([part[1][which] for part in parts]) for which in (0, 1))
    plan = plan_spans([span for span, _ in parts], CPU)
    out = mix(rows, gates, of.weights, EPS, of.state, plan)
    return list(out.split([span.length for span, _ in parts]))


def _cut(rows: tuple[Tensor, Tensor], start: int, end: int) -> tuple[Tensor, Tensor]:
    return rows[0][start:end], rows[1][start:end]


def _alone(rows: tuple[Tensor, Tensor], cuts: list[int]) -> tuple[Tensor, DeltaState]:
    """A sequence alone in slot 0 of a layer, in spans that end at the cuts."""
    of = layer(1)
    parts = [
        _mixed(of, [(RowSpan(start, end - start, 0), _cut(rows, start, end))])[0]
        for start, end in itertools.pairwise([0, *cuts, len(rows[0])])
    ]
    return torch.cat(parts), of.state


def test_it_is_the_layer_of_transformers() -> None:
    """The layer is that of transformers behind the products: a prompt, then rows one by one."""
    heads, keys = SIZES.num_value_heads, SIZES.num_key_heads
    config = Qwen3_5TextConfig(
        hidden_size=32,
        linear_num_key_heads=keys,
        linear_num_value_heads=heads,
        linear_key_head_dim=SIZES.key_dim,
        linear_value_head_dim=SIZES.value_dim,
        rms_norm_eps=EPS,
        num_hidden_layers=4,
    )
    module: Any = theirs.Qwen3_5GatedDeltaNet(config, 0).eval()
    module.norm.weight.data.uniform_()
    module.dt_bias.data.normal_()
    x = torch.randn(1, LENGTH, 32, generator=torch.Generator().manual_seed(0))
    products = (module.in_proj_qkv, module.in_proj_z, module.in_proj_b, module.in_proj_a)
    with torch.inference_mode():
        expected = module(x)[0]
        qkv, z, b, a = [product(x[0]) for product in products]
        weights = DeltaWeights(
            module.conv1d.weight[:, 0], module.A_log.float(), module.dt_bias, module.norm.weight
        )
        of = layer(1)._replace(weights=weights)
        rows = torch.cat((qkv, z), 1), torch.cat((b, a), 1)
        found = [
            _mixed(of, [(RowSpan(start, end - start, 0), _cut(rows, start, end))])[0]
            for start, end in itertools.pairwise([0, 100, *range(101, LENGTH + 1)])
        ]
        torch.testing.assert_close(
            module.out_proj(torch.cat(found)), expected, atol=1e-5, rtol=1e-5
        )


@given(st.lists(st.integers(1, LENGTH - 1), max_size=4, unique=True))
def test_any_split_is_one_piece(cuts: list[int]) -> None:
    """Any split is one piece, behind a slot that holds no numbers, which counts as empty."""
    rows = drawn_rows(LENGTH, seed=7)
    (found, after), (expected, at_end) = _alone(rows, sorted(cuts)), _alone(rows, [])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after, at_end, atol=1e-5, rtol=1e-4)


def test_a_sequence_knows_nothing_of_those_beside_it() -> None:
    """Three decodes and three prompts, one of a single row, in one step; slots in any order. But
    for the last bit: torch's vector loops round other than what is left of them.
    """
    starts, lengths, slots = [70, 1, 0, 64, 0, 3], [1, 1, 1, 80, 65, 2], [4, 0, 2, 5, 6, 1]
    sequences = [
        drawn_rows(s + n, seed=i) for i, (s, n) in enumerate(zip(starts, lengths, strict=True))
    ]
    of = layer(8)
    alone = []
    for rows, start, slot in zip(sequences, starts, slots, strict=True):
        out, state = _alone(rows, [start] if start else [])
        alone.append((out[start:], state))
        if start:
            _mixed(of, [(RowSpan(0, start, slot), _cut(rows, 0, start))])
    spans = [RowSpan(*each) for each in zip(starts, lengths, slots, strict=True)]
    parts = [
        (span, _cut(rows, span.start, span.start + span.length))
        for span, rows in zip(spans, sequences, strict=True)
    ]
    for found, span, (expected, state) in zip(_mixed(of, parts), spans, alone, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(of.state.matrices[span.slot], state.matrices[0])
        assert torch.equal(of.state.tails[span.slot], state.tails[0])
    assert of.state.matrices[3].isnan().all()  # of no sequence


def test_padding_stays_in_its_slot() -> None:
    """Rows that no span has, decodes of no sequence, and chunks of no span."""
    of, alone, rows = layer(3), layer(3), drawn_rows(6, seed=3)
    plan = plan_spans(
        [RowSpan(0, 1, 0), RowSpan(-1, 1, 2), RowSpan(0, 3, 1), RowSpan(0, 0, 2)], CPU
    )
    found = mix(*rows, of.weights, EPS, of.state, plan)
    for part, slot in ((slice(0, 1), 0), (slice(2, 5), 1)):
        span = RowSpan(0, part.stop - part.start, slot)
        (expected,) = _mixed(alone, [(span, _cut(rows, part.start, part.stop))])
        torch.testing.assert_close(found[part], expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(of.state.matrices[slot], alone.state.matrices[slot])


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=6))
def test_rows_that_were_taken_back_leave_no_bit(rounds: list[tuple[int, int]]) -> None:
    """Behind a prompt, `verify` of some rows, of which all but the first may be taken back, again
    and again: the state is that of the rows that were kept one by one, and so is what each of them
    puts out.
    """
    of, plain = layer(2), layer(2)
    prompt = drawn_rows(70, seed=0)
    for each in (of, plain):
        _mixed(each, [(RowSpan(0, 70, 1), prompt)])
    at, num_kept = 70, 0
    for seed, (count, wanted) in enumerate(rounds, 1):
        rows = drawn_rows(count, seed=seed)
        spans = [RowSpan(at, count, 1, num_kept)]
        taken, plan = plan_verified(spans, CPU), plan_spans(spans, CPU)
        out = verify(*rows, of.weights, EPS, of.state, of.ring, taken, plan)
        num_kept = min(wanted, count - 1)
        for row in range(1 + num_kept):
            (expected,) = _mixed(plain, [(RowSpan(at + row, 1, 1), _cut(rows, row, row + 1))])
            assert torch.equal(out[row : row + 1], expected)
            if row == 0:  # the rest lags behind
                assert torch.equal(of.state.matrices[1], plain.state.matrices[1])
                assert torch.equal(of.state.tails[1], plain.state.tails[1])
        at += 1 + num_kept


def test_rows_are_verified_behind_nothing() -> None:
    """A sequence of one token has no prompt behind it, and nothing to fold."""
    of, plain, rows = layer(1), layer(1), drawn_rows(1, seed=5)
    spans = [RowSpan(0, 1, 0, 0)]
    taken, plan = plan_verified(spans, CPU), plan_spans(spans, CPU)
    out = verify(*rows, of.weights, EPS, of.state, of.ring, taken, plan)
    (expected,) = _mixed(plain, [(RowSpan(0, 1, 0), rows)])
    assert torch.equal(out, expected)
    assert torch.equal(of.state.matrices, plain.state.matrices)


@pytest.mark.parametrize("lengths", [[], [1], [64], [65, 3, 128], [0, 70]])
def test_chunks_cover_their_spans(lengths: list[int]) -> None:
    """Chunks cover their spans in order, and never more than a captured step has room for."""
    entries = chunk_list(lengths, 5)
    expected = [(5 + i, n) for i, length in enumerate(lengths) for n in range((length + 63) // 64)]
    assert entries.tolist() == [list(entry) for entry in expected]
    assert len(entries) <= most_chunks(sum(lengths), len(lengths))


def test_what_does_not_fit_is_refused() -> None:
    """Rows, gates, states and rings."""
    of, (rows, gates) = layer(1), drawn_rows(1, seed=0)
    plan = plan_spans([RowSpan(0, 1, 0)], CPU)
    halves = DeltaState(of.state.matrices.half(), of.state.tails)
    for wrong in (
        (rows[:, 1:], gates, of.weights, EPS, of.state, plan),
        (rows, gates[:, 1:], of.weights, EPS, of.state, plan),
        (rows, gates, of.weights._replace(conv=of.weights.conv[1:]), EPS, of.state, plan),
        (rows, gates, of.weights._replace(norm=of.weights.norm[1:]), EPS, of.state, plan),
        (rows, gates, of.weights, EPS, halves, plan),
    ):
        with pytest.raises(ValueError, match=r"rows|state|norm"):
            mix(*wrong)
    two = plan_verified([RowSpan(0, 1, 0, 0)] * 2, CPU)
    with pytest.raises(ValueError, match="verified"):
        verify(rows, gates, of.weights, EPS, of.state, of.ring, two, plan)
