"""Which entry of the host tier goes first."""

from collections.abc import Sequence

import pytest

from protocol.hashing import root_digest
from protocol.ids import BlockDigest
from workers.scheduler.retention import NEVER, KeptChains, ReturnExpectation
from workers.scheduler.tier import EntryKind, HostTier, TierPool, TierRoom, Transferred

ROOT = root_digest("m")
SOON = ReturnExpectation(0.97, 0.5)
LATE = ReturnExpectation(0.97, 120.0)


def digests(name: str, count: int) -> list[BlockDigest]:
    return [BlockDigest(f"{name}-{index}".encode().ljust(16, b"\0")) for index in range(count)]


def store_all(tier: HostTier, now: float) -> None:
    while transfers := tier.transfers(now):
        for one in transfers:
            sums = tuple(tuple(0 for _ in copy.pages) for copy in one.copies)
            tier.over(Transferred(one.number, sums), now)


def compute(tier: HostTier, chain: Sequence[BlockDigest], first: int = 0) -> None:
    """Blocks from `first` on come into the card's cache."""
    for index in range(first, len(chain)):
        before = chain[index - 1] if index else ROOT
        tier.computed(chain[index], index, before, chain[index], is_first=index == 0)


def leave(tier: HostTier, chain: Sequence[BlockDigest]) -> None:
    """The card evicts these blocks."""
    for digest in reversed(chain):
        tier.left(EntryKind.BLOCK, digest)


def hosted(*chains: tuple[str, int], room: int = 0, num_state_pages: int = 0) -> HostTier:
    """Chains of these names and lengths, released one second after the other, on the host alone,
    which has `room` more pages.
    """
    num_pages = sum(count for _, count in chains) * (1 + num_state_pages) + room
    pool = TierPool(num_pages)
    pool.open(range(num_pages))
    tier = HostTier(TierRoom(num_pages, num_state_pages), pool)
    for second, (name, count) in enumerate(chains):
        chain = digests(name, count)
        compute(tier, chain)
        for digest in chain if num_state_pages else ():
            tier.saved(digest, 0, is_final=True)
        store_all(tier, float(second))
        tier.used(chain, name, float(second))
        for digest in chain if num_state_pages else ():
            tier.left(EntryKind.STATE, digest)
        leave(tier, chain)
    return tier


def victims(tier: HostTier, count: int, now: float) -> str:
    """The first letters of the entries that go, one after the other."""
    gone: list[str] = []
    tier.changed = lambda name, _: gone.append(chr(name.digest[0]))
    for number in range(count):
        assert tier.take_pages(1, number, now) is not None
    return "".join(gone)


def test_where_nothing_is_known_the_least_recently_used_goes_tail_first() -> None:
    tier = hosted(("a", 2), ("b", 2))
    for digest in [*digests("a", 2)[::-1], *digests("b", 2)[::-1]]:
        assert tier.has(digest)
        victims(tier, 1, 9.0)
        assert not tier.has(digest)
    assert tier.take_pages(1, 99, 9.0) is None


def test_a_conversation_that_is_over_goes_first() -> None:
    tier = hosted(("a", 2), ("b", 2))
    assert tier.retain("b", "of b", NEVER)
    assert victims(tier, 4, 9.0) == "bbaa"


def test_states_go_with_their_conversation() -> None:
    """A state before its block; each takes a page."""
    tier = hosted(("a", 1), ("b", 2), num_state_pages=1)
    assert tier.retain("b", "of b", NEVER)
    assert victims(tier, 6, 9.0) == "bbbbaa"


def test_one_that_comes_back_later_goes_before_one_that_comes_soon() -> None:
    """An entry that comes back later goes before one that comes soon, until the second has been
    away for so long that it hardly comes back.
    """
    for now, first in ((3.0, "b"), (4000.0, "a")):
        tier = hosted(("a", 1), ("b", 1))
        tier.retain("a", "of a", SOON)
        tier.retain("b", "of b", LATE)
        assert victims(tier, 1, now) == first


def test_deep_prefixes_are_dearer_than_shallow_ones() -> None:
    tier = hosted(("a", 2), ("b", 1))
    tier.pool.returns.block_size = 32_768
    for name in "ab":
        tier.retain(name, name + "!", SOON)
    assert victims(tier, 3, 11.0) == "baa"


def test_what_an_earlier_turn_left_behind_its_successor_goes_first() -> None:
    """The rest of an earlier turn is evicted before its successor's blocks, and before blocks that
    were unused for longer.
    """
    tier = hosted(("c", 1), ("a", 4), room=3)
    tier.retain("a", "talk", SOON)
    first = digests("a", 4)
    second = [*first[:2], *digests("b", 2)]
    compute(tier, second)
    store_all(tier, 2.0)
    tier.used(second, 2, 2.0)
    leave(tier, second)
    tier.retain(2, "talk", SOON)
    assert victims(tier, 4, 3.0) == "aac"


def test_a_shared_beginning_outlives_what_is_over() -> None:
    tier = hosted(("s", 2), ("c", 1), room=2)
    for second, name in ((2.0, "a"), (3.0, "b")):
        chain = [*digests("s", 2), *digests(name, 1)]
        compute(tier, chain, 0 if name == "a" else 2)
        store_all(tier, second)
        tier.used(chain, name, second)
    leave(tier, [*digests("s", 2), *digests("a", 1), *digests("b", 1)])
    tier.retain("b", "of b", NEVER)
    assert victims(tier, 3, 4.0) == "bca"


def test_what_is_over_takes_no_place_of_another() -> None:
    """A conversation that is over replaces no other entry; its blocks are stored only while pages
    are free.
    """
    tier = hosted(("a", 2), room=1)
    over = digests("b", 3)
    compute(tier, over)
    tier.used(over, "b", 5.0)
    tier.retain("b", "of b", NEVER)
    store_all(tier, 6.0)
    assert [tier.has(digest) for digest in over] == [True, False, False]
    assert all(tier.has(digest) for digest in digests("a", 2))


def test_an_unknown_name_changes_nothing() -> None:
    tier = hosted(("a", 1), ("b", 1))
    assert not tier.retain("c", "talk", NEVER)
    assert victims(tier, 2, 9.0) == "ab"


def test_what_no_tier_has_is_forgotten() -> None:
    tier = hosted(("a", 3), ("b", 1))
    tier.retain("a", "talk", SOON)
    assert victims(tier, 4, 9.0) == "baaa"
    assert not tier.pool.returns._users
    assert not tier.retain("talk", "talk", SOON)


@pytest.mark.parametrize("expected", [SOON, LATE, NEVER, ReturnExpectation(0.3, 7.0)])
def test_both_tiers_evict_in_one_order(expected: ReturnExpectation) -> None:
    """Both tiers evict the same chains with the same expectations in one order, at any time."""
    chains = [("a", 2), ("b", 3), ("c", 1), ("d", 2)]
    for now in (4.0, 30.0, 3000.0):
        tier, kept = hosted(*chains), KeptChains()
        for second, (name, count) in enumerate(chains):
            chain = digests(name, count)
            for parent in chain[:-1]:
                kept.stored_behind(parent)
            kept.keep(chain, chain, name, float(second))
        for name, its in (("b", expected), ("c", LATE)):
            assert tier.retain(name, name + "!", its)
            assert kept.retain(name, name + "!", its)
        assert victims(tier, 8, now) == "".join(chr(kept.pop(now)[0]) for _ in range(8))
