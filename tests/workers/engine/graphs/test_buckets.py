"""Which buckets there are for mixed steps, and what a step needs of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.graphs.buckets import (
    GraphBucket,
    buckets_of,
    graph_buckets,
    need_of,
    verify_buckets,
)
from workers.scheduler.plan import Chunk

QWEN_0_6B, QWEN_8B, QWEN_32B = 15_728_640, 192_937_984, 487_587_840
GPT_OSS = 126_100_000
"""The weights that multiply one token."""
MOST = 100_000
"""Tokens: a budget that limits nothing."""


def test_large_models_have_small_buckets() -> None:
    """Padding must not cost the card more than launching costs the host."""
    sizes = {
        size: [bucket.num_rows for bucket in graph_buckets(256, MOST, size)]
        for size in (QWEN_8B, QWEN_32B)
    }
    assert sizes == {QWEN_8B: [32, 64, 128, 128, 256, 384, 256, 256], QWEN_32B: [32, 64, 128, 128]}
    assert max(bucket.num_rows for bucket in graph_buckets(256, MOST, QWEN_0_6B)) == 1024
    assert graph_buckets(256, MOST, 10**10) == ()


def _most_rows(layer_weights: int, *, is_fp8: bool = False, is_mixture: bool = False) -> int:
    given = {"is_fp8": is_fp8, "is_mixture": is_mixture}
    found = buckets_of(256, MOST, layer_weights, **given, verifies=False, invariant_sizes=None)
    return max(bucket.num_rows for bucket in found)


def test_weights_in_8_bits_have_larger_buckets() -> None:
    """The host launches more for them, and the card multiplies them sooner."""
    assert _most_rows(QWEN_8B) == 384
    assert _most_rows(QWEN_8B, is_fp8=True) == 1024


def test_mixtures_have_larger_buckets() -> None:
    """The host launches more for them, and the card multiplies tiles that are not full."""
    assert _most_rows(GPT_OSS) == 512
    assert _most_rows(GPT_OSS, is_mixture=True) == 1024


@pytest.mark.parametrize("places", [16, 64])
def test_large_steps_are_padded_by_a_quarter(places: int) -> None:
    """Beside the places for decodes: their time is that of their rows. Small ones may have twice
    their rows.
    """
    buckets = graph_buckets(256, MOST, 1)
    for segment_rows in range(512 - places, 1024 - places + 1):
        for num_decodes in (0, places):
            need = GraphBucket(num_decodes, segment_rows, 1)
            taken = min(bucket.num_rows for bucket in buckets if bucket.holds(need))
            assert 4 * taken <= 5 * (segment_rows + places)


@pytest.mark.parametrize("max_rows", [1, 2, 8, 16, 100, 300])
def test_buckets_fit_the_batch(max_rows: int) -> None:
    """None holds more sequences of a kind than can run, and none is another one with more rows."""
    found = graph_buckets(max_rows, MOST, 1)
    assert all(
        bucket.num_decodes <= max_rows and bucket.num_segments <= max_rows for bucket in found
    )
    assert all(not a.holds(b) for b in found for a in found if a.num_rows < b.num_rows)
    assert found[0] == GraphBucket(0, 32, 1)
    assert len(set(found)) == len(found)


def test_a_small_budget_has_few_buckets() -> None:
    """A large bucket is cut to the budget; larger buckets would be captured in vain."""
    assert graph_buckets(64, 64, 1) == (
        GraphBucket(0, 32, 1),
        GraphBucket(16, 48, 16),
        GraphBucket(16, 64, 16),
        GraphBucket(64, 64, 16),
    )
    assert graph_buckets(256, 128, 1)[-1] == GraphBucket(128, 64, 16)
    assert graph_buckets(16, 368, QWEN_8B)[-1] == GraphBucket(16, 368, 16)
    assert graph_buckets(16, 369, QWEN_0_6B)[-1] == GraphBucket(16, 384, 16)
    assert graph_buckets(8, 2, 1) == (GraphBucket(0, 16, 1), GraphBucket(2, 16, 1))
    assert graph_buckets(8, 1, 1) == ()


@st.composite
def _steps(draw: st.DrawFn) -> tuple[int, int, GraphBucket]:
    """Sequences at most, tokens at most, and what a step of such an engine needs."""
    max_seqs, budget = draw(st.integers(1, 300)), draw(st.integers(2, 1100))
    num_decodes = draw(st.integers(0, min(max_seqs, budget)))
    most = min(16, max_seqs - num_decodes, (budget - num_decodes) // 2)
    num_segments = draw(st.integers(0, most))
    segment_rows = draw(st.integers(2 * num_segments, budget - num_decodes)) if num_segments else 0
    return max_seqs, budget, GraphBucket(num_decodes, segment_rows, num_segments)


@given(case=_steps())
def test_a_budget_takes_no_step_its_bucket(case: tuple[int, int, GraphBucket]) -> None:
    """A step that has a bucket where tokens are not limited has one of no more rows."""
    max_seqs, budget, need = case
    found = [bucket.num_rows for bucket in graph_buckets(max_seqs, budget, 1) if bucket.holds(need)]
    without = [bucket.num_rows for bucket in graph_buckets(max_seqs, MOST, 1) if bucket.holds(need)]
    assert bool(found) == bool(without)
    assert not found or min(found) <= min(without)


@given(max_seqs=st.integers(1, 300), budget=st.integers(2, 1100))
def test_every_bucket_serves_a_step(max_seqs: int, budget: int) -> None:
    """The smallest that holds a step serves it, and none of them is never that."""
    found = graph_buckets(max_seqs, budget, 1)
    serving = set()
    for num_decodes in range(min(max_seqs, budget) + 1):
        left = budget - num_decodes
        for segment_rows, most in {
            (min(bucket.segment_rows, left), bucket.num_segments) for bucket in found
        }:
            num_segments = min(most, max_seqs - num_decodes, segment_rows // 2)
            need = GraphBucket(num_decodes, segment_rows if num_segments else 0, num_segments)
            holding = [bucket for bucket in found if bucket.holds(need)]
            serving.update(sorted(holding, key=lambda bucket: bucket.num_rows)[:1])
    assert serving == set(found)


def test_what_chunks_need() -> None:
    """Single tokens are decodes, wherever their token comes from."""
    chunks = [Chunk(seq, 3, length, (0,), samples=True) for seq, length in enumerate((1, 5, 1, 2))]
    assert need_of(chunks) == GraphBucket(2, 7, 2)
    assert need_of(chunks[:1]) == GraphBucket(1, 0, 0)
    assert GraphBucket(2, 7, 2).num_rows == 9
    assert GraphBucket(2, 7, 2).num_sampled == 4


def _verifying(num_seqs: int, num_drafts: int, prompt: int = 0) -> GraphBucket:
    """What a step needs that verifies, beside a chunk of a prompt."""
    drafts = (7,) * num_drafts
    chunks = [Chunk(seq, 3, 1, (0,), samples=True, drafts=drafts) for seq in range(num_seqs)]
    if prompt:
        chunks.append(Chunk(num_seqs, 0, prompt, (0,), samples=True))
    return need_of(chunks, verifies=True)


def test_large_steps_that_verify_fill_their_graphs() -> None:
    """Up to where padding costs less than launches there is a graph for every step; beyond only for
    those that hardly have padding, or rows that are not sampled.
    """
    found = verify_buckets(64, 2048, QWEN_8B)
    assert found[-1].num_rows == 1024

    def rows(need: GraphBucket) -> int:
        return min([bucket.num_rows for bucket in found if bucket.holds(need)], default=0)

    assert [rows(_verifying(8, drafts)) for drafts in (0, 1, 7, 15)] == [8, 16, 64, 128]
    assert rows(_verifying(8, 1, prompt=300)) == 320
    assert [rows(_verifying(count, 15)) for count in (24, 25, 29, 30, 32, 64)] == [
        384, 0, 0, 512, 512, 1024,
    ]  # fmt: skip
    assert rows(_verifying(8, 1, prompt=496)) == 0
    small = verify_buckets(64, 2048, QWEN_0_6B)
    assert [bucket.num_rows for bucket in small if bucket.least_sampled] == [1024]
    assert [bucket.longest_segment for bucket in small[-2:]] == [1008, 128]
