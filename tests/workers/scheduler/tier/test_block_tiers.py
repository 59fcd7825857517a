"""What an engine says of its tiers: events, snapshots, hits, the rate of loads, evictions."""

import pytest

from protocol.messages import BlocksStored
from tests.fakes.scheduling import Engine, make_submit, split_digests
from workers.loop.heartbeat import cache_line
from workers.scheduler.tier.load_meter import LoadMeter

_MIB = 2**20


def _engine(host_pages: int) -> Engine:
    """Eight blocks of four tokens on the card."""
    return Engine(num_blocks=8, host_pages=host_pages, copies=True)


def _ask(engine: Engine, number: int, first: int, length: int = 20) -> None:
    """A prompt of its own, to its end."""
    prompt = [first + index for index in range(length)]
    engine.submit(make_submit(number, prompt, max_tokens=1))
    for _ in range(40):
        engine.step()
        if number in engine.ledger.finished:
            break
    for _ in range(4):  # what is left to store
        engine.step()


def _loading_engine() -> Engine:
    """An engine that loads a prefix from the host for sequence 2."""
    engine = _engine(host_pages=20)
    _ask(engine, 1, 100)
    engine.scheduler.blocks.clear_card()
    engine.submit(make_submit(2, [100 + index for index in range(20)], max_tokens=1))
    engine.step()
    assert engine.scheduler.blocks.tier._num_loads
    return engine


def test_events_and_snapshot_say_what_is_on_the_host_alone() -> None:
    """The ledger refuses events that contradict what was said before."""
    engine = _engine(host_pages=20)
    _ask(engine, 1, 100)
    assert (len(engine.ledger.cached), len(engine.ledger.on_host)) == (5, 0)
    _ask(engine, 2, 200, length=28)
    parked = set(engine.ledger.on_host)
    assert parked
    snapshot = engine.scheduler.snapshot()
    assert split_digests(snapshot.on_host) == parked
    assert split_digests(snapshot.digests) == engine.ledger.cached > parked
    _ask(engine, 3, 100)
    assert engine.ledger.accepted[3].cached_tokens == 16
    assert parked - engine.ledger.on_host, "what was loaded is on the card"
    assert split_digests(engine.scheduler.snapshot().on_host) == engine.ledger.on_host
    use = engine.scheduler.load(1, 0.0, 0.0).cache
    assert use is not None
    assert (use.prompt_tokens, use.hit_tokens) == (68, 16)
    assert 0 < use.loaded_tokens <= 16


def test_what_was_loaded_for_nobody_is_no_hit_of_a_prompt() -> None:
    """Blocks that were loaded for a client that left are no hit of a prompt: the share of the card
    was -80 %.
    """
    engine = _loading_engine()
    engine.ledger.hear(engine.scheduler.abort(1, (2).to_bytes(16, "little"), 0))
    while engine.scheduler.is_copying:
        engine.step()
    use = engine.scheduler.load(1, 0.0, 0.0).cache
    assert use is not None
    assert (use.hit_tokens, use.loaded_tokens) == (0, 0)
    assert "found (0% on the card, 0% on the host)" in cache_line(use)


def test_without_a_host_every_event_is_of_the_card() -> None:
    engine = Engine(num_blocks=8)
    engine.submit(make_submit(1, list(range(100, 120)), max_tokens=1))
    while 1 not in engine.ledger.finished:
        engine.step()
    assert engine.ledger.on_host == set()
    assert BlocksStored(1, b"").tier == "card"
    assert engine.scheduler.snapshot().on_host == b""


def test_what_the_last_tier_evicts_and_a_prompt_wants_again_is_counted() -> None:
    """What the last tier evicts and a prompt wants again is counted: with a host of four pages the
    first prompt is soon nowhere.
    """
    engine = _engine(host_pages=4)
    for number in range(1, 5):
        _ask(engine, number, 100 * number)
    before = engine.scheduler.load(1, 0.0, 0.0)
    assert before.evicted_blocks > 0
    assert before.recomputed_tokens == 0
    _ask(engine, 9, 100)
    after = engine.scheduler.load(1, 0.0, 0.0)
    assert 0 < after.recomputed_tokens <= 20
    assert after.recomputed_tokens % 4 == 0


@pytest.mark.parametrize("num_steps", range(1, 9))
@pytest.mark.parametrize("num_states", [None, 4])
def test_what_is_copied_while_the_cache_is_cleared_is_forgotten_behind_the_copy(
    num_steps: int, num_states: int | None
) -> None:
    """A store that ended behind the clear stood on the host afterwards, with all before it."""
    engine = Engine(num_blocks=8, host_pages=20, copies=True, num_states=num_states)
    engine.submit(make_submit(1, [100 + index for index in range(20)], max_tokens=1))
    for _ in range(num_steps):
        engine.step()
    engine.scheduler.blocks.clear()
    engine.drain()
    engine.scheduler.blocks.clear_card()
    while engine.scheduler.is_copying:
        engine.step()
    engine.ledger.hear(engine.scheduler.take_events())
    tier = engine.scheduler.blocks.tier
    assert tier is not None
    if 1 in engine.ledger.finished and num_steps > 3:
        assert tier.pool.names == []
        assert engine.ledger.cached == engine.ledger.states == set()
    _ask(engine, 2, 200)
    assert engine.ledger.accepted[2].cached_tokens == 0
    assert tier.pool.names


def test_what_is_loaded_while_the_cache_is_cleared_is_forgotten_behind_the_copy() -> None:
    """A block that is loaded while the cache is cleared is forgotten after the copy, because its
    request has it on the card.
    """
    engine = _loading_engine()
    engine.scheduler.blocks.clear()
    engine.drain()
    assert engine.ledger.accepted[2].cached_tokens == 16
    engine.scheduler.blocks.clear_card()
    while engine.scheduler.is_copying:
        engine.step()
    engine.ledger.hear(engine.scheduler.take_events())
    assert engine.ledger.cached == set()


def test_the_rate_is_that_of_the_time_with_loads() -> None:
    meter = LoadMeter()
    assert meter.bytes_per_s == 0.0
    meter.ended(5.0)
    assert meter.bytes_per_s == 0.0
    meter.began(10.0)
    meter.began(10.2)  # a second one, beside it
    meter.loaded(60 * _MIB)
    meter.loaded(40 * _MIB)
    meter.ended(10.5)
    assert meter.bytes_per_s == pytest.approx(200 * _MIB)
    meter.began(20.0)
    meter.loaded(4_000)
    meter.ended(21.0)
    assert meter.bytes_per_s == pytest.approx(200 * _MIB), "of a short load the wait counts most"
    for second in range(30, 60):
        meter.began(float(second))
        meter.loaded(100 * _MIB)
        meter.ended(second + 1.0)
    assert meter.bytes_per_s == pytest.approx(100 * _MIB, rel=0.05)


def test_the_line_of_the_status_has_hits_by_tier_and_what_evictions_cost() -> None:
    engine = _engine(host_pages=4)
    use = engine.scheduler.load(1, 0.0, 0.0).cache
    assert use is not None
    assert "%" not in cache_line(use)
    told = type(use)(
        2**30, 2**29, 2**28, 2**27, 900, 300, prompt_tokens=1000, load_bytes_per_s=2.0**34
    )
    line = cache_line(told, 1200)
    assert "900 tokens of prompts found (60% on the card, 30% on the host)" in line
    assert "loaded at 16.00 GiB/s since" in line
    assert line.endswith("1,200 computed again after evictions")
