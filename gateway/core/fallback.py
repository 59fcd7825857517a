"""Whether providers or workers answer for a model.

Owns the switch between them: on when a request finds no worker ready, off when canaries came back
in a row. In between requests that may use providers go on doing so, and the others use what worker
there is. Must not know requests.
"""

from collections.abc import Sequence

from config import ModelConfig
from gateway.core.canary import Canaries
from gateway.core.effects import Effect, Notice, Probe
from gateway.core.fleet_events import CanaryFailed, FallbackOff, FallbackOn
from gateway.core.worker_state import Worker


class Fallback:
    """Of one model. Every change is told once. `is_on`: providers answer."""

    def __init__(self, config: ModelConfig, canaries: int) -> None:
        self._config = config
        self._canaries = Canaries(canaries)
        self.is_on = False

    def turn_on(self, reason: str) -> list[Effect]:
        """No worker is ready, and a request cannot wait for one."""
        if self.is_on:
            return []
        self.is_on = True
        providers = tuple(target.provider for target in self._config.fallback)
        return [Notice(FallbackOn(self._config.name, providers, reason))]

    def step(self, ready: Sequence[Worker], now: float) -> list[Effect]:
        """Off if enough canaries came back and a worker is ready."""
        canaries = self._canaries
        if not self.is_on:
            return []
        if not ready:
            canaries.begin(now)
            return []
        if canaries.is_enough:
            self.is_on = False
            canaries.begin(now)
            return [Notice(FallbackOff(self._config.name, canaries.needed))]
        held = {w.worker_id: w.is_crowded and not w.is_stuck(now) for w in ready}
        canaries.look(held, now)
        return []

    def next_canary(self, ready: Sequence[Worker], now: float) -> list[Effect]:
        """The next canary, if one is due: after those users got their places who wait for one."""
        if not self.is_on:
            return []
        free = [worker.worker_id for worker in ready if worker.num_free_places]
        found = self._canaries.next(free, now)
        return [Probe(self._config.name, *found)] if found is not None else []

    def judge_by_user(self, worker: Worker, ready: Sequence[Worker], *, is_well: bool) -> None:
        """The worker has served a user, or has failed him. While our users have all its places no
        canary is sent there: they are what proves it. They do not speak for others of the ready
        ones: where a canary can fly it has to come back.
        """
        if not self.is_on or not worker.ready or worker.num_free_places:
            return
        if not is_well:
            self._canaries.not_served()
        elif self._canaries.is_excused or not any(other.num_free_places for other in ready):
            self._canaries.served()

    def began_anew(self, worker: Worker, now: float) -> None:
        """The worker has nothing left of what it had."""
        self._canaries.began_anew(worker.worker_id, now)

    def passed(self, serial: int) -> None:
        """A canary came back."""
        self._canaries.passed(serial)

    def busy(self, serial: int, now: float) -> None:
        """A worker had no room for a canary."""
        self._canaries.busy(serial, now)

    def late(self, serial: int, worker: str, reason: str, now: float) -> list[Effect]:
        """A canary is not back in time."""
        return self._told(worker, reason) if self._canaries.late(serial, now) else []

    def failed(self, serial: int, worker: str, reason: str, now: float) -> list[Effect]:
        """A canary did not come back."""
        return self._told(worker, reason) if self._canaries.failed(serial, now) else []

    def _told(self, worker: str, reason: str) -> list[Effect]:
        return [Notice(CanaryFailed(self._config.name, worker, reason))]
