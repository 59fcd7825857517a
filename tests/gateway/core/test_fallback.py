"""The way to providers and back, and who is suspected of killing engines."""

from hypothesis import given
from hypothesis import strategies as st

from config import ModelConfig
from gateway.core.canary import BUSY_PAUSE_S, PAUSE_S, Canaries
from gateway.core.effects import Assign, Notice, Probe, UseProvider
from gateway.core.fallback import Fallback
from gateway.core.fleet_events import (
    BreakerClosed,
    BreakerOpen,
    CanaryFailed,
    EngineFault,
    FallbackOff,
    FallbackOn,
    WorkerBack,
    WorkerReady,
)
from gateway.core.suspects import MEMORY_S, MOST, POISON_STRIKES, TRIAL_STRIKES, Suspects
from gateway.core.worker_state import Worker
from protocol.messages import Fault
from tests.fakes.fleet import CLOUD, W1, W2, dispatch, facts, hello, only, placed, request

READY = [Worker(W1, hello("w1", facts()), 0.0), Worker(W2, hello("w2", facts()), 0.0)]
ENDS = ["passed", "busy", "failed", "lost", "wait"]


def test_canaries_must_come_back_in_a_row() -> None:
    """One failure begins the count anew, after a pause; busy answers change nothing."""
    canaries = Canaries(2)
    _, first = canaries.next([W1], 0.0) or (W1, 0)
    assert canaries.next([W1], 0.0) is None
    canaries.passed(first)
    _, second = canaries.next([W1], 0.0) or (W1, 0)
    assert canaries.failed(second, 0.0)
    assert not canaries.failed(second, 0.0)
    assert canaries.next([W1], PAUSE_S / 2) is None
    for at in (PAUSE_S, PAUSE_S + BUSY_PAUSE_S, PAUSE_S + 2 * BUSY_PAUSE_S):
        found = canaries.next([W1], at)
        assert found is not None
        canaries.busy(found[1], at) if at == PAUSE_S else canaries.passed(found[1])
    assert canaries.is_enough


@given(st.lists(st.tuples(st.sampled_from(ENDS), st.floats(0, 2), st.booleans()), max_size=60))
def test_a_fallback_ends_with_so_many_canaries_in_a_row(
    steps: list[tuple[str, float, bool]],
) -> None:
    """And with nothing else, whatever is told twice or too late; each change is told once."""
    fallback, now, passed = Fallback(ModelConfig(name="m", fallback=CLOUD), 3), 0.0, 0
    (on,) = fallback.turn_on("none is ready")
    assert isinstance(on, Notice)
    assert fallback.turn_on("none is ready") == []
    flying: Probe | None = None
    for end, seconds, stale in steps:
        now += seconds
        ready = [] if end == "lost" else READY
        effects = fallback.step(ready, now)
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
        if end == "passed":
            fallback.passed(serial)
        elif end == "busy":
            fallback.busy(serial, now)
        else:
            fallback.failed(serial, "w1", "late", now)
        if not stale:
            passed = {"passed": passed + 1, "busy": passed}.get(end, 0)
            flying = None
    assert fallback.is_on


def test_a_failed_canary_is_told() -> None:
    """A worker that says it is ready and gives no tokens."""
    fleet = dispatch(fallback=CLOUD)
    assert isinstance(only(fleet.ask(request(1), 0.0), Notice).event, FallbackOn)
    probe = only(fleet.register(W1, hello("w1", facts()), 0.0), Probe)
    told = fleet.canary_failed("m", probe.serial, "w1", "no tokens", 1.0)
    assert only(told, Notice).event == CanaryFailed("m", "w1", "no tokens")
    assert isinstance(only(fleet.ask(request(2), 1.1), UseProvider), UseProvider)
    assert only(fleet.tick(1.0 + PAUSE_S), Probe).worker_id == W1


def test_a_long_queue_is_no_fallback() -> None:
    """A request that is sent away because all places are taken changes nothing for others."""
    fleet = dispatch((W1, facts(max_seqs=1)), fallback=CLOUD, max_queue=1)
    for ticket in (1, 2):
        fleet.ask(request(ticket), 0.0)
    assert isinstance(only(fleet.ask(request(3), 0.0), UseProvider), UseProvider)
    assert placed(fleet.release(1, 0.1)) == {2: W1}


def test_a_worker_that_was_ready_is_back() -> None:
    """Also as another process of the same name."""
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
        fleet.ask(request(ticket, prefer=W1, excluded=frozenset({W2})), 0.0)
        told += [e.event for e in fleet.failed(ticket, 0.0, "it failed") if isinstance(e, Notice)]
        fleet.release(ticket, 0.0)
    assert [event for event in told if isinstance(event, BreakerOpen)] == told
    assert len(told) == 1
    assert placed(fleet.ask(request(4, prefer=W1), 1.0)) == {4: W2}
    fleet.lost(W2, 1.0)
    assert placed(fleet.ask(request(5), 1.0)) == {5: W1}
    assert only(fleet.proven(5, 2.0), Notice).event == BreakerClosed("worker", "w1")


def test_who_waits_for_a_worker_on_trial_gets_it_when_its_trial_ends_well() -> None:
    """In the same step: the trial's end frees the place and proves the worker."""
    fleet = dispatch((W1, facts(max_seqs=1)), (W2, facts(max_seqs=1)))
    for ticket in range(3):
        fleet.ask(request(ticket, excluded=frozenset({W2})), 0.0)
        fleet.failed(ticket, 0.0, "it failed")
        fleet.release(ticket, 0.0)
    assert placed(fleet.ask(request(3, excluded=frozenset({W2})), 6.0)) == {3: W1}
    assert placed(fleet.ask(request(4), 6.0)) == {4: W2}
    fleet.started(3, 6.5)
    assert fleet.ask(request(5), 7.0) == ()
    assert placed(fleet.release(3, 7.1, 3, is_proven=True)) == {5: W1}


def test_busy_answers_open_no_breaker() -> None:
    """However many there are."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    for ticket in range(10):
        fleet.ask(request(ticket), 0.0)
        told = [e for e in fleet.busy(ticket, 0.0) if isinstance(e, Notice)]
        assert not told
        fleet.release(ticket, 0.0)


def test_deaths_of_engines_open_the_breaker_of_their_worker() -> None:
    """Three without an answer in between."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    told = []
    for epoch in range(1, 4):
        effects = fleet.heard(W1, Fault("w1", epoch, "killed", 137, kind="killed"), 0.0)
        told += [type(e.event) for e in effects if isinstance(e, Notice)]
        fleet.register(W1, hello("w1", facts(), epoch=epoch + 1), 0.0)
    assert told == [EngineFault] * 3 + [BreakerOpen]


def test_suspects_wait_for_each_other_and_keep_nobody_waiting() -> None:
    """One at a time until it is proven, lost or over; others pass."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    assert list(placed(fleet.ask(request(1, suspect=True), 0.0))) == [1]
    assert fleet.ask(request(2, suspect=True), 0.0) == ()
    assert list(placed(fleet.ask(request(3), 0.0))) == [3]
    assert list(placed(fleet.proven(1, 0.1))) == [2]
    assert fleet.ask(request(4, suspect=True), 0.2) == ()
    assert [e.ticket for e in fleet.release(2, 0.3) if isinstance(e, Assign)] == [4]


def test_a_request_is_poison_after_so_many_deaths() -> None:
    """Its choices are struck once for one death; the news is told once."""
    suspects = Suspects()
    for death in range(POISON_STRIKES):
        assert suspects.poison(b"r", 0.0) == 0
        assert suspects.is_on_trial(b"r", 0.0) == (death >= TRIAL_STRIKES)
        last = death == POISON_STRIKES - 1
        assert suspects.strike(b"r", death, 0.0) is last
        assert suspects.strike(b"r", death, 0.0) is False
    assert suspects.poison(b"r", MEMORY_S - 1) == POISON_STRIKES
    assert suspects.poison(b"r", MEMORY_S) == 0


def test_an_acquitted_request_is_no_suspect() -> None:
    """Strikes do not add up over a long life."""
    suspects = Suspects()
    for death in range(10):
        suspects.strike(b"r", death, 0.0)
        suspects.acquit(b"r")
    assert suspects.strikes(b"r", 0.0) == 0


def test_suspects_are_bounded() -> None:
    """The oldest are forgotten."""
    suspects = Suspects()
    for number in range(MOST + 5):
        suspects.strike(str(number).encode(), 1, 0.0)
    assert suspects.strikes(b"0", 0.0) == 0
    assert suspects.strikes(str(MOST + 4).encode(), 0.0) == 1
