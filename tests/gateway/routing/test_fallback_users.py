"""Users as health probes: of whom they are a proof, and of whom not."""

from config import ModelConfig
from gateway.routing.effects import Effects, Notice, Probe, UseProvider
from gateway.routing.fleet_state import FleetState
from gateway.telemetry.fleet_events import FallbackOff, FallbackOn, FleetEvent, HealthProbeFailed
from protocol.messages import Fault
from tests.fakes.fleet import CLOUD, W1, W2, dispatch, facts, hello, load, only, placed, request


def fallen_back(max_seqs: int) -> tuple[FleetState, Probe]:
    """Providers answer, a worker is ready again, and the first health probe is on its way to it."""
    fleet = dispatch(fallback=CLOUD)
    fleet.tickets.ask(request(1), 0.0)
    return fleet, only(fleet.register(W1, hello("w1", facts(max_seqs=max_seqs)), 0.0), Probe)


def events(effects: Effects) -> list[FleetEvent]:
    """What is told."""
    return [effect.event for effect in effects if isinstance(effect, Notice)]


def test_a_user_proves_the_engine_for_all_names_of_its_worker() -> None:
    """Where the users of one name have all places no health probe of another name can fly: its
    fallback
    would last as long as they come. Whom the engine fails they begin the count anew for all, too.
    """
    models = tuple(ModelConfig(name=name, fallback=CLOUD) for name in ("m", "other"))
    fleet = FleetState(models, max_queue=8, resume_wait_s=120.0)
    for ticket, model in enumerate(("m", "other"), start=1):
        fleet.tickets.ask(request(ticket, model=model), 0.0)
    fleet.register(W1, hello("w1", models=("m", "other")), 0.0)
    fleet.tickets.ask(request(3, cloud=False), 0.0)
    fleet.register(W1, hello("w1", facts(max_seqs=1), models=("m", "other")), 0.1)
    told: list[FleetEvent] = []
    for ticket in range(3, 8):
        fleet.tickets.ask(request(ticket + 1, cloud=False), 1.0)
        if ticket == 4:
            fleet.tickets.failed(ticket, 1.0, "it failed")
        else:
            told += events(fleet.tickets.proven(ticket, 1.0))
        assert bool(told) == (ticket == 7)
        fleet.tickets.release(ticket, 1.0)
    assert told == [FallbackOff("m", 3), FallbackOff("other", 3)]


def two_workers() -> tuple[FleetState, Probe]:
    """Two workers that are ready again: one has as many users as places, and a health probe runs at
    the other.
    """
    fleet, probe = fallen_back(max_seqs=3)
    for ticket in (2, 3, 4):
        assert placed(fleet.tickets.ask(request(ticket, cloud=False), 0.0)) == {ticket: W1}
    fleet.register(W2, hello("w2", facts(max_seqs=2)), 0.1)
    probe = only(fleet.probe_ended("m", probe.serial, "passed", "", "", 0.2), Probe)
    assert probe.worker_id == W2
    return fleet, probe


def test_users_of_one_worker_do_not_speak_for_another_that_has_not_answered() -> None:
    """Traffic would go to an engine that gives nothing."""
    fleet, probe = two_workers()
    assert [events(fleet.tickets.proven(ticket, 0.3)) for ticket in (2, 3)] == [[], []]
    told = events(fleet.probe_ended("m", probe.serial, "late", "w2", "no tokens", 10.2))
    assert told == [HealthProbeFailed("m", "w2", "no tokens")]
    assert events(fleet.tickets.proven(4, 10.3)) == []
    assert only(fleet.tick(11.0), Probe).worker_id == W2


def test_users_of_one_worker_do_where_another_has_no_place_for_probes() -> None:
    """Users of one worker count as probes where the other worker has no place for probes: it is
    busy with work of other gateways.
    """
    fleet, probe = two_workers()
    fleet.probe_ended("m", probe.serial, "busy", "", "", 0.3)
    assert events(fleet.tickets.proven(2, 0.3)) == []
    assert events(fleet.tickets.proven(3, 0.3)) == [FallbackOff("m", 3)]


def test_a_probe_that_failed_there_is_not_excused_by_what_was_before() -> None:
    """A probe that waited in the engine's queue and then failed is not excused by the crowd before
    it.
    """
    fleet, probe = two_workers()
    fleet.heard(W2, load(running=3), 0.3)
    fleet.tick(0.3)
    fleet.probe_ended("m", probe.serial, "failed", "w2", "it broke off", 0.4)
    assert [events(fleet.tickets.proven(ticket, 0.4)) for ticket in (2, 3, 4)] == [[], [], []]


def test_a_probe_whose_worker_is_gone_is_not_waited_for() -> None:
    """The next flies to another at once, and all are counted anew."""
    fleet, probe = two_workers()
    fleet.tickets.release(2, 0.3)
    probe = only(fleet.lost(W2, 0.4), Probe)
    assert probe.worker_id == W1
    for _ in range(2):
        probe = only(fleet.probe_ended("m", probe.serial, "passed", "", "", 0.5), Probe)
    assert events(fleet.probe_ended("m", probe.serial, "passed", "", "", 0.6)) == [
        FallbackOff("m", 3)
    ]


def test_a_probe_of_an_earlier_fallback_proves_nothing() -> None:
    """Users have ended that one while it was on its way."""
    fleet, stale = fallen_back(max_seqs=1)
    for ticket in (2, 3, 4):
        fleet.tickets.ask(request(ticket, cloud=False), 0.1)
        ended = events(fleet.tickets.release(ticket, 0.2, 1, is_proven=True))
    assert ended == [FallbackOff("m", 3)]
    fleet.lost(W1, 1.0)
    fleet.tickets.ask(request(5), 1.0)
    probe = only(fleet.register(W2, hello("w2", facts()), 1.0), Probe)
    assert events(fleet.probe_ended("m", stale.serial, "failed", "w1", "it broke off", 1.1)) == []
    assert fleet.probe_ended("m", stale.serial, "passed", "", "", 1.1) == ()
    for _ in range(2):
        probe = only(fleet.probe_ended("m", probe.serial, "passed", "", "", 1.2), Probe)
    assert events(fleet.probe_ended("m", probe.serial, "passed", "", "", 1.3)) == [
        FallbackOff("m", 3)
    ]


def test_a_model_that_providers_alone_serve_has_no_outage_until_a_worker_joins() -> None:
    """Each start of the gateway would alert; a worker that joined and is lost is an outage."""
    fleet = dispatch(fallback=CLOUD)
    fleet.fleet.note_workerless({"m"})
    view = fleet.fleet.find("m")
    assert view is not None
    assert (view.is_away, view.is_providers_alone) == (True, True)
    effects = fleet.tickets.ask(request(1), 0.0)
    assert only(effects, UseProvider).ticket == 1
    assert events(effects) == []
    fleet.register(W1, hello("w1", facts(max_seqs=2)), 1.0)
    assert placed(fleet.tickets.ask(request(2), 1.0)) == {2: W1}
    fleet.heard(W1, Fault("w1", 1, "gone", 1, is_final=True, kind="crash"), 2.0)
    told = events(fleet.tickets.ask(request(3), 2.0))
    assert [type(one) for one in told] == [FallbackOn]
