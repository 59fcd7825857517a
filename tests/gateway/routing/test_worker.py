"""One worker's places and its prefill clock."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.effects import RouteRequest
from gateway.routing.worker import PlaceReservation, Worker
from protocol.messages import Fault
from tests.fakes.fleet import BLOCK, W1, chain, facts, hello, load, request

BLOCKS = chain(("long", 250))


def _worker(max_seqs: int = 4, kv_tokens: int = 1_000_000) -> Worker:
    return Worker(W1, hello("w1", facts(max_seqs=max_seqs, kv_tokens=kv_tokens)), 0.0)


def _take(
    worker: Worker,
    asked: RouteRequest,
    now: float = 0.0,
    prefill_s: float = 1.0,
    fresh_tokens: int = 0,
) -> PlaceReservation:
    place = PlaceReservation(
        request=asked,
        session="s",
        worker=worker,
        cached_tokens=0,
        uncached_tokens=asked.prompt_tokens,
        expected_output=100,
        charged=0,
        assigned_at=now,
        prefill_s=prefill_s,
        fresh_tokens=fresh_tokens,
    )
    worker.take(place)
    return place


def test_shared_blocks_are_reserved_once() -> None:
    """A prefix that several tickets share takes its KV space once, until the last one leaves."""
    worker = _worker()
    first = _take(worker, request(1, chain(("shared", 10), ("a", 2))))
    second = _take(worker, request(2, chain(("shared", 10), ("b", 3))))
    assert worker.kv_reserved_tokens == 15 * BLOCK + 2 * (8 + 100)
    worker.drop(first, 0.0)
    assert worker.kv_reserved_tokens == 13 * BLOCK + 108
    worker.drop(second, 0.0)
    assert worker.kv_reserved_tokens == 0


def test_room_ends_at_the_sequence_cap_plus_one_auxiliary() -> None:
    """Beyond `max_seqs` one auxiliary request fits, and no second."""
    worker = _worker(max_seqs=1)
    helper = request(2, auxiliary=True)
    _take(worker, request(1))
    assert not worker.has_room(request(3), 100)
    assert worker.has_room(helper, 100)
    _take(worker, helper)
    assert not worker.has_room(request(4, auxiliary=True), 100)


def test_room_ends_at_the_kv_cap_but_an_empty_worker_takes_any() -> None:
    """Reserved prompt and expected output stay below `kv_tokens`; shared blocks are free."""
    worker = _worker(kv_tokens=500)
    prompt = chain(("shared", 20))
    assert worker.has_room(request(1, prompt), 100)
    place = _take(worker, request(1, prompt))
    assert not worker.has_room(request(2, chain(("other", 1))), 100)
    worker.drop(place, 0.0)
    _take(worker, request(3, chain(("shared", 5))))
    assert worker.has_room(request(4, chain(("shared", 5), ("x", 1))), 100)
    assert not worker.has_room(request(4, chain(("other", 6))), 100)


def test_prefills_queue_up_and_the_clock_drains_them() -> None:
    """The wait is the prefill time ahead, less the time that passed."""
    worker = _worker()
    _take(worker, request(1), now=0.0, prefill_s=2.0)
    _take(worker, request(2), now=0.5, prefill_s=1.0)
    assert worker.wait_s(0.5) == pytest.approx(2.5)
    assert worker.wait_s(9.0) == 0.0


def test_an_early_first_token_moves_everybody_up() -> None:
    """When a prefill ends before its estimate, those behind it start earlier."""
    worker = _worker()
    first = _take(worker, request(1), prefill_s=2.0)
    second = _take(worker, request(2), prefill_s=1.0)
    worker.started(first, 0.5)
    assert worker.wait_s(0.5) == pytest.approx(1.0)
    assert second.done_at == pytest.approx(1.5)
    worker.started(first, 0.6)
    assert worker.wait_s(0.5) == pytest.approx(1.0)


def test_a_ticket_that_leaves_before_its_prefill_gives_the_time_back() -> None:
    """Cancelled work is not waited for."""
    worker = _worker()
    first = _take(worker, request(1), prefill_s=2.0)
    second = _take(worker, request(2), prefill_s=3.0)
    worker.drop(second, 0.0)
    assert worker.wait_s(0.0) == pytest.approx(2.0)
    worker.drop(first, 1.0)
    assert worker.wait_s(1.0) == 0.0


def test_a_short_prompt_begins_beside_a_long_one() -> None:
    """Half of a step is for prompts that fit into it: they wait for a step, not for the prompt. The
    long one is over later by what they take.
    """
    worker = _worker()
    worker.report(load(rate=4_096.0), 0.0)  # a second a step
    long = _take(worker, request(1), prefill_s=10.0, fresh_tokens=40_960)
    assert worker.wait_s(2.0, 2_049) == pytest.approx(8.0)
    assert worker.wait_s(2.0, 2_048) == pytest.approx(1.0)
    assert (worker.has_prefill_headroom(2.0, 2_049), worker.has_prefill_headroom(2.0, 2_048)) == (
        False,
        True,
    )
    short = _take(worker, request(2), now=2.0, prefill_s=0.5, fresh_tokens=2_048)
    assert (long.done_at, short.done_at) == pytest.approx((10.5, 3.0))
    assert worker.wait_s(2.0, 2_049) == pytest.approx(8.5)
    worker.started(short, 2.9)
    assert worker.wait_s(2.9, 2_049) == pytest.approx(7.6)


def test_short_prompts_do_not_pass_a_long_one_that_waits() -> None:
    """An engine begins in order: who is behind a long prompt begins once that one has begun."""
    worker = _worker()
    worker.report(load(rate=4_096.0), 0.0)
    _take(worker, request(1), prefill_s=10.0, fresh_tokens=40_960)
    _take(worker, request(2), prefill_s=10.0, fresh_tokens=40_960)
    assert worker.wait_s(0.0, 100) == pytest.approx(11.0)
    assert not worker.has_prefill_headroom(0.0, 100)


def test_external_engines_begin_nothing_beside_a_long_prompt() -> None:
    """External engines finish the prompt that they began, and begin nothing beside a long one."""
    engine = msgspec.structs.replace(facts(), kind="external")
    worker = Worker(W1, hello("w1", engine), 0.0)
    _take(worker, request(1), prefill_s=10.0, fresh_tokens=40_960)
    assert worker.wait_s(0.0, 100) == pytest.approx(10.0)


def test_the_rate_is_learned_from_whole_spells_of_work() -> None:
    """All that was computed until nothing was left took the time since the first was sent; a
    spell in which one was cancelled tells nothing, and a new engine begins anew.
    """
    worker = _worker()
    worker.report(load(rate=1_000.0), 0.0)
    for spell in range(30):
        now, first_ticket = 10.0 * spell, 2 * spell
        pair = [_take(worker, request(first_ticket + n, BLOCKS), now) for n in (1, 2)]
        worker.started(pair[0], now + 1.0)
        worker.started(pair[1], now + 1.6)
        for place in pair:
            worker.drop(place, now + 2.0)
    assert worker.prefill_rate.seconds(0, 8_008) == pytest.approx(0.8, rel=0.1)
    known = worker.prefill_rate.seconds(0, 8_008)
    lost, kept = _take(worker, request(98), 300.0), _take(worker, request(99, BLOCKS), 300.0)
    worker.drop(lost, 309.0)
    worker.started(kept, 309.1)
    assert worker.prefill_rate.seconds(0, 8_008) == pytest.approx(known, rel=0.1)
    worker.drop(kept, 310.0)
    worker.fail(Fault("w1", 1, "killed", 137), 311.0)
    assert worker.prefill_rate.tokens_per_s == 0.0


def test_load_tells_the_sequences_of_other_gateways() -> None:
    """What the engine runs beyond our tickets is foreign; it counts as running."""
    worker = _worker()
    _take(worker, request(1))
    worker.report(load(running=3, waiting=1), 0.0)
    assert worker.num_running == 4
    worker.report(load(running=0), 0.0)
    assert worker.num_running == 1


def test_only_an_explicit_end_of_starts_is_down() -> None:
    """A fault is followed by another start unless it says otherwise."""
    worker = _worker()
    states = []
    for is_final in (False, True):
        worker.fail(Fault("w1", 1, "killed", 137, is_final=is_final), 1.0)
        states.append(worker.state)
    assert states == ["starting", "down"]
    assert "w1" in repr(worker)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.integers(0, 3), st.booleans()),
        max_size=30,
    )
)
def test_reserved_blocks_equal_the_distinct_blocks(
    steps: list[tuple[int, str, int, bool]],
) -> None:
    """Reserved KV is the number of distinct blocks whatever sequences come and go, and zero at the
    end.
    """
    worker = _worker()
    places: list[PlaceReservation] = []
    for ticket, (shared, name, own, leaves) in enumerate(steps):
        if leaves and places:
            worker.drop(places.pop(ticket % len(places)), 0.0)
        else:
            prompt = chain(("shared", shared), (name, own))
            places.append(_take(worker, request(ticket, prompt)))
        distinct = {digest for place in places for digest in place.request.digests}
        assert worker.kv_reserved_tokens == len(distinct) * BLOCK + 108 * len(places)
    for place in places:
        worker.drop(place, 0.0)
    assert worker.kv_reserved_tokens == 0
