"""A full engine that takes no steps any more, and one that is merely full for long."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.effects import Effects, Notice, Probe
from gateway.routing.fleet_state import FleetState
from gateway.routing.worker import STUCK_AFTER_S, STUCK_STEPS
from gateway.telemetry.fleet_events import FleetEvent, HealthProbeFailed
from tests.fakes.fleet import CLOUD, W1, dispatch, facts, hello, load, only, request

PROBE_S = 10.0
TICK_S = 0.2


class _Life:
    """Providers answer for a worker that is full with others' work; health probes fly and are
    late.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.fleet: FleetState = dispatch(fallback=CLOUD)
        self.fleet.tickets.ask(request(1), 0.0)
        self.late_at = 0.0
        self.probe: Probe | None = None
        self.num_late = 0
        self.told: list[FleetEvent] = []
        self._take(self.fleet.register(W1, hello("w1", facts(max_seqs=2)), 0.0))

    def hear(self, steps: int, step_ms: float, rate: float = 10_000.0) -> None:
        """The engine has all its places taken, so many steps after its start."""
        full = load(running=2, waiting=1, step_ms=step_ms, rate=rate)
        said = msgspec.structs.replace(full, steps=steps)
        self._take(self.fleet.heard(W1, said, self.now))

    def live(self, seconds: float) -> None:
        """Time passes; a health probe that gets no token is told late."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + TICK_S)
            if self.probe is not None and self.now >= self.late_at:
                serial, self.probe = self.probe.serial, None
                self.num_late += 1
                self._take(self.fleet.probe_ended("m", serial, "late", "w1", "no tokens", self.now))
            self._take(self.fleet.tick(self.now))

    def _take(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Probe):
                self.probe, self.late_at = effect, self.now + PROBE_S
            elif isinstance(effect, Notice):
                self.told.append(effect.event)

    @property
    def failed(self) -> list[FleetEvent]:
        """Failures of health probes."""
        return [event for event in self.told if isinstance(event, HealthProbeFailed)]


@pytest.mark.parametrize("step_ms", [20.0, 5000.0, 20_000.0])
@pytest.mark.parametrize("says_more", [False, True])
def test_an_engine_that_hangs_while_it_is_full_is_found_out(
    step_ms: float, says_more: bool
) -> None:
    """An engine that hangs while it is full reports a full engine for ever, or stops reporting: a
    new step shows that it moves, and a step that should long be over shows that it does not.
    """
    life = _Life()
    for steps in range(1, 4):
        life.hear(steps, step_ms)
        life.live(1.0)
    for _ in range(30):
        if says_more:
            life.hear(3, step_ms)
        life.live(0.1)
    life.live(max(STUCK_AFTER_S, STUCK_STEPS * step_ms / 1e3))
    assert not life.failed
    life.live(2 * PROBE_S)
    assert set(life.failed) == {HealthProbeFailed("m", "w1", "no tokens")}


@given(st.lists(st.sampled_from((0.1, 1.0, 4.0, 9.0, 25.0)), min_size=6, max_size=8))
def test_an_engine_that_is_full_for_long_is_not_ill(steps_s: list[float]) -> None:
    """However slow it is, as long as no step takes ten times what its steps took."""
    life = _Life()
    life.hear(1, 3_000.0)
    for steps, step_s in enumerate([*steps_s, 25.0, 25.0], start=2):
        life.live(step_s)
        life.hear(steps, 3_000.0)
    assert life.num_late >= 4
    assert not life.failed


def test_an_engine_that_was_idle_for_long_is_not_stuck_when_it_fills() -> None:
    """An engine that was idle since yesterday took no step, because it had no work; its next
    counters show new steps.
    """
    life = _Life()
    life.hear(5, 20.0)
    assert life.probe is not None
    life.fleet.probe_ended("m", life.probe.serial, "busy", "", "", 0.0)
    life.now = 10 * STUCK_AFTER_S
    life.probe = only(life.fleet.tick(life.now), Probe)
    life.late_at = life.now + PROBE_S
    life.live(TICK_S)
    life.hear(6, 20.0)
    life.live(PROBE_S)
    assert life.num_late == 1
    assert not life.failed


@pytest.mark.parametrize(("step_s", "rate"), [(40.0, 0.0), (115.0, 0.0), (135.0, 30.0)])
def test_a_step_that_is_far_longer_than_others_is_no_hang(step_s: float, rate: float) -> None:
    """A slow machine decodes in 0.2 s and takes minutes for a part of a prompt; a step may compile,
    too. Its supervisor, which knows what it does, lets it.
    """
    life = _Life()
    life.hear(1, 200.0)
    life.live(5.0)
    life.hear(2, 200.0, rate)
    life.live(step_s)
    life.hear(3, 200.0, rate)
    life.live(1.0)
    assert life.num_late >= 3
    assert not life.failed
