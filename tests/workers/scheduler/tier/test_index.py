"""The index of the region: killed at any moment, it says what is true or nothing."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.scheduler.tier import Index, PageRecord, TierLayout

LAYOUT = TierLayout.within(bytes(range(32)), 5000, 8192 + 8 * (8192 + 128))
DIGEST, PARENT, PROOF = b"d" * 16, b"p" * 16, b"x" * 32
RECORD = PageRecord(7, DIGEST, PARENT, PROOF, -5, 3, 0, 1, 1)


def _region() -> bytearray:
    return bytearray(LAYOUT.num_bytes)


def test_a_layout_fills_its_region_with_aligned_pages() -> None:
    assert (LAYOUT.page_bytes, LAYOUT.num_pages) == (8192, 8)
    assert LAYOUT.pages_at % 4096 == 0
    assert LAYOUT.num_bytes <= 8192 + 8 * (8192 + 128)
    assert TierLayout.within(bytes(32), 5000, 100).num_pages == 0


def test_a_record_outlives_whoever_wrote_it() -> None:
    region = _region()
    first = Index(memoryview(region), LAYOUT)
    assert first.is_new
    first.publish(3, RECORD)
    again = Index(memoryview(region), LAYOUT)
    assert not again.is_new
    assert list(again.records()) == [(3, RECORD)]
    again.retract(3)
    assert list(first.records()) == []
    with pytest.raises(IndexError, match="page 8 of 8"):
        first.publish(8, RECORD)


@pytest.mark.parametrize(
    "other",
    [
        LAYOUT._replace(identity=bytes(32)),
        LAYOUT._replace(page_bytes=4096),
        LAYOUT._replace(num_pages=7),
    ],
)
def test_a_region_of_another_layout_is_made_empty(other: TierLayout) -> None:
    region = _region()
    Index(memoryview(region), LAYOUT).publish(3, RECORD)
    assert list(Index(memoryview(region), other).records()) == []
    assert list(Index(memoryview(region), LAYOUT).records()) == []


def test_a_region_of_another_version_is_made_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    region = _region()
    Index(memoryview(region), LAYOUT).publish(3, RECORD)
    monkeypatch.setattr("workers.scheduler.tier.index.VERSION", 2)
    assert Index(memoryview(region), LAYOUT).is_new


@given(at=st.integers(8, 105), bit=st.integers(0, 7))
def test_a_flipped_bit_of_a_record_makes_it_unknown(at: int, bit: int) -> None:
    region = _region()
    index = Index(memoryview(region), LAYOUT)
    index.publish(0, RECORD)
    offset = 4096 + at - 8
    region[offset] ^= 1 << bit
    assert index.read(0) in (None, RECORD)  # RECORD where no byte of it was hit
    if at - 8 < 97:
        assert index.read(0) is None


class _Killed(Exception):
    """In place of the end of a process."""


class _Dying(bytearray):
    """A region whose writer is killed after `left` bytes, in the middle of a write."""

    left = 10**9

    def __setitem__(self, key: Any, value: Any) -> None:
        start, stop, _ = key.indices(len(self))
        keep = min(self.left, stop - start)
        super().__setitem__(slice(start, start + keep), bytes(value)[:keep])
        self.left -= stop - start
        if self.left < 0:
            raise _Killed


def _writing(region: _Dying, layout: TierLayout) -> Index:
    """A memoryview would write past `_Dying`."""
    return Index(region, layout)  # type: ignore[arg-type]


def test_a_kill_between_any_two_bytes_leaves_truth_or_nothing() -> None:
    """A kill between any two bytes leaves a true entry or none: in a publication over an older
    record, in a retraction, and when a foreign region is emptied.
    """
    older = RECORD._replace(generation=6, digest=b"o" * 16)
    foreign = LAYOUT._replace(identity=bytes(32))
    changes = {
        "publish": lambda region: _writing(region, LAYOUT).publish(2, RECORD),
        "retract": lambda region: _writing(region, LAYOUT).retract(2),
        "empty": lambda region: _writing(region, foreign),
    }
    for name, change in changes.items():
        for left in range(260):
            region = _Dying(LAYOUT.num_bytes)
            _writing(region, LAYOUT).publish(2, older)
            region.left = left
            with suppress(_Killed):
                change(region)
            region.left = 10**9
            layout = foreign if name == "empty" else LAYOUT
            found = [record for _, record in _writing(region, layout).records()]
            if name == "empty":
                assert found == []
            else:
                assert found in ([], [older], [RECORD])
                assert RECORD not in found or name == "publish"
