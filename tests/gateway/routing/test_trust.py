"""Trust in a worker: what ends it, what restores it, and what its worker is told."""

from typing import Final

import hypothesis.strategies as st
import pytest
from hypothesis import given

from config import FallbackConfig
from gateway.routing.effects import (
    Assign,
    Effects,
    EndEngine,
    Notice,
    Probe,
    ProbeResult,
    UseProvider,
)
from gateway.routing.fleet_state import FleetState
from gateway.routing.trust import (
    BUSY_FAULT_S,
    BUSY_GAP_S,
    BUSY_S,
    DIFFERENT,
    HOLD_S,
    LONG_PAUSE_S,
    MOST_HOLD_S,
    PAUSE_S,
    PROBES,
    Trust,
)
from gateway.telemetry.fleet_events import HealthProbeFailed, WorkerProven, WorkerUnproven
from protocol.ids import WorkerId
from protocol.messages import Fault
from tests.fakes.fleet import W1, W2, dispatch, facts, hello, load, only, placed, request

WHY: Final = "its engine failed on a request"
CHAIN: Final = (FallbackConfig(provider="far", model="m"),)


def named(number: int) -> tuple[str, bytes]:
    return "key", bytes([number])


def unproven() -> Trust:
    trust = Trust()
    for number in range(DIFFERENT):
        trust.failed(named(number), WHY)
    assert trust.state == "unproven"
    return trust


def probed(trust: Trust, result: ProbeResult, now: float, *, moving: bool = False) -> bool:
    serial = trust.next_probe(now)
    assert serial is not None
    return trust.probe_ended(serial, result, now, is_moving=moving, is_idle=True)


def test_one_request_that_fails_for_ever_proves_nothing() -> None:
    trust = Trust()
    assert not any(trust.failed(named(number % 2), WHY) for number in range(100))
    assert trust.state == "trusted"


def test_different_requests_end_the_trust_unless_one_succeeds_between() -> None:
    trust = Trust()
    assert not trust.failed(named(0), WHY)
    assert not trust.failed(named(1), WHY)
    assert not trust.succeeded()
    assert [trust.failed(named(number), WHY) for number in range(3)] == [False, False, True]
    assert trust.why == WHY


def test_bad_probes_make_a_fault_and_a_good_one_ends_it() -> None:
    """A faulty worker is told once, and probed on with longer pauses."""
    trust = unproven()
    assert not probed(trust, "failed", 0.0)
    assert trust.next_probe(PAUSE_S / 2) is None
    assert probed(trust, "late", PAUSE_S)
    assert trust.state == "faulty"
    assert trust.next_probe(2 * PAUSE_S) is None
    assert not probed(trust, "failed", PAUSE_S + LONG_PAUSE_S)
    assert probed(trust, "passed", PAUSE_S + 2 * LONG_PAUSE_S)
    assert trust.state == "trusted"


def relapsed(trust: Trust, now: float) -> float:
    """Requests fail at `now`, and probes pass; how long it takes until the worker is trusted."""
    for number in range(DIFFERENT):
        trust.failed(named(number), WHY)
    assert trust.state == "unproven"
    return comes_back_s(trust, now, 0.25)


def comes_back_s(trust: Trust, now: float, step_s: float) -> float:
    """How long it takes from `now` until passed probes restore the trust."""
    began = now
    while trust.state != "trusted":
        if (serial := trust.next_probe(now)) is not None:
            trust.probe_ended(serial, "passed", now, is_moving=False, is_idle=True)
        now += step_s
        assert now < began + 1000.0
    return now - began


def test_a_worker_that_passes_probes_and_fails_every_request_comes_back_ever_later() -> None:
    """Each relapse without a request that got its tokens doubles the probing, up to a bound."""
    trust = Trust()
    waits = [relapsed(trust, 100.0 * number) for number in range(12)]
    assert waits[0] < PAUSE_S
    assert waits == sorted(waits)
    assert waits[2] >= 2 * HOLD_S
    assert MOST_HOLD_S <= waits[-1] < MOST_HOLD_S + 1
    assert waits[-1] == waits[-2]


def test_a_request_that_gets_its_tokens_ends_the_row_of_relapses() -> None:
    trust = Trust()
    for number in range(5):
        relapsed(trust, 100.0 * number)
    assert trust.is_suspect
    trust.succeeded()
    assert relapsed(trust, 1000.0) < PAUSE_S


def test_a_relapse_is_probed_seldom_and_a_fault_is_seen_all_the_same() -> None:
    trust = Trust()
    for number in range(8):
        relapsed(trust, 100.0 * number)
    for number in range(DIFFERENT):
        trust.failed(named(number), WHY)
    assert not probed(trust, "passed", 900.0)
    assert trust.next_probe(900.0 + LONG_PAUSE_S / 2) is None
    assert not probed(trust, "failed", 900.0 + LONG_PAUSE_S)
    assert probed(trust, "failed", 901.0 + LONG_PAUSE_S)
    assert trust.state == "faulty"


def test_a_late_probe_of_an_engine_that_works_for_others_means_nothing() -> None:
    trust = unproven()
    for number in range(5 * PROBES):
        assert not probed(trust, "late", number * 10.0, moving=True)
    assert trust.state == "unproven"


def test_a_result_of_an_old_probe_is_ignored() -> None:
    trust = unproven()
    old = trust.next_probe(0.0)
    assert old is not None
    assert trust.succeeded()
    assert not trust.probe_ended(old, "failed", 1.0, is_moving=False, is_idle=True)
    assert trust.state == "trusted"


def test_an_idle_engine_that_refuses_everything_is_unproven_then_faulty() -> None:
    trust = Trust()
    assert not trust.refused(0.0, is_idle=True)
    assert not trust.refused(BUSY_S / 2, is_idle=True)
    assert trust.refused(BUSY_S, is_idle=True)
    now = BUSY_S
    while now < BUSY_FAULT_S - 1:
        assert not probed(trust, "busy", now)
        assert trust.state == "unproven"
        now += 1.0
    assert probed(trust, "busy", BUSY_FAULT_S)
    assert trust.state == "faulty"


@pytest.mark.parametrize("gap_s", [BUSY_S, BUSY_GAP_S + 1])
def test_a_full_engine_and_rare_refusals_are_no_fault(gap_s: float) -> None:
    """Load is no failure while something runs; refusals long apart are no row of them."""
    trust = Trust()
    for number in range(100):
        assert not trust.refused(number * gap_s, is_idle=gap_s > BUSY_GAP_S)
    assert trust.state == "trusted"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("failed"), st.integers(0, 4)),
            st.tuples(st.just("succeeded"), st.just(0)),
            st.tuples(st.just("refused"), st.booleans()),
            st.tuples(st.sampled_from(["passed", "busy", "late", "failed"]), st.booleans()),
            st.tuples(st.just("rejoined"), st.just(0)),
            st.tuples(st.just("time"), st.integers(0, 10)),
        )
    )
)
def test_trust_ends_only_by_evidence_and_always_comes_back(steps: list[tuple[str, int]]) -> None:
    """Without different failures, or a row of refusals, it never ends; a good probe restores it."""
    trust, now, different, refusals = Trust(), 0.0, set[int](), 0
    for what, value in steps:
        before = trust.state
        if what == "time":
            now += value
        elif what == "failed" and before == "trusted":
            different.add(value)
            trust.failed(named(value), WHY)
        elif what == "succeeded":
            trust.succeeded()
            different.clear()
            assert trust.state == "trusted"
        elif what == "refused":
            refusals += 1
            trust.refused(now, is_idle=bool(value))
        elif what == "rejoined":
            trust.rejoined()
            assert trust.state == ("trusted" if before == "trusted" else "unproven")
        elif (serial := trust.next_probe(now)) is not None:
            result: ProbeResult = what  # type: ignore[assignment]
            trust.probe_ended(serial, result, now, is_moving=bool(value), is_idle=True)
            assert what == "passed" or trust.state != "trusted"
            different.clear()
        if before == "trusted" and trust.state != "trusted":
            assert len(different) >= DIFFERENT or refusals >= 2
            assert trust.state == "unproven"
    assert trust.is_suspect or trust.state == "trusted"
    assert comes_back_s(trust, now, LONG_PAUSE_S) <= MOST_HOLD_S + 2 * LONG_PAUSE_S
    trust.succeeded()
    assert (trust.state, trust.is_suspect) == ("trusted", False)


# In the fleet.


def ask(fleet: FleetState, ticket: int, now: float = 0.0, **more: bool) -> Effects:
    return fleet.tickets.ask(
        request(ticket, fingerprint=bytes([ticket]), cloud=more.get("cloud", True)), now
    )


def fail(fleet: FleetState, ticket: int, now: float = 0.0) -> Effects:
    """A request comes, fails on its worker and leaves."""
    only(ask(fleet, ticket, now), Assign)
    effects = fleet.tickets.failed(ticket, now, WHY)
    return effects + fleet.tickets.release(ticket, now)


def probe_of(effects: Effects) -> Probe:
    (probe,) = [one for one in effects if isinstance(one, Probe)]
    assert probe.is_of_trust
    return probe


def events(effects: Effects) -> list[object]:
    return [one.event for one in effects if isinstance(one, Notice)]


def state_of(fleet: FleetState, worker: WorkerId) -> str:
    (view,) = [one for one in fleet.workers() if one.worker_id == worker]
    return view.state


def test_a_worker_that_fails_everything_gives_way_to_the_fallback() -> None:
    """From the third request on a provider answers; the worker is probed, ended, and not before its
    next engine asked again.
    """
    fleet = dispatch((W1, facts()), fallback=CHAIN)
    fail(fleet, 1)
    fail(fleet, 2)
    effects = fail(fleet, 3)
    assert WorkerUnproven("w1", WHY) in events(effects)
    probe = probe_of(effects)
    only(ask(fleet, 4), UseProvider)
    assert state_of(fleet, W1) == "unproven"
    assert fleet.fleet.find("m").state == "down"  # type: ignore[union-attr]
    fleet.trust_probe_ended(probe, "failed", "status 500", 0.0)
    again = probe_of(fleet.tick(PAUSE_S))
    ended = fleet.trust_probe_ended(again, "failed", "status 500", PAUSE_S)
    assert EndEngine(W1, 1, WHY) in ended
    assert HealthProbeFailed("m", "w1", "status 500") in events(ended)
    fault = Fault("w1", 1, "no answers", None, kind="no_answers")
    fleet.heard(W1, fault, 1.0)
    assert state_of(fleet, W1) == "starting"
    fleet.register(W1, hello("w1", facts(), epoch=2), 2.0)
    assert state_of(fleet, W1) == "ready"


def test_a_good_probe_brings_requests_back() -> None:
    fleet = dispatch((W1, facts()))
    effects = fail(fleet, 1) + fail(fleet, 2) + fail(fleet, 3)
    waiting = ask(fleet, 4, 0.1)
    assert not [one for one in waiting if isinstance(one, Assign)]
    back = fleet.trust_probe_ended(probe_of(effects), "passed", "", 0.2)
    assert WorkerProven("w1") in events(back)
    assert placed(back) == {4: W1}


def test_the_bad_one_of_two_gets_nothing() -> None:
    fleet = dispatch((W1, facts()), (W2, facts()))
    num_failed, bad = 0, None
    for ticket in range(1, 60):
        worker = placed(ask(fleet, ticket, ticket / 10))[ticket]
        bad = bad or worker
        if worker == bad:
            num_failed += 1
            fleet.tickets.failed(ticket, ticket / 10, WHY)
            fleet.tickets.release(ticket, ticket / 10)
        else:
            fleet.tickets.release(ticket, ticket / 10, 9, is_proven=True)
    assert num_failed == DIFFERENT


def test_a_success_of_a_request_that_runs_there_restores_it() -> None:
    fleet = dispatch((W1, facts()))
    only(ask(fleet, 9), Assign)
    for ticket in (1, 2, 3):
        fail(fleet, ticket)
    assert state_of(fleet, W1) == "unproven"
    assert WorkerProven("w1") in events(fleet.tickets.proven(9, 1.0))
    assert state_of(fleet, W1) == "ready"


def test_a_worker_that_registers_anew_with_the_same_engine_stays_unproven() -> None:
    """A flapping link must not lend trust to an engine that has shown no token."""
    fleet = dispatch((W1, facts()))
    for ticket in (1, 2, 3):
        fail(fleet, ticket)
    fleet.register(W1, hello("w1", facts()), 1.0)
    assert state_of(fleet, W1) == "unproven"
    assert probe_of(fleet.tick(1.1)).worker_id == W1
    assert not fleet.is_at_rest


def test_refusals_of_an_idle_engine_end_within_seconds() -> None:
    """503 for ever is no queue: the request goes to the provider."""
    fleet = dispatch((W1, facts()), fallback=CHAIN)
    only(ask(fleet, 1), Assign)
    now, answers = 0.0, list[UseProvider]()
    while not answers:
        fleet.heard(W1, load(), now)
        effects = fleet.tickets.busy(1, now)
        answers = [one for one in effects if isinstance(one, UseProvider)]
        now += 0.25
    assert BUSY_S <= now <= BUSY_S + 1


def test_refusals_of_an_engine_that_runs_others_are_waited_for() -> None:
    fleet = dispatch((W1, facts()), fallback=CHAIN)
    only(ask(fleet, 1), Assign)
    for step in range(100):
        fleet.heard(W1, load(running=1), step / 4)
        effects = fleet.tickets.busy(1, step / 4) + fleet.tick(step / 4 + 0.1)
        assert not [one for one in effects if isinstance(one, UseProvider)]
        fleet.heard(W1, load(running=1), step / 4 + 0.2)
        if 1 not in fleet.tickets._placed:
            fleet.tick(step / 4 + 1.2)
    assert state_of(fleet, W1) == "ready"
