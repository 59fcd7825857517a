"""A reload of models and limits while requests wait and run."""

import msgspec

from config import FallbackConfig, GatewayConfig, ModelConfig
from gateway.routing.effects import Assign, Effects, Refuse, UseProvider
from gateway.routing.fleet_state import FleetState
from tests.fakes.fleet import CLOUD, W1, W2, dispatch, facts, hello, only, placed, request

GATEWAY = GatewayConfig(max_queue=8, resume_wait_s=100.0, rejoin_wait_s=0.0)


def _reload(fleet: FleetState, *models: ModelConfig, now: float = 1.0, **keys: float) -> Effects:
    assert fleet.refusal_of(models) is None
    fleet.reconfigure(msgspec.structs.replace(GATEWAY, **keys), models, now)
    return fleet.tick(now)


def test_a_new_chain_serves_who_waits_for_a_start() -> None:
    """The request waited for a worker that starts; the provider that the file names now has it."""
    fleet = dispatch()
    fleet.register(W1, hello("w1"), 0.0)
    assert not fleet.tickets.ask(request(1), 0.0)
    effects = _reload(fleet, ModelConfig(name="m", fallback=CLOUD))
    assert only(effects, UseProvider).chain == CLOUD


def test_running_requests_stay_and_a_changed_chain_counts_for_the_next() -> None:
    """Nothing is moved by a reload."""
    fleet = dispatch(fallback=CLOUD)
    fleet.register(W1, hello("w1", facts(max_seqs=1)), 0.0)
    assert placed(fleet.tickets.ask(request(1), 0.0)) == {1: W1}
    other = (FallbackConfig(provider="other", model="big"),)
    assert not _reload(fleet, ModelConfig(name="m", fallback=other))
    assert fleet.lost(W1, 2.0)
    assert only(fleet.tickets.ask(request(2), 2.0), UseProvider).chain == other
    assert fleet.tickets.num_placed == 0


def test_names_come_and_go() -> None:
    """A new alias answers; one that is gone does not; a model of a worker stays without a table."""
    fleet = dispatch()
    fleet.register(W1, hello("w1", facts()), 0.0)
    _reload(fleet, ModelConfig(name="m", aliases=("fast",)), ModelConfig(name="n"))
    assert [fleet.fleet.find(name) is not None for name in ("fast", "n", "m")] == [True] * 3
    _reload(fleet, ModelConfig(name="other"))
    assert [fleet.fleet.find(name) is not None for name in ("fast", "n")] == [False] * 2
    view = fleet.fleet.find("m")
    assert view is not None
    assert view.state == "ready"
    assert [model.name for model in fleet.models()] == ["other", "m"]
    _reload(fleet, ModelConfig(name="m", owned_by="us"))
    assert [(model.name, model.owned_by) for model in fleet.models()] == [("m", "us")]


def test_a_request_for_a_new_model_waits_for_its_worker() -> None:
    """The reload that names the model also starts its worker, which dials in a second later. One
    that does not come is no worker: the request is refused then, and the next at once.
    """
    fleet = dispatch()
    fleet.register(W1, hello("w1", facts()), 0.0)
    _reload(fleet, ModelConfig(name="m"), ModelConfig(name="n"), rejoin_wait_s=15.0)
    assert not fleet.tickets.ask(request(1, model="n"), 2.0)
    fleet.register(W2, hello("w2", facts(), models=("n",)), 3.0)
    assert fleet.tickets.num_placed == 1
    _reload(fleet, ModelConfig(name="m"), ModelConfig(name="o"), now=4.0, rejoin_wait_s=15.0)
    assert not fleet.tickets.ask(request(2, model="o"), 5.0)
    assert not any(isinstance(effect, Refuse) for effect in fleet.tick(18.0))
    assert only(fleet.tick(20.0), Refuse).error.status == 503
    assert only(fleet.tickets.ask(request(3, model="o"), 21.0), Refuse).error.status == 503


def test_a_model_that_requests_wait_for_is_kept_until_they_are_answered() -> None:
    """A model whose table is gone is kept while requests wait for it; the worker that comes serves
    them.
    """
    fleet = dispatch()
    fleet.register(W1, hello("w1"), 0.0)
    assert not fleet.tickets.ask(request(1), 0.0)
    assert not _reload(fleet, ModelConfig(name="other"))
    assert placed(fleet.register(W1, hello("w1", facts()), 2.0)) == {1: W1}
    fleet.tickets.release(1, 3.0)


def test_a_longer_queue_takes_more() -> None:
    """The limit of the file counts for the next request."""
    fleet = dispatch(max_queue=0)
    fleet.register(W1, hello("w1", facts(max_seqs=1)), 0.0)
    assert placed(fleet.tickets.ask(request(1), 0.0))
    assert only(fleet.tickets.ask(request(2), 0.0), Refuse)
    _reload(fleet, ModelConfig(name="m"), max_queue=1)
    assert not fleet.tickets.ask(request(3), 1.0)
    assert only(fleet.tickets.release(1, 2.0), Assign).ticket == 3


def test_an_alias_cannot_hide_the_model_of_a_worker() -> None:
    """One line that says what to do; nothing has changed by asking."""
    fleet = dispatch()
    fleet.register(W1, hello("w1", facts()), 0.0)
    fleet.register(W2, hello("w2", facts(), models=("brought",)), 0.0)
    refusal = fleet.refusal_of((ModelConfig(name="m", aliases=("brought",)),))
    assert refusal is not None
    assert "alias `brought` of model `m`" in refusal
    assert fleet.refusal_of((ModelConfig(name="n", aliases=("free",)),)) is None


def test_fewer_recovery_probes_end_a_fallback_earlier() -> None:
    """The number of the file counts from the reload on."""
    fleet = dispatch(fallback=CLOUD)
    only(fleet.tickets.ask(request(1), 0.0), UseProvider)
    fleet.register(W1, hello("w1", facts()), 1.0)
    model = ModelConfig(name="m", fallback=CLOUD)
    _reload(fleet, model, recovery_probes=1)
    assert fleet.fleet.find("m") is not None
    fleet.probe_ended("m", 1, "passed", "w1", "", 2.0)
    view = fleet.fleet.find("m")
    assert view is not None
    assert not view.is_fallback_on
