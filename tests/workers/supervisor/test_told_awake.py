"""What gateways hear while a worker wakes, and what they do then.

Owns the order of its messages. Must not know how an engine sleeps: `test_sleeper.py` does.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

from config import FallbackConfig, ModelConfig
from gateway.routing.effects import Assign, Effects, UseProvider
from gateway.routing.fleet_state import FleetState
from protocol.messages import Fault, FromWorker, Load, Progress, Register, Residency
from tests.fakes.fleet import W1, only, request
from tests.fakes.sleeping_worker import WAY, world


@pytest.mark.parametrize("way", [WAY, ""], ids=["in its process", "by its end"])
async def test_requests_that_wait_for_a_wake_are_not_sent_to_a_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A gateway never sees the worker awake without its engine: that would be an outage."""
    chain = (FallbackConfig(provider="p", model="m"),)
    model = ModelConfig(name="m", residency="on-demand", fallback=chain)
    async with world(tmp_path, monkeypatch, sleep_way=way) as one:
        for number in range(1, 3):
            fleet = FleetState((model,), max_queue=None, resume_wait_s=60.0)
            await one.sleep()
            _hears(fleet, one.relay.greeting())
            assert fleet.tickets.ask(request(number), 0.0) == ()
            one.said.clear()
            await one.wake()
            effects = _hears(fleet, one.said)
            assert [each for each in effects if isinstance(each, UseProvider)] == []
            assert only(effects, Assign).ticket == number
            assert not fleet.models()[0].is_fallback_on


def _hears(fleet: FleetState, said: Iterable[FromWorker]) -> Effects:
    """What a gateway does at these messages of the worker."""
    effects: Effects = ()
    for each in said:
        if isinstance(each, Register):
            effects += fleet.register(W1, each, 0.0)
        elif isinstance(each, Residency | Progress | Load | Fault):
            effects += fleet.heard(W1, each, 0.0)
    return effects
