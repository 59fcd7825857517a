"""Whether providers or workers answer for a model.

Owns the switch between them: on when a request finds no worker ready, off when health probes came
back
in a row. In between requests that may use providers go on doing so, and the others use what worker
there is. Must not know requests.
"""

from collections.abc import Sequence

from config import ModelConfig
from gateway.routing.effects import Effect, Notice, Probe
from gateway.routing.recovery_probes import RecoveryProbes
from gateway.routing.worker_view import Worker
from gateway.telemetry import FallbackOff, FallbackOn, HealthProbeFailed


class Fallback:
    """Of one model. Every change is told once. `is_on`: providers answer."""

    def __init__(self, config: ModelConfig, recovery_probes: int) -> None:
        self._config = config
        self._recovery_probes = RecoveryProbes(recovery_probes)
        self.is_on = False

    def turn_on(self, reason: str) -> list[Effect]:
        """No worker is ready, and a request cannot wait for one."""
        if self.is_on:
            return []
        self.is_on = True
        providers = tuple(target.provider for target in self._config.fallback)
        return [Notice(FallbackOn(self._config.name, providers, reason))]

    def step(self, ready: Sequence[Worker], now: float) -> list[Effect]:
        """Off if enough health probes came back and a worker is ready."""
        recovery_probes = self._recovery_probes
        if not self.is_on:
            return []
        if not ready:
            recovery_probes.begin(now)
            return []
        if recovery_probes.is_enough:
            self.is_on = False
            recovery_probes.begin(now)
            return [Notice(FallbackOff(self._config.name, recovery_probes.needed))]
        held = {w.worker_id: w.is_crowded and not w.is_stuck(now) for w in ready}
        recovery_probes.look(held, now)
        return []

    def next_probe(self, ready: Sequence[Worker], now: float) -> list[Effect]:
        """The next health probe, if one is due: after those users got their places who wait for
        one.
        """
        if not self.is_on:
            return []
        free = [worker.worker_id for worker in ready if worker.num_free_places]
        found = self._recovery_probes.next(free, now)
        return [Probe(self._config.name, *found)] if found is not None else []

    def judge_by_user(self, worker: Worker, ready: Sequence[Worker], *, is_well: bool) -> None:
        """The worker has served a user, or has failed him. While our users have all its places no
        health probe is sent there: they are what proves it. They do not speak for others of the
        ready ones: where a health probe can fly it has to come back.
        """
        if not self.is_on or not worker.ready or worker.num_free_places:
            return
        if not is_well:
            self._recovery_probes.not_served()
        elif self._recovery_probes.is_excused or not any(other.num_free_places for other in ready):
            self._recovery_probes.served()

    def began_anew(self, worker: Worker, now: float) -> None:
        """The worker has nothing left of what it had."""
        self._recovery_probes.began_anew(worker.worker_id, now)

    def passed(self, serial: int) -> None:
        """A health probe came back."""
        self._recovery_probes.passed(serial)

    def busy(self, serial: int, now: float) -> None:
        """A worker had no room for a health probe."""
        self._recovery_probes.busy(serial, now)

    def late(self, serial: int, worker: str, reason: str, now: float) -> list[Effect]:
        """A health probe is not back in time."""
        return self._told(worker, reason) if self._recovery_probes.late(serial, now) else []

    def failed(self, serial: int, worker: str, reason: str, now: float) -> list[Effect]:
        """A health probe did not come back."""
        return self._told(worker, reason) if self._recovery_probes.failed(serial, now) else []

    def _told(self, worker: str, reason: str) -> list[Effect]:
        return [Notice(HealthProbeFailed(self._config.name, worker, reason))]
