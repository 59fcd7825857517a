"""The way to providers and back, and the quarantine of requests that kill engines."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ModelConfig
from gateway.routing.effects import Assign, Effects, Notice, Probe, UseProvider
from gateway.routing.fallback import BUSY_PAUSE_S, PAUSE_S, Fallback, ProbeResult
from gateway.routing.fleet_state import FleetState
from gateway.routing.quarantine import (
    MAX_RECORDS,
    MEMORY_S,
    POISON_STRIKES,
    PROBATION_STRIKES,
    Quarantine,
)
from gateway.routing.worker import Worker
from gateway.telemetry.fleet_events import (
    BreakerClosed,
    BreakerOpen,
    EngineFault,
    FallbackOff,
    FallbackOn,
    FleetEvent,
    HealthProbeFailed,
    PoisonedRequest,
    WorkerBack,
    WorkerReady,
)
from protocol.messages import BlocksSnapshot, Fault, Load
from tests.fakes.fleet import CLOUD, W1, W2, dispatch, facts, hello, load, only, placed, request

READY = [Worker(W1, hello("w1", facts()), 0.0), Worker(W2, hello("w2", facts()), 0.0)]
R = ("k", b"r")
ENDS = ["passed", "busy", "failed", "lost", "wait"]


def test_probes_must_come_back_in_a_row() -> None:
    """One failure starts the count again, after a pause; busy answers change nothing."""
    fallback = Fallback(ModelConfig(name="m", fallback=CLOUD), 2)
    fallback.turn_on("none is ready")
    ready = READY[:1]
    first = only(tuple(fallback.next_probe(ready, 0.0)), Probe)
    assert fallback.next_probe(ready, 0.0) == []
    fallback.probe_ended(first.serial, "passed", "", "", 0.0)
    second = only(tuple(fallback.next_probe(ready, 0.0)), Probe)
    assert fallback.probe_ended(second.serial, "failed", "w1", "late", 0.0)
    assert not fallback.probe_ended(second.serial, "failed", "w1", "late", 0.0)
    assert fallback.next_probe(ready, PAUSE_S / 2) == []
    for at in (PAUSE_S, PAUSE_S + BUSY_PAUSE_S, PAUSE_S + 2 * BUSY_PAUSE_S):
        probe = only(tuple(fallback.next_probe(ready, at)), Probe)
        fallback.probe_ended(probe.serial, "busy" if at == PAUSE_S else "passed", "", "", at)
    assert events(tuple(fallback.step(ready, 2.0))) == [FallbackOff("m", 2)]


@given(st.lists(st.tuples(st.sampled_from(ENDS), st.floats(0, 2), st.booleans()), max_size=60))
def test_a_fallback_ends_with_so_many_probes_in_a_row(
    steps: list[tuple[str, float, bool]],
) -> None:
    """A fallback ends with that many successful probes in a row and nothing else, whatever is
    reported twice or late; each change is reported once.
    """
    fallback, now, passed = Fallback(ModelConfig(name="m", fallback=CLOUD), 3), 0.0, 0
    (on,) = fallback.turn_on("none is ready")
    assert isinstance(on, Notice)
    assert fallback.turn_on("none is ready") == []
    flying: Probe | None = None
    for end, seconds, stale in steps:
        now += seconds
        ready = [] if end == "lost" else READY
        effects = fallback.step(ready, now) + fallback.next_probe(ready, now)
        if not ready:
            passed, flying = 0, None
        for effect in effects:
            if isinstance(effect, Probe):
                assert flying is None
                flying = effect
            else:
                assert isinstance(effect, Notice)
                assert isinstance(effect.event, FallbackOff)
                assert passed == 3
                assert not fallback.is_on
                return
        if flying is None or end == "wait":
            continue
        serial = flying.serial - stale
        result: ProbeResult = "passed" if end == "passed" else "busy" if end == "busy" else "failed"
        fallback.probe_ended(serial, result, "w1", "late", now)
        if not stale:
            passed = {"passed": passed + 1, "busy": passed}.get(end, 0)
            flying = None
    assert fallback.is_on


def test_a_failed_probe_is_published() -> None:
    """A worker that says it is ready and gives no tokens."""
    fleet = dispatch(fallback=CLOUD)
    assert isinstance(only(fleet.tickets.ask(request(1), 0.0), Notice).event, FallbackOn)
    probe = only(fleet.register(W1, hello("w1", facts()), 0.0), Probe)
    told = fleet.probe_ended("m", probe.serial, "failed", "w1", "no tokens", 1.0)
    assert only(told, Notice).event == HealthProbeFailed("m", "w1", "no tokens")
    assert isinstance(only(fleet.tickets.ask(request(2), 1.1), UseProvider), UseProvider)
    assert only(fleet.tick(1.0 + PAUSE_S), Probe).worker_id == W1


def fallen_back(max_seqs: int) -> tuple[FleetState, Probe]:
    """Providers answer, a worker is ready again, and the first health probe is on its way to it."""
    fleet = dispatch(fallback=CLOUD)
    fleet.tickets.ask(request(1), 0.0)
    probe = only(fleet.register(W1, hello("w1", facts(max_seqs=max_seqs)), 0.0), Probe)
    fleet.heard(W1, BlocksSnapshot(seq=0, digests=b""), 0.0)
    return fleet, probe


def events(effects: Effects) -> list[FleetEvent]:
    """What is told."""
    return [effect.event for effect in effects if isinstance(effect, Notice)]


@pytest.mark.parametrize(
    "crowded",
    [load(running=2, waiting=1), load(running=2), msgspec.structs.replace(load(), num_blocks=9)],
)
def test_a_probe_that_is_late_at_a_full_engine_has_not_failed(crowded: Load) -> None:
    """All places, or all blocks, were others' while it waited, at least for a time. It is tried
    anew, and those that came back before it still count.
    """
    fleet, probe = fallen_back(max_seqs=1)
    probe = only(fleet.probe_ended("m", probe.serial, "passed", "", "", 0.1), Probe)
    fleet.heard(W1, crowded, 0.2)
    fleet.tick(0.3)
    fleet.heard(W1, load(), 9.0)
    assert events(fleet.probe_ended("m", probe.serial, "late", "w1", "no tokens", 10.1)) == []
    assert fleet.tick(10.1) == ()
    probe = only(fleet.tick(10.1 + BUSY_PAUSE_S), Probe)
    probe = only(fleet.probe_ended("m", probe.serial, "passed", "", "", 10.3), Probe)
    assert events(fleet.probe_ended("m", probe.serial, "passed", "", "", 10.4)) == [
        FallbackOff("m", 3)
    ]


@pytest.mark.parametrize("is_refused", [True, False])
def test_our_own_users_may_keep_a_probe_waiting_too(is_refused: bool) -> None:
    """One of them has the last place, or was refused one; no counter of the engine says so yet."""
    fleet, probe = fallen_back(max_seqs=1)
    assert placed(fleet.tickets.ask(request(2, cloud=False), 0.1)) == {2: W1}
    if is_refused:
        fleet.tickets.busy(2, 0.2)
    fleet.tick(0.3)
    fleet.tickets.release(2, 9.0)
    assert events(fleet.probe_ended("m", probe.serial, "late", "w1", "no tokens", 10.0)) == []


@pytest.mark.parametrize("num_others", [0, 1])
def test_a_probe_that_is_late_where_there_was_a_place_has_failed(num_others: int) -> None:
    """The engine's counters hold the health probe too: it is not what keeps itself waiting."""
    fleet, probe = fallen_back(max_seqs=1 + num_others)
    fleet.heard(W1, load(running=1 + num_others), 0.2)
    fleet.tick(0.3)
    told = events(fleet.probe_ended("m", probe.serial, "late", "w1", "no tokens", 10.0))
    assert told == [HealthProbeFailed("m", "w1", "no tokens")]


def test_a_probe_does_not_outlive_its_workers_registration() -> None:
    """A worker that dials in anew has nothing of it left: the next one does not wait until that one
    is late, and what is told of it then is ignored.
    """
    fleet, probe = fallen_back(max_seqs=2)
    probe = only(fleet.probe_ended("m", probe.serial, "passed", "", "", 0.1), Probe)
    again = only(fleet.register(W1, hello("w1", facts(max_seqs=2)), 0.2), Probe)
    assert fleet.probe_ended("m", probe.serial, "late", "w1", "no tokens", 10.1) == ()
    for _ in range(2):
        again = only(fleet.probe_ended("m", again.serial, "passed", "", "", 10.2), Probe)
    assert events(fleet.probe_ended("m", again.serial, "passed", "", "", 10.2)) == [
        FallbackOff("m", 3)
    ]


def test_what_crowded_one_probe_excuses_no_other() -> None:
    """A probe is excused only by what crowded it itself: the question is asked anew for each
    probe.
    """
    fleet, probe = fallen_back(max_seqs=1)
    fleet.heard(W1, load(running=2), 0.2)
    fleet.tick(0.3)
    fleet.heard(W1, load(), 0.4)
    fleet.probe_ended("m", probe.serial, "late", "w1", "no tokens", 10.0)
    probe = only(fleet.tick(11.0), Probe)
    fleet.tick(12.0)
    assert len(events(fleet.probe_ended("m", probe.serial, "late", "w1", "no tokens", 21.0))) == 1


def test_users_have_the_places_before_probes() -> None:
    """A user's request that waits gets the worker's last place; the health probe is sent when there
    is another place.
    """
    fleet = dispatch(fallback=CLOUD)
    fleet.tickets.ask(request(1), 0.0)
    fleet.register(W1, hello("w1"), 0.0)
    fleet.tickets.ask(request(2, cloud=False), 0.1)
    back = fleet.register(W1, hello("w1", facts(max_seqs=1)), 0.2)
    assert placed(back) == {2: W1}
    assert not [effect for effect in (*back, *fleet.tick(0.3)) if isinstance(effect, Probe)]
    assert only(fleet.tickets.release(2, 0.4), Probe).worker_id == W1


def test_where_users_have_all_places_they_are_the_probes() -> None:
    """Each counts once, by its first tokens or its end; one that is failed begins the count anew.
    No health probe takes a place from them, and the fallback of a worker that is never idle ends.
    """
    fleet, probe = fallen_back(max_seqs=1)
    fleet.tickets.ask(request(2, cloud=False), 0.0)
    fleet.probe_ended("m", probe.serial, "busy", "", "", 0.0)
    told: list[FleetEvent] = []
    for ticket in range(2, 10):
        now = float(ticket)
        fleet.tickets.ask(request(ticket + 1, cloud=False), now)
        if ticket in (2, 3, 7, 9):
            assert events(fleet.tickets.proven(ticket, now)) == []
        if ticket == 4:
            fleet.tickets.failed(ticket, now, "it failed")
        effects = fleet.tickets.release(ticket, now, 1, is_proven=ticket not in (4, 5))
        assert not [effect for effect in effects if isinstance(effect, Probe)]
        told += events(effects)
        if ticket < 8:
            assert told == []
    assert told == [FallbackOff("m", 3)]


def test_the_last_of_the_users_that_prove_a_worker_ends_the_fallback_at_once() -> None:
    """The last request that proves a worker ends the fallback at once, so the next request need not
    go to a provider.
    """
    fleet, probe = fallen_back(max_seqs=1)
    for _ in range(2):
        probe = only(fleet.probe_ended("m", probe.serial, "passed", "", "", 0.0), Probe)
    fleet.tickets.ask(request(2, cloud=False), 0.1)
    assert events(fleet.tickets.proven(2, 0.2)) == [FallbackOff("m", 3)]


def test_a_draining_worker_proves_nothing() -> None:
    """A draining worker takes no more work, so its answers prove nothing about the others."""
    fleet, probe = fallen_back(max_seqs=1)
    fleet.tickets.ask(request(2, cloud=False), 0.0)
    fleet.tickets.ask(request(3, cloud=False, auxiliary=True), 0.0)
    fleet.register(W2, hello("w2", facts()), 0.1)
    fleet.probe_ended("m", probe.serial, "busy", "", "", 0.1)
    fleet.tickets.busy(3, 0.1, "draining")
    probe = only(fleet.tick(1.0), Probe)
    for _ in range(2):
        probe = only(fleet.probe_ended("m", probe.serial, "passed", "", "", 1.0), Probe)
    fleet.probe_ended("m", probe.serial, "busy", "", "", 1.1)
    assert events(fleet.tickets.proven(2, 1.1)) == []
    probe = only(fleet.tick(2.0), Probe)
    assert events(fleet.probe_ended("m", probe.serial, "passed", "", "", 2.1)) == [
        FallbackOff("m", 3)
    ]


def test_users_prove_nothing_where_probes_can() -> None:
    """While there is a free place it takes health probes, which fly one by one."""
    fleet, probe = fallen_back(max_seqs=4)
    fleet.probe_ended("m", probe.serial, "busy", "", "", 0.0)
    for ticket in (2, 3, 4):
        fleet.tickets.ask(request(ticket, cloud=False), 0.0)
        assert events(fleet.tickets.proven(ticket, 0.05)) == []
    assert isinstance(only(fleet.tickets.ask(request(5), 0.2), UseProvider), UseProvider)


def test_a_long_queue_is_no_fallback() -> None:
    """A request that is sent away because all places are taken changes nothing for others."""
    fleet = dispatch((W1, facts(max_seqs=1)), fallback=CLOUD, max_queue=1)
    for ticket in (1, 2):
        fleet.tickets.ask(request(ticket), 0.0)
    assert isinstance(only(fleet.tickets.ask(request(3), 0.0), UseProvider), UseProvider)
    assert placed(fleet.tickets.release(1, 0.1)) == {2: W1}


def test_a_worker_that_was_ready_is_back() -> None:
    """A worker that was ready before is reported as back, also as another process of the same
    name.
    """
    fleet = dispatch()
    first = fleet.register(W1, hello("w1", facts()), 0.0)
    fleet.lost(W1, 1.0, "silent")
    again = fleet.register(W2, hello("w1", facts()), 2.0)
    told = [e.event for effects in (first, again) for e in effects if isinstance(e, Notice)]
    assert [type(event) for event in told] == [WorkerReady, WorkerBack]


def test_a_worker_that_fails_is_asked_last() -> None:
    """While another is there; alone it serves all the same. A proven answer closes its breaker."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    told = []
    for ticket in range(3):
        fleet.tickets.ask(request(ticket, prefer=W1, excluded=frozenset({W2})), 0.0)
        told += [
            e.event for e in fleet.tickets.failed(ticket, 0.0, "it failed") if isinstance(e, Notice)
        ]
        fleet.tickets.release(ticket, 0.0)
    assert [event for event in told if isinstance(event, BreakerOpen)] == told
    assert len(told) == 1
    assert placed(fleet.tickets.ask(request(4, prefer=W1), 1.0)) == {4: W2}
    fleet.lost(W2, 1.0)
    assert placed(fleet.tickets.ask(request(5), 1.0)) == {5: W1}
    assert only(fleet.tickets.proven(5, 2.0), Notice).event == BreakerClosed("worker", "w1")


def test_a_worker_that_was_too_busy_for_its_trial_is_tried_again() -> None:
    """A worker that was too busy for its trial is tried again as soon as it has room: the refused
    trial has proved nothing.
    """
    fleet = dispatch((W1, facts()), (W2, facts()))
    for ticket in range(3):
        fleet.tickets.ask(request(ticket, excluded=frozenset({W2})), 0.0)
        fleet.tickets.failed(ticket, 0.0, "it failed")
        fleet.tickets.release(ticket, 0.0)
    assert placed(fleet.tickets.ask(request(3, excluded=frozenset({W2})), 6.0)) == {3: W1}
    fleet.tickets.busy(3, 6.0)
    fleet.tickets.release(3, 6.0)
    fleet.heard(W1, load(), 6.1)
    assert placed(fleet.tickets.ask(request(4, prefer=W1), 6.2)) == {4: W1}


def test_a_request_that_waits_for_a_workers_trial_runs_there_when_it_ends_well() -> None:
    """A request that waits for a worker's trial runs there in the same step in which the trial ends
    well: its end frees the place and proves the worker.
    """
    fleet = dispatch((W1, facts(max_seqs=1)), (W2, facts(max_seqs=1)))
    for ticket in range(3):
        fleet.tickets.ask(request(ticket, excluded=frozenset({W2})), 0.0)
        fleet.tickets.failed(ticket, 0.0, "it failed")
        fleet.tickets.release(ticket, 0.0)
    assert placed(fleet.tickets.ask(request(3, excluded=frozenset({W2})), 6.0)) == {3: W1}
    assert placed(fleet.tickets.ask(request(4), 6.0)) == {4: W2}
    fleet.tickets.started(3, 6.5)
    assert fleet.tickets.ask(request(5), 7.0) == ()
    assert placed(fleet.tickets.release(3, 7.1, 3, is_proven=True)) == {5: W1}


def test_busy_answers_open_no_breaker() -> None:
    """However many there are."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    for ticket in range(10):
        fleet.tickets.ask(request(ticket), 0.0)
        told = [e for e in fleet.tickets.busy(ticket, 0.0) if isinstance(e, Notice)]
        assert not told
        fleet.tickets.release(ticket, 0.0)


def test_deaths_of_engines_open_the_breaker_of_their_worker() -> None:
    """Three without an answer in between."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    told = []
    for epoch in range(1, 4):
        effects = fleet.heard(W1, Fault("w1", epoch, "killed", 137, kind="killed"), 0.0)
        told += [type(e.event) for e in effects if isinstance(e, Notice)]
        fleet.register(W1, hello("w1", facts(), epoch=epoch + 1), 0.0)
    assert told == [EngineFault] * 3 + [BreakerOpen]


def struck(fleet: FleetState, fingerprint: bytes) -> bytes:
    """The fingerprint, on probation: engines died under its request as often as that takes."""
    for epoch in range(PROBATION_STRIKES):
        assert fleet.strike(("k", fingerprint), (W1, epoch), "r", "m", 0.0) == ()
    return fingerprint


def test_requests_on_probation_run_one_at_a_time_and_block_no_others() -> None:
    """One at a time until it is proven, lost or over; others pass."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    a, b, c = (struck(fleet, name) for name in (b"a", b"b", b"c"))
    assert list(placed(fleet.tickets.ask(request(1, fingerprint=a), 0.0))) == [1]
    assert fleet.tickets.ask(request(2, fingerprint=b), 0.0) == ()
    assert list(placed(fleet.tickets.ask(request(3), 0.0))) == [3]
    assert list(placed(fleet.tickets.proven(1, 0.1))) == [2]
    assert fleet.tickets.ask(request(4, fingerprint=c), 0.2) == ()
    assert [e.ticket for e in fleet.tickets.release(2, 0.3) if isinstance(e, Assign)] == [4]


def test_a_proven_request_is_cleared() -> None:
    """A request is no longer on probation after its first tokens, or after an end that proves
    it.
    """
    fleet = dispatch((W1, facts()))
    struck(fleet, b"a")
    fleet.tickets.ask(request(1, fingerprint=b"a"), 0.0)
    fleet.tickets.proven(1, 0.1)
    assert fleet.strike(("k", b"a"), (W1, 9), "r", "m", 0.0) == ()
    fleet.tickets.release(1, 0.2, 3, is_proven=True)
    struck(fleet, b"a")
    poisoned = only(fleet.strike(("k", b"a"), (W1, 9), "r", "m", 0.0), Notice).event
    assert poisoned == PoisonedRequest("r", "m", "k", POISON_STRIKES)
    assert fleet.quarantine.poison_deaths(("k", b"a"), 0.0) == POISON_STRIKES
    assert fleet.quarantine.poison_deaths(("other", b"a"), 0.0) == 0


def test_a_request_is_poison_after_so_many_deaths() -> None:
    """A request is refused after that many deaths. One death strikes its choices once, and the
    event is sent once.
    """
    quarantine = Quarantine()
    for death in range(POISON_STRIKES):
        assert quarantine.poison_deaths(R, 0.0) == 0
        assert quarantine.is_on_probation(R, 0.0) == (death >= PROBATION_STRIKES)
        last = death == POISON_STRIKES - 1
        assert quarantine.strike(R, death, 0.0) is last
        assert quarantine.strike(R, death, 0.0) is False
    assert quarantine.poison_deaths(R, MEMORY_S - 1) == POISON_STRIKES
    assert quarantine.poison_deaths(R, MEMORY_S) == 0


def test_a_cleared_request_has_no_strikes() -> None:
    """Strikes do not add up over a long life."""
    quarantine = Quarantine()
    for death in range(10):
        quarantine.strike(R, death, 0.0)
        quarantine.clear(R)
    assert quarantine.strikes(R, 0.0) == 0


def test_the_quarantine_is_bounded() -> None:
    """The oldest are forgotten."""
    quarantine = Quarantine()
    for number in range(MAX_RECORDS + 5):
        quarantine.strike(("k", str(number).encode()), 1, 0.0)
    assert quarantine.strikes(("k", b"0"), 0.0) == 0
    assert quarantine.strikes(("k", str(MAX_RECORDS + 4).encode()), 0.0) == 1
