"""The pool of snapshots against a model of it: no hit is ever wrong, no slot has two owners."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.scheduler.integrity import IntegrityError
from workers.scheduler.snapshots import SnapshotPlace, SnapshotPool

SLOTS = 4
PREFIXES = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)
Prefix = tuple[int, ...]


def _digests(prefix: Prefix) -> list[bytes]:
    """One for each block, which says all that came before."""
    return [bytes(prefix[: at + 1]) for at in range(len(prefix))]


def _depths(pool: SnapshotPool, digests: list[bytes]) -> list[int]:
    """How many blocks of this prefix each of its saved snapshots covers, rising."""
    saved = set(pool.saved)
    return [at for at, digest in enumerate(digests, 1) if digest in saved]


class Pool(RuleBasedStateMachine):
    """`contents` is what was written to each slot, `saved` what may be hit."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SnapshotPool(SLOTS)
        self.contents: dict[int, bytes] = {}
        self.writing: dict[int, bytes] = {}
        self.reading: list[tuple[int, bytes]] = []
        self.gone: set[bytes] = set()

    @rule(prefix=PREFIXES, place=st.sampled_from(SnapshotPlace))
    def reserve(self, prefix: Prefix, place: SnapshotPlace) -> None:
        digests = _digests(prefix)
        slot = self.pool.reserve(digests, place)
        if slot is not None:
            assert slot not in self.writing
            assert slot not in [read for read, _ in self.reading]
            self.writing[slot] = digests[-1]
            self.contents[slot] = b"half written"
            self.gone.discard(digests[-1])

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), is_kept=st.booleans())
    def write(self, data: st.DataObject, *, is_kept: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.writing)))
        digest = self.writing.pop(slot)
        if is_kept:
            self.contents[slot] = digest
            self.pool.save(slot)
        else:
            self.pool.drop(slot)

    @rule(prefix=PREFIXES)
    def hit(self, prefix: Prefix) -> None:
        digests = _digests(prefix)
        depths, depth = _depths(self.pool, digests), self.pool.depth(digests)
        found = self.pool.hit(digests)
        assert (found.num_blocks if found else 0) == depth == max(depths, default=0)
        if found is not None:
            digest = digests[found.num_blocks - 1]
            assert self.contents[found.slot] == digest
            assert digest not in self.gone
            self.reading.append((found.slot, digest))

    @precondition(lambda self: self.reading)
    @rule()
    def finish_reading(self) -> None:
        slot, digest = self.reading.pop(0)
        assert self.contents[slot] == digest
        self.pool.unpin(slot)

    @rule(prefix=PREFIXES)
    def forget(self, prefix: Prefix) -> None:
        digest = _digests(prefix)[-1]
        self.pool.forget(digest)
        self.gone.add(digest)

    @invariant()
    def slots_add_up(self) -> None:
        busy = {*self.writing, *(slot for slot, _ in self.reading)}
        assert 0 <= len(self.pool._free) <= SLOTS - len(busy)
        assert len(self.pool.pinned) == len(busy)
        self.pool.check_integrity({*self.contents.values()} - self.gone)


TestPool = Pool.TestCase


def _saved(pool: SnapshotPool, prefix: Prefix) -> int:
    slot = pool.reserve(_digests(prefix))
    assert slot is not None
    pool.save(slot)
    return slot


def test_the_next_turn_takes_the_place_of_the_last() -> None:
    """What a longer one follows is hit only by a prompt that parts in between."""
    pool = SnapshotPool(2)
    _saved(pool, (0,) * 9)
    _saved(pool, (0,) * 10)
    _saved(pool, (1, 1))
    assert _depths(pool, _digests((0,) * 10)) == [10]
    assert _depths(pool, _digests((1, 1))) == [2]


def test_whose_turn_has_not_come_for_long_goes() -> None:
    """A hit keeps one; of equals the oldest goes."""
    pool = SnapshotPool(2)
    _saved(pool, (0, 0))
    _saved(pool, (1, 1))
    found = pool.hit(_digests((0, 0)))
    assert found is not None
    pool.unpin(found.slot)
    _saved(pool, (0, 1))
    assert _depths(pool, _digests((1, 1))) == []
    assert _depths(pool, _digests((0, 0))) == [2]


def test_a_junction_outlives_what_goes_on_behind_it() -> None:
    """Two prefixes part there, and a third will; what each has of its own is short."""
    pool = SnapshotPool(3)
    for prefix in ((0,) * 10, (*(0,) * 10, 0), (*(0,) * 10, 1)):
        _saved(pool, prefix)
    _saved(pool, (1, 1, 1, 1, 1))
    assert _depths(pool, _digests((*(0,) * 10, 0))) == [10]
    assert _depths(pool, _digests((*(0,) * 10, 1))) == [10, 11]


def test_a_state_within_a_prompt_pushes_no_end_out() -> None:
    """A state within a prompt, which is hit rarely, replaces no state at an end; in a free slot it
    is kept.
    """
    pool = SnapshotPool(2)
    _saved(pool, (0, 0))
    assert pool.reserve(_digests((1,)), SnapshotPlace.WITHIN) is not None
    full = SnapshotPool(1)
    _saved(full, (0, 0))
    assert full.reserve(_digests((1,)), SnapshotPlace.WITHIN) is None
    assert _depths(full, _digests((0, 0))) == [2]


def _answer(pool: SnapshotPool, prefix: Prefix) -> bool:
    slot = pool.reserve(_digests(prefix), SnapshotPlace.ANSWER)
    if slot is not None:
        pool.save(slot)
    return slot is not None


def test_the_state_of_an_answer_moves_on_with_it() -> None:
    """The state of an answer moves on with it. In a free slot the old one is hit until the new one
    is there; without one it goes first.
    """
    for num_slots in (2, 3):
        pool = SnapshotPool(num_slots)
        _saved(pool, (0,) * 3)
        assert _answer(pool, (0,) * 5)
        slot = pool.reserve(_digests((0,) * 7), SnapshotPlace.ANSWER)
        assert slot is not None
        assert _depths(pool, _digests((0,) * 7)) == ([3] if num_slots == 2 else [3, 5])
        pool.save(slot)
        assert _depths(pool, _digests((0,) * 7)) == [3, 7]
        assert len(pool._free) == num_slots - 2


def test_what_was_begun_with_moves_no_more() -> None:
    """The next turn is at work behind it, and its answer has a state of its own; a sequence that
    was preempted is no next turn.
    """
    for is_next in (True, False):
        pool = SnapshotPool(4)
        assert _answer(pool, (0,) * 3)
        found = pool.hit(_digests((0,) * 4), is_next=is_next)
        assert found is not None
        pool.unpin(found.slot)
        assert _answer(pool, (0,) * 6)
        assert _depths(pool, _digests((0,) * 6)) == ([3, 6] if is_next else [6])


def test_an_answer_takes_no_place_of_a_prompt() -> None:
    """An answer takes no place of a prompt until a turn begins behind it: then it is a prompt's
    end, and what it follows gives way.
    """
    pool = SnapshotPool(3)
    _saved(pool, (0,) * 3)
    assert _answer(pool, (0,) * 9)
    for number in (1, 2):
        _saved(pool, (number, 1))
    assert _depths(pool, _digests((0,) * 9)) == [3]
    assert not _answer(pool, (0,) * 9)
    begun = SnapshotPool(3)
    _saved(begun, (0,) * 3)
    assert _answer(begun, (0,) * 9)
    found = begun.hit(_digests((0,) * 9))
    assert found is not None
    begun.unpin(found.slot)
    for number in (1, 2):
        _saved(begun, (number, 1))
    assert _depths(begun, _digests((0,) * 9)) == [9]


def test_nothing_is_taken_from_those_who_read() -> None:
    """All pinned: nothing is saved, and it is no error; what is forgotten is freed when read."""
    pool = SnapshotPool(1)
    _saved(pool, (0,))
    found = pool.hit(_digests((0, 1)))
    assert found is not None
    assert pool.reserve(_digests((1,))) is None
    pool.forget(_digests((0,))[-1])
    assert (len(pool._free), pool.hit(_digests((0,)))) == (0, None)
    pool.unpin(found.slot)
    assert len(pool._free) == 1


def test_a_snapshot_without_its_block_is_a_broken_record() -> None:
    """The block manager must have said that the block is gone."""
    pool = SnapshotPool(1)
    _saved(pool, (0,))
    pool.check_integrity(_digests((0,)))
    with pytest.raises(IntegrityError, match="outlived"):
        pool.check_integrity(())
