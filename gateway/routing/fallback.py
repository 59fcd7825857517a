"""The fallback of a model: whether its providers or its workers answer.

Owns the switch: it turns on when a request finds no worker ready, and off when enough health probes
in a row have succeeded. A health probe is a short sequence that runs on a worker, because a worker
that is registered and answers pings may still be unable to generate. During a fallback, requests
that may use providers go there, and the others use the workers that are ready. Must not know
requests, nor how a probe is run.
"""

from collections.abc import Sequence
from typing import Final

from config import ModelConfig
from gateway.routing.effects import Effect, Notice, Probe, ProbeResult
from gateway.routing.worker import Worker
from gateway.telemetry import FallbackOff, FallbackOn, HealthProbeFailed
from protocol.ids import WorkerId

PAUSE_S: Final = 0.5
"""The pause after a probe that failed."""
BUSY_PAUSE_S: Final = 0.1
"""The pause after a probe found no place, which is no failure: requests that may not use providers
have the worker's places.
"""


class Fallback:
    """The fallback of one model. Every change is published once. While `is_on` providers answer.
    `probes_needed` successes in a row end it. One probe runs at a time.
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
        # The current or last probe found no free place.
        self._is_excused = False
        self._not_before = float("-inf")
        self.is_on = False

    def configure(self, config: ModelConfig, probes_needed: int) -> None:
        """Apply a changed configuration."""
        self._config, self._num_needed = config, probes_needed

    def turn_on(self, reason: str) -> list[Effect]:
        """No worker is ready, and a request cannot wait for one."""
        if self.is_on:
            return []
        self.is_on = True
        providers = tuple(target.provider for target in self._config.fallback)
        return [Notice(FallbackOn(self._config.name, providers, reason))]

    def step(self, ready: Sequence[Worker], now: float, *, is_asleep: bool = False) -> list[Effect]:
        """Turn off if enough probes have succeeded and a worker is ready, or if none is because the
        model sleeps: its requests wait for it, and it wakes by getting tokens. If the probed worker
        is no longer ready, count from zero again.
        """
        if not self.is_on:
            return []
        if not ready and is_asleep:
            self.is_on = False
            self._restart(now)
            return [Notice(FallbackOff(self._config.name, 0))]
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
        """The next probe, if one is due. Call it after waiting requests took the free places."""
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
        """The result of the probe with the number `serial`; results of old probes are ignored. A
        late probe has failed, unless other requests had all places meanwhile: then the worker was
        busy.
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
        """The worker has served a user's request, or has failed on it. While users' requests have
        all its places no probe can run there, so they count as probes. They prove nothing about
        other ready workers: if one of those has room for a probe, that probe has to succeed.
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
        """Count from zero. Serial numbers continue, so that the result of an old probe is never
        taken for that of a later one.
        """
        self._probed = None
        self._is_excused = False
        self._num_passed = 0
        self._not_before = now
