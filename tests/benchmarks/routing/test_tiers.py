"""Simulated caches with a host's tier, and agents that do not all fit."""

from benchmarks.routing.agents_table import AgentsCell, run_cell, table
from benchmarks.routing.tiers import LruChains, OracleChains, TieredCache
from benchmarks.routing.trace import block_name
from protocol.messages import BlocksDropped, BlocksStored

NAMES = [block_name(b"%d" % number) for number in range(8)]


def filled(cache: TieredCache, first: int, count: int) -> None:
    """A sequence computes these blocks and ends."""
    names = NAMES[first : first + count]
    cache.allocate(count)
    for index, name in enumerate(names):
        cache.store(name, names[index - 1] if index else None)
    cache.release(names, 0)


def test_what_leaves_the_card_is_found_on_the_host_and_comes_back() -> None:
    cache = TieredCache(4, 4, 512, LruChains())
    filled(cache, 0, 4)
    filled(cache, 4, 4)
    assert cache.match(NAMES[:4]) == (4, 4)
    assert cache.fetch(NAMES[:4], 1.0) > 1.0
    cache.hold(NAMES[:4])
    assert cache.num_free == 0
    assert cache.loaded == 4
    assert not [one for one in cache.take_events() if isinstance(one, BlocksDropped)]


def test_events_name_the_tier_as_an_engine_s_do() -> None:
    """Events name the tier, unless the cache stands for an engine that does not name it."""
    told = {}
    for tells in (True, False):
        cache = TieredCache(4, 4, 512, LruChains(), tells=tells)
        filled(cache, 0, 4)
        filled(cache, 4, 4)
        cache.hold(NAMES[:2])
        events = [one for one in cache.take_events() if isinstance(one, BlocksStored)]
        told[tells] = [(one.tier, len(one.digests) // 16) for one in events]
    # Four computed; each of four others pushes one out, and so do the two that come back.
    assert sum(count for tier, count in told[True] if tier == "host") == 6
    assert sum(count for tier, count in told[True] if tier == "card") == 10
    assert told[False] == [("card", 8)]


def test_a_full_host_forgets_what_left_first() -> None:
    cache = TieredCache(4, 2, 512, LruChains())
    filled(cache, 0, 4)
    filled(cache, 4, 4)
    assert cache.match(NAMES[:4]) == (2, 2)


def test_a_cache_that_sees_the_future_keeps_what_comes_next() -> None:
    kept = OracleChains({"soon": 1.0, "late": 9.0}.__getitem__)
    kept.keep(NAMES[:1], NAMES[:1], "soon", 0.0)
    kept.keep(NAMES[1:2], NAMES[1:2], "late", 0.0)
    assert kept.pop(0.0) == NAMES[1]


def test_agents_beyond_memory_need_admission_or_a_host() -> None:
    """At twice what fits, agents need admission or a host tier: the bars of the design, on a card
    of a quarter of the size.
    """
    rows = {
        (ratio, order, admission, has_host): run_cell(
            AgentsCell(ratio, order, admission, has_host, seed=2, kv_tokens=400_000)
        )
        for ratio, order, admission, has_host in (
            (2.0, "lru", "none", False),
            (2.0, "return", "programs", False),
            (2.0, "return", "queue", True),
        )
    }
    lru, card, host = rows.values()
    assert card["hit_rate"] >= 0.70 > lru["hit_rate"]
    assert host["hit_rate"] >= 0.90
    assert card["throughput_tok_s"] >= 1.5 * lru["throughput_tok_s"]
    assert 2 * card["ttft_p90_s"] <= lru["ttft_p90_s"]
    assert len(table([*rows.values()])) == 2 + len(rows)
