"""Workers that take turns, as the dispatcher sees them: who waits, who is told, what is said."""

import pytest

from config import FallbackConfig, ModelConfig
from gateway.routing.change_watch import THRASHING_WAKES, ChangeWatch
from gateway.routing.effects import Assign, Demand, Notice, Refuse, UseProvider
from gateway.routing.fleet_state import FleetState
from gateway.telemetry import FallbackOff, SleepTrouble, WorkerAsleep, WorkerAwake, WorkerWaking
from protocol.messages import ASLEEP, TAKES_TURNS, Fault, Progress, Register, Residency
from tests.fakes.fleet import W1, W2, facts, hello, only, request
from workers.turns import Member, SharedCard, TurnPolicy

CLOUD = (FallbackConfig(provider="p", model="m"),)
TURNS = (TAKES_TURNS,)
SLEEPS = (TAKES_TURNS, ASLEEP)


def registered(name: str, *capabilities: str, ready: bool = False, epoch: int = 1) -> Register:
    plain = hello(name, facts() if ready else None)
    return Register(
        plain.protocol_version,
        plain.worker,
        plain.models,
        plain.build,
        plain.config_hash,
        epoch,
        plain.engine,
        capabilities,
    )


def fleet_of(**keys: object) -> FleetState:
    model = ModelConfig(name="m", residency="on-demand", **keys)  # type: ignore[arg-type]
    return FleetState((model,), max_queue=None, resume_wait_s=60.0)


def events(effects: object, kind: type) -> list[object]:
    assert isinstance(effects, tuple)
    return [one.event for one in effects if isinstance(one, Notice) and isinstance(one.event, kind)]


def test_a_request_for_a_sleeping_model_waits_and_its_worker_is_told() -> None:
    fleet = fleet_of()
    effects = fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    assert events(effects, WorkerAsleep) == [WorkerAsleep("w1", ("m",))]
    assert fleet.models()[0].state == "asleep"
    assert fleet.tickets.ask(request(1), 1.0) == ()
    demand = only(fleet.demands(1.5), Demand)
    assert (demand.worker_id, demand.waiting, demand.running) == (W1, 1, 0)
    assert (demand.waited_s, demand.oldest_s) == (0.5, 0.5)
    assert fleet.demands(1.6) == ()  # nothing has changed
    woken = fleet.heard(W1, Residency(1, "waking", 2.0), 2.0)
    assert events(woken, WorkerWaking)
    assert fleet.models()[0].state == "waking"
    fleet.heard(W1, Residency(1, "awake"), 4.0)
    ready = fleet.register(W1, registered("w1", *TURNS, ready=True), 4.0)
    assert only(ready, Assign).ticket == 1
    demand = only(fleet.demands(4.1), Demand)
    assert (demand.waiting, demand.running) == (0, 1)


def test_an_engine_that_keeps_its_process_serves_again_without_a_registration() -> None:
    fleet = fleet_of()
    fleet.register(W1, registered("w1", *TURNS, ready=True), 0.0)
    for state in ("falling asleep", "asleep"):
        fleet.heard(W1, Residency(1, state), 1.0)  # type: ignore[arg-type]
        assert fleet.tickets.ask(request(10 + len(state)), 1.0) == ()
    assert fleet.models()[0].ready_workers == 0
    fleet.heard(W1, Residency(1, "waking"), 2.0)
    effects = fleet.heard(W1, Residency(1, "awake"), 3.0)
    assert sum(isinstance(one, Assign) for one in effects) == 2
    assert events(effects, WorkerAwake) == [WorkerAwake("w1", ("m",), 1.0)]


def test_a_restart_is_no_sleep() -> None:
    """A registration between two epochs says only that the worker is not awake."""
    fleet = fleet_of()
    fleet.register(W1, registered("w1", *TURNS, ready=True), 0.0)
    fleet.heard(W1, Residency(1, "waking"), 1.0)
    again = fleet.register(W1, registered("w1", *SLEEPS, epoch=2), 1.1)
    assert not events(again, WorkerAsleep)
    assert fleet.models()[0].state == "waking"
    assert not fleet.heard(W1, Residency(2, "waking"), 1.2)
    effects = fleet.heard(W1, Residency(2, "awake"), 3.0)
    assert events(effects, WorkerAwake) == [WorkerAwake("w1", ("m",), 2.0)]


def test_asleep_is_no_outage() -> None:
    """No fallback begins, whatever `while_waking` says; only "cloud" asks providers."""
    waits = fleet_of(fallback=CLOUD)
    waits.register(W1, registered("w1", *SLEEPS), 0.0)
    assert waits.tickets.ask(request(1), 1.0) == ()
    assert not waits.models()[0].is_away
    goes = fleet_of(fallback=CLOUD, while_waking="cloud")
    goes.register(W1, registered("w1", *SLEEPS), 0.0)
    assert goes.tickets.ask(request(1), 1.0) == (UseProvider(1, CLOUD, "m is asleep"),)
    assert not goes.models()[0].is_fallback_on
    assert only(goes.demands(1.1), Demand).waiting == 1  # it wakes all the same
    assert only(goes.demands(60.0), Demand).waiting == 0


@pytest.mark.parametrize("gap_s", [2.0, 10.0, 30.0], ids=["close", "steady", "apart"])
def test_a_model_asked_again_and_again_has_its_turn_beside_a_busy_one(gap_s: float) -> None:
    """Providers answer meanwhile, so that nobody waits: the requests that went there count
    together, and the neighbour that never rests gives way as it does to requests that wait.
    """
    fleet = fleet_of(fallback=CLOUD, while_waking="cloud")
    fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    policy, card = TurnPolicy(), SharedCard(80 * 2**30)
    told = Demand(W1, 0, 0, 0.0, 0.0)
    told_at, asked_at = 0.0, 100.0
    for now in (100.0 + tick for tick in range(600)):
        if now >= asked_at:
            assert only(fleet.tickets.ask(request(int(now)), now), UseProvider)
            asked_at += gap_s
        if news := [one for one in fleet.demands(now) if isinstance(one, Demand)]:
            told, told_at = news[-1], now
        ours = Member(
            "ours",
            "asleep",
            awake_bytes=60 * 2**30,
            wake_s=30.0,
            sleep_s=5.0,
            waiting=told.waiting,
            waited_s=told.waited_s + told.waiting * (now - told_at),
            oldest_at=told_at - told.oldest_s if told.waiting else None,
        )
        busy = Member(
            "busy",
            "awake",
            awake_bytes=60 * 2**30,
            wake_s=30.0,
            sleep_s=5.0,
            running=8,
            oldest_at=now - 1.0,
        )
        if policy.decide((ours, busy), card, now).sleep:
            break
    else:
        pytest.fail("it never wakes")
    # The patience of five rounds, and at the most one request more.
    assert now <= 100.0 + 5 * 70.0 + gap_s + 1.0


def test_a_single_request_that_went_away_is_no_lasting_wish() -> None:
    """After a pause of a minute the count begins anew."""
    fleet = fleet_of(fallback=CLOUD, while_waking="cloud")
    fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    fleet.tickets.ask(request(1), 1.0)
    assert only(fleet.demands(11.0), Demand).waited_s == 10.0
    assert only(fleet.demands(17.0), Demand).waiting == 0
    fleet.tickets.ask(request(2), 50.0)
    assert only(fleet.demands(52.0), Demand).waited_s == 15.0 + 2.0
    fleet.tickets.ask(request(3), 111.0)
    demand = only(fleet.demands(112.0), Demand)
    assert (demand.waiting, demand.waited_s, demand.oldest_s) == (1, 1.0, 1.0)


def test_a_model_that_cannot_wake_is_an_outage() -> None:
    fleet = fleet_of(fallback=CLOUD)
    fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    said = fleet.heard(W1, Residency(1, "asleep", 0.0, "no room"), 1.0)
    assert events(said, SleepTrouble) == [SleepTrouble("w1", "no room")]
    assert not fleet.heard(W1, Residency(1, "asleep", 0.0, "no room"), 2.0)  # said once
    effects = fleet.tickets.ask(request(1), 3.0)
    assert only(effects, UseProvider).ticket == 1
    assert fleet.models()[0].is_fallback_on


TROUBLE = Residency(1, "asleep", 0.0, "no room")


@pytest.mark.parametrize("while_waking", ["wait", "cloud"])
def test_a_model_that_cannot_wake_is_tried_on(while_waking: str) -> None:
    """Requests that go to providers meanwhile count as waiting: without a demand nothing would try
    the wake again, and providers would answer for ever.
    """
    fleet = fleet_of(fallback=CLOUD, while_waking=while_waking)
    fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    fleet.heard(W1, TROUBLE, 1.0)
    assert only(fleet.tickets.ask(request(1), 2.0), UseProvider).ticket == 1
    assert only(fleet.demands(2.1), Demand).waiting == 1
    assert only(fleet.demands(20.0), Demand).waiting == 0


@pytest.mark.parametrize("cause", ["its supervisor was away", "trouble"])
def test_a_model_that_sleeps_is_no_outage_any_more(cause: str) -> None:
    """Requests wait for it again, so they are not sent to a provider when it wakes: they would pay
    for both, the wait and the provider.
    """
    fleet = fleet_of(fallback=CLOUD)
    if cause == "trouble":
        fleet.register(W1, registered("w1", *SLEEPS), 0.0)
        fleet.heard(W1, TROUBLE, 1.0)
    assert only(fleet.tickets.ask(request(1), 2.0), UseProvider).ticket == 1
    assert fleet.models()[0].is_fallback_on
    asleep = fleet.register(W1, registered("w1", *SLEEPS), 3.0)
    asleep += fleet.heard(W1, Residency(1, "waking"), 3.1)
    assert events(asleep, FallbackOff) == [FallbackOff("m", 0)]
    assert not fleet.models()[0].is_fallback_on
    assert fleet.tickets.ask(request(2), 4.0) == ()
    fleet.register(W1, registered("w1", *TURNS, ready=True), 5.0)
    awake = fleet.heard(W1, Residency(1, "awake"), 5.0)
    assert not [one for one in awake if isinstance(one, UseProvider)]
    assert not fleet.models()[0].queued


@pytest.mark.parametrize("why", ["trouble", "late"])
def test_a_request_that_waited_and_went_to_a_provider_still_wakes(why: str) -> None:
    fleet = fleet_of(fallback=CLOUD)
    fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    assert fleet.tickets.ask(request(1), 1.0) == ()
    assert fleet.tickets.tick(1.5) == ()
    now = 2.0 if why == "trouble" else 62.0
    away = fleet.heard(W1, TROUBLE, now) if why == "trouble" else fleet.tickets.tick(now)
    assert only(away, UseProvider).ticket == 1
    assert only(fleet.demands(now + 0.1), Demand).waiting == 1


@pytest.mark.parametrize("fallback", [(), CLOUD], ids=["alone", "cloud"])
def test_a_worker_that_has_given_up_is_not_asleep(fallback: tuple[FallbackConfig, ...]) -> None:
    """Its last word of its residency was that it wakes. Providers answer; without any the error
    says that nothing comes.
    """
    fleet = fleet_of(fallback=fallback)
    fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    fleet.heard(W1, Residency(1, "waking"), 1.0)
    assert fleet.tickets.ask(request(1), 1.0) == ()
    fault = Fault("w1", 1, "exit code 1", 1, is_final=True, kind="error")
    for number, effects in enumerate(
        (fleet.heard(W1, fault, 2.0), fleet.tickets.ask(request(2), 3.0)), start=1
    ):
        if fallback:
            assert only(effects, UseProvider).ticket == number
        else:
            assert "asleep" not in only(effects, Refuse).error.message
    assert fleet.models()[0].state == "down"


def test_a_wait_that_is_too_long_ends_with_the_forecast() -> None:
    """What is forecast is waited for in addition to the usual patience."""
    fleet = fleet_of()
    fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    fleet.heard(W1, Residency(1, "asleep", 30.0), 0.5)
    fleet.tickets.ask(request(1), 1.0)
    assert not fleet.tickets.tick(80.0)
    refused = only(fleet.tickets.tick(91.5), Refuse)
    assert refused.error.status == 503
    assert refused.error.retry_after_s == 30
    assert "asleep" in refused.error.message


def test_probes_wake_nothing() -> None:
    fleet = fleet_of()
    fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    for at in range(1, 30):
        assert all(one.waiting == 0 for one in fleet.tick(float(at)) if isinstance(one, Demand))


def test_the_demand_of_a_worker_counts_no_requests_that_another_serves() -> None:
    fleet = fleet_of()
    fleet.register(W1, registered("w1", *TURNS, ready=True), 0.0)
    fleet.register(W2, registered("w2", *SLEEPS), 0.0)
    for ticket in range(1, 20):
        fleet.tickets.ask(request(ticket), 1.0)
    demands = {one.worker_id: one for one in fleet.demands(1.0) if isinstance(one, Demand)}
    assert demands[W1].waiting
    assert demands[W1].running
    assert (demands[W2].waiting, demands[W2].running) == (0, 0)


def test_a_worker_that_registers_again_is_told_again() -> None:
    """A worker that registers again is told the demand again, because it forgets that of a lost
    link.
    """
    fleet = fleet_of()
    fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    fleet.tickets.ask(request(1), 1.0)
    fleet.demands(1.0)
    fleet.register(W1, registered("w1", *SLEEPS), 2.0)
    assert only(fleet.demands(2.1), Demand).waiting == 1


def test_the_progress_of_a_start_out_of_sleep_is_kept() -> None:
    fleet = fleet_of()
    fleet.register(W1, registered("w1", *SLEEPS, ready=True), 0.0)
    fleet.heard(W1, Residency(1, "waking", 9.0), 1.0)
    fleet.heard(W1, Progress(1, "weights", 0.5), 2.0)
    (view,) = fleet.workers()
    assert view.state == "waking"
    assert view.progress is not None
    assert view.due_s == 9.0


def test_a_wake_that_dies_is_a_fault_and_requests_wait_on() -> None:
    fleet = fleet_of()
    fleet.register(W1, registered("w1", *SLEEPS), 0.0)
    fleet.tickets.ask(request(1), 1.0)
    fleet.heard(W1, Residency(1, "waking"), 1.5)
    effects = fleet.heard(W1, Fault("w1", 1, "exit code 1", 1, kind="error"), 2.0)
    assert not [one for one in effects if isinstance(one, Refuse | UseProvider)]
    fleet.register(W1, registered("w1", *SLEEPS, epoch=2), 2.0)
    assert not fleet.tickets.tick(3.0)


@pytest.mark.parametrize(("pause_s", "is_too_much"), [(1.0, True), (100.0, False)])
def test_thrashing_is_told_once_an_hour(pause_s: float, is_too_much: bool) -> None:
    watch, now, told = ChangeWatch(), 0.0, []
    for _ in range(3 * THRASHING_WAKES):
        for is_wake in (False, True):
            watch.began(now)
            now += 5.0
            told.append(watch.ended(now, is_wake=is_wake))
            now += pause_s
    found = [one for one in told if one is not None]
    assert len(found) == int(is_too_much)
    if found:
        assert found[0] == (THRASHING_WAKES, 85)
