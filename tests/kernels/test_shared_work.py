"""What decodes share as items: all of it once, and each decode finds all results of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention import ExtendSegment, SharedRun
from kernels.attention.config import EXTEND_CONFIG, PrefillConfig
from kernels.attention.runs import MAX_LEVELS, num_tiles
from kernels.attention.work import prefill_work, segment_bucket

HEADS, KV = 32, 8
FEW = PrefillConfig(rows=16, tile=16, warps=4, stages=2, target=8, piece=16)
CONFIGS = st.sampled_from([EXTEND_CONFIG, EXTEND_CONFIG._replace(waves=1), FEW])


@st.composite
def _steps(draw: st.DrawFn) -> tuple[int, tuple[SharedRun, ...], tuple[ExtendSegment, ...]]:
    """Decodes, nested runs of some of them, and segments behind them."""
    num_decodes = draw(st.integers(1, 70))
    runs: list[SharedRun] = []

    def nest(first: int, end: int, begin: int, level: int) -> None:
        while first + 1 < end and level < MAX_LEVELS:
            first += draw(st.integers(0, 5))
            rows = draw(st.integers(2, 40))
            if first + rows > end:
                return
            tokens = 16 * draw(st.integers(1, 300))
            runs.append(SharedRun(first, rows, begin, begin + tokens, first))
            if draw(st.booleans()):
                nest(first, first + rows, begin + tokens, level + 1)
            first += rows

    nest(0, num_decodes, 0, 0)
    segments, row = [], num_decodes
    for length in draw(st.lists(st.integers(2, 60), max_size=3)):
        segments.append(ExtendSegment(row, length, draw(st.integers(0, 5000)), 99))
        row += length
    return num_decodes, tuple(runs), tuple(segments)


@given(_steps(), CONFIGS)
def test_every_shared_token_is_read_once(
    step: tuple[int, tuple[SharedRun, ...], tuple[ExtendSegment, ...]], config: PrefillConfig
) -> None:
    """Every shared token is read once for each decode; its results lie where the decode looks for
    them, and no others. A captured step has room for all of it.
    """
    num_decodes, runs, segments = step
    tokens = config.rows // (HEADS // KV)
    if num_tiles(runs, tokens) > num_decodes:
        return
    num_rows = sum(segment.num_rows for segment in segments)
    bucket = segment_bucket(num_rows, 3, HEADS, KV, config, num_sharing=num_decodes)
    words = np.zeros(bucket.num_words, np.int32)
    bucket.lay_out(segments, num_decodes, words, runs)
    exact = prefill_work(segments, num_decodes, HEADS, KV, config, library=False, runs=runs)
    assert exact.num_partials <= bucket.num_partials
    assert exact.shared is not None
    first_shared = len(words) - 4 * num_decodes
    assert np.array_equal(words[first_shared:].reshape(-1, 4), exact.shared)
    items = words[: 8 * bucket.num_items].reshape(-1, 8)
    assert np.array_equal(items[: len(exact.items)], exact.items)
    assert not items[len(exact.items) :].any()

    read: dict[tuple[int, int], list[int]] = {}
    written: dict[int, int] = {}
    for row, count, position, _, begin, end, slot, _ in items.tolist():
        assert 0 <= count <= tokens
        for offset in range(count):
            if slot >= 0:
                assert written.setdefault(slot + offset, row + offset) == row + offset
                assert slot + offset < bucket.num_partials
            if row < num_decodes:
                assert position >= end - 1  # seen by all rows
                places = read.setdefault((row + offset, slot + offset), [])
                places += [begin, end]
    for row, (end, first, step_slots, count) in enumerate(exact.shared.tolist()):
        ranges = [read.pop((row, first + number * step_slots)) for number in range(count)]
        reached = 0
        for begin, piece_end in ranges:
            assert begin == reached < piece_end
            reached = piece_end
        assert reached == end == max([run.end for run in runs if _has(run, row)], default=0)
    assert not read
    assert len(written) == sum(count for _, count, *_, slot, _ in items.tolist() if slot >= 0)


def _has(run: SharedRun, row: int) -> bool:
    return run.first_row <= row < run.first_row + run.num_rows


def test_a_bucket_refuses_what_it_has_no_room_for() -> None:
    """A bucket refuses more shared runs, or more decodes that share, than it has room for."""
    runs = tuple(SharedRun(0, 2, 16 * level, 16 * level + 16, 0) for level in range(9))
    bucket = segment_bucket(0, 0, HEADS, KV, FEW, num_sharing=2)
    with pytest.raises(ValueError, match="do not fit"):
        bucket.lay_out((), 2, np.zeros(bucket.num_words, np.int32), runs)
    other = segment_bucket(0, 0, HEADS, KV, FEW)
    with pytest.raises(ValueError, match="do not fit"):
        other.lay_out((), 2, np.zeros(other.num_words, np.int32), runs[:1])
