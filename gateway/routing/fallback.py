"""Whether providers or workers answer for a model.

Owns the switch between them: on when a request finds no worker ready, off when enough health probes
in a row have come back. A health probe is a short sequence that really runs through a worker: being
registered, or answering pings, proves nothing. While the switch is on, requests that may use
providers use them, and the others use the workers that are ready. Must not know requests, nor how a
probe is run.
"""

from collections.abc import Sequence
from typing import Final, Literal

from config import ModelConfig
from gateway.routing.effects import Effect, Notice, Probe
from gateway.routing.worker_view import Worker
from gateway.telemetry import FallbackOff, FallbackOn, HealthProbeFailed
from protocol.ids import WorkerId

PAUSE_S: Final = 0.5
"""After a probe that failed."""
BUSY_PAUSE_S: Final = 0.1
"""After a busy answer, which is no failure: requests that may not use providers use the worker."""

ProbeResult = Literal["passed", "busy", "late", "failed"]
"""`busy`: the worker had no room for it. `late`: it gave no token in time."""


class Fallback:
    """Of one model. Every change is published once. `is_on`: providers answer. `probes_needed` must
    come back in a row to end it. One probe is under way at a time.
    """

    __slots__ = (
        "_config",
        "_is_excused",
        "_not_before",
        "_num_needed",
        "_num_passed",
        "_probed",
        "_serial",
        "is_on",
    )

    def __init__(self, config: ModelConfig, probes_needed: int) -> None:
        self._config = config
        self._num_needed = probes_needed
        self._num_passed = 0
        self._serial = 0
        self._probed: WorkerId | None = None
        # The probe that is under way, or was last, found no free place.
        self._is_excused = False
        self._not_before = float("-inf")
        self.is_on = False

    def configure(self, config: ModelConfig, probes_needed: int) -> None:
        """Go on by a configuration that has changed."""
        self._config, self._num_needed = config, probes_needed

    def turn_on(self, reason: str) -> list[Effect]:
        """No worker is ready, and a request cannot wait for one."""
        if self.is_on:
            return []
        self.is_on = True
        providers = tuple(target.provider for target in self._config.fallback)
        return [Notice(FallbackOn(self._config.name, providers, reason))]

    def step(self, ready: Sequence[Worker], now: float) -> list[Effect]:
        """Turn off if enough probes came back and a worker is ready. A probe whose worker is no
        longer ready is forgotten, and all before it.
        """
        if not self.is_on:
            return []
        if not ready:
            self._restart(now)
            return []
        if self._num_passed >= self._num_needed:
            self.is_on = False
            self._restart(now)
            return [Notice(FallbackOff(self._config.name, self._num_needed))]
        if self._probed is not None:
            worker = next((w for w in ready if w.worker_id == self._probed), None)
            if worker is None:
                self._restart(now)
            elif worker.is_crowded and not worker.is_stuck(now):
                self._is_excused = True
        return []

    def next_probe(self, ready: Sequence[Worker], now: float) -> list[Effect]:
        """The next probe, if one is due: after waiting requests have taken the free places."""
        if not self.is_on or self._probed is not None or now < self._not_before:
            return []
        free = [worker.worker_id for worker in ready if worker.num_free_places]
        if not free or self._num_passed >= self._num_needed:
            return []
        self._serial += 1
        # In turn, so that every worker of a fleet that comes back is probed.
        self._probed = free[self._serial % len(free)]
        self._is_excused = False
        return [Probe(self._config.name, self._probed, self._serial)]

    def probe_ended(
        self, serial: int, result: ProbeResult, worker: str, reason: str, now: float
    ) -> list[Effect]:
        """What became of the probe of that number. Results of old ones are ignored. A late probe
        has failed, unless other requests had all places meanwhile: then the worker was busy.
        """
        if self._probed is None or serial != self._serial:
            return []
        if result == "passed":
            self._probed = None
            self._num_passed += 1
            return []
        if result == "busy" or (result == "late" and self._is_excused):
            self._probed = None
            self._is_excused = True
            self._not_before = now + BUSY_PAUSE_S
            return []
        self._restart(now)
        self._not_before = now + PAUSE_S
        return [Notice(HealthProbeFailed(self._config.name, worker, reason))]

    def judge_by_user(self, worker: Worker, ready: Sequence[Worker], *, is_well: bool) -> None:
        """The worker has served a request of a user, or has failed it. While such requests have all
        its places no probe is sent there, and they are the proof. They prove nothing of other ready
        workers: where there is room for a probe, it has to come back.
        """
        if not self.is_on or not worker.ready or worker.num_free_places:
            return
        if not is_well:
            self._num_passed = 0
        elif self._is_excused or not any(other.num_free_places for other in ready):
            self._num_passed += 1

    def worker_restarted(self, worker: Worker, now: float) -> None:
        """The worker has lost all that ran on it, probes included."""
        if self._probed == worker.worker_id:
            self._restart(now)

    def _restart(self, now: float) -> None:
        """Count from zero. Serial numbers go on, so that a probe that is still under way is never
        taken for a later one.
        """
        self._probed = None
        self._is_excused = False
        self._num_passed = 0
        self._not_before = now
