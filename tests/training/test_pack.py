"""Packed rows keep every document whole and alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.pack import (
    IGNORED,
    START,
    TRAINED,
    Packer,
    Rows,
    choose_capacity,
    document,
    make_batch,
    skip_positions,
)

LENGTH = 32

documents = st.lists(
    st.lists(st.tuples(st.integers(1, 4095), st.booleans()), min_size=2, max_size=40),
    min_size=1,
    max_size=80,
)


def _pack(texts: list[list[tuple[int, bool]]]) -> tuple[list[Rows], Packer]:
    packer = Packer(LENGTH, pad_id=0)
    rows = [
        row
        for text in texts
        for row in packer.add(document([([token], trained) for token, trained in text]))
    ]
    return rows, packer


@given(documents)
def test_rows_hold_whole_documents(texts: list[list[tuple[int, bool]]]) -> None:
    """A row has its length, begins with a document, and every document in it was given."""
    rows, packer = _pack(texts)
    whole = {tuple(token for token, _ in text) for text in texts}
    for row in rows:
        assert len(row) == LENGTH
        assert row[0] & START
        for part in np.split(row, np.flatnonzero(row & START)[1:]):
            ids = tuple((part & (START - 1)).tolist())
            assert ids in whole or set(ids) == {0}
    assert packer.num_dropped == sum(len(text) > LENGTH for text in texts)


def test_a_batch_says_where_documents_begin_and_what_is_learned() -> None:
    """Positions restart with each document; targets are trained tokens, sources stand before."""
    first = document([([5, 6], False), ([7, 8], True)])
    second = document([([9], False), ([10], True), ([11], False)])
    padding = np.array([START, 0], np.uint16)
    rows = np.concatenate([first, second, padding]).reshape(1, -1)
    batch = make_batch(rows, choose_capacity(rows, 1))
    assert batch is not None
    assert batch.tokens.tolist() == [5, 6, 7, 8, 9, 10, 11, 0, 0]
    assert batch.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1]
    assert batch.bounds[:4].tolist() == [0, 4, 7, 9]
    assert set(batch.bounds[4:].tolist()) == {9}
    assert batch.targets[:3].tolist() == [7, 8, 10]
    assert batch.sources[:3].tolist() == [1, 2, 4]
    assert set(batch.targets[3:].tolist()) == {IGNORED}


def test_positions_skip_before_what_is_learned() -> None:
    """A gap keeps the order, the start at 0 and the neighbourhood of every trained token."""
    texts = [document([([1] * 20, False), ([2] * 5, True)]) for _ in range(8)]
    rows = np.concatenate(texts).reshape(1, -1)
    batch = make_batch(rows, choose_capacity(rows, 1))
    assert batch is not None
    skipped = skip_positions(batch, np.random.default_rng(0), share=0.5, most=5000)
    changed = 0
    for before, after in zip(
        batch.positions.reshape(8, 25), skipped.positions.reshape(8, 25), strict=True
    ):
        assert after[0] == 0
        steps = np.diff(after)
        assert np.count_nonzero(steps != 1) <= 1
        assert steps.min() == 1
        assert steps[19:].max() == 1
        assert after[-1] < 5000
        changed += int(after[-1] != before[-1])
    assert 0 < changed < 8
    assert skipped.bounds is batch.bounds


def test_a_batch_over_the_capacity_is_none() -> None:
    """More documents than fit are refused, not cut."""
    rows = np.full((1, 256), START | TRAINED, np.uint16)
    few = np.zeros((1, 256), np.uint16)
    assert make_batch(rows, choose_capacity(few, 1)) is None


def test_a_long_row_has_bounds_of_its_own() -> None:
    """The bounds of a long row's documents count from the row's first token; all else is as in one
    sequence.
    """
    rows = np.concatenate([document([([1, 2], True)]), document([([3, 4], True)])]).reshape(2, 2)
    long_row = np.concatenate([document([([5] * 5, False), ([6], True)]), document([([7], True)])])
    batch = make_batch(rows, choose_capacity(rows, 2), long_row)
    assert batch is not None
    assert batch.long_bounds is not None
    assert batch.tokens.tolist() == [1, 2, 3, 4, 5, 5, 5, 5, 5, 6, 7]
    assert batch.positions.tolist() == [0, 1, 0, 1, 0, 1, 2, 3, 4, 5, 0]
    assert batch.bounds[:3].tolist() == [0, 2, 4]
    assert set(batch.bounds[3:].tolist()) == {4}
    assert batch.long_bounds[:3].tolist() == [0, 6, 7]
    assert set(batch.long_bounds[3:].tolist()) == {7}
    assert [t for t in batch.targets.tolist() if t != IGNORED] == [2, 4, 6]


def test_a_long_row_of_too_many_documents_is_refused() -> None:
    """A long row of too many documents is refused, because the kernels would start programs for
    each of them.
    """
    rows = document([([1, 2], True)]).reshape(1, 2)
    long_row = np.full(64, START | 1, np.uint16)
    assert make_batch(rows, choose_capacity(rows, 1), long_row) is None


def test_the_first_token_of_a_document_is_never_predicted() -> None:
    """The first token of a document is never predicted: nothing is learned across the border of two
    documents.
    """
    row = np.concatenate([document([([1, 2], True)]), document([([3, 4], True)])]).reshape(1, -1)
    batch = make_batch(row, choose_capacity(row, 1))
    assert batch is not None
    assert [t for t in batch.targets.tolist() if t != IGNORED] == [2, 4]
