"""When a host of workers is woken, and when its power hook runs.

Owns both decisions for each configured host. Must not know sockets, commands or a clock: `now` is
in seconds.

A host counts as asleep while none of its workers is registered. It is woken when one of its models
falls back to providers, and again each minute until one of its workers registers. If a worker was
lost and none is back within `power_after_s`, the power hook runs, and again after `AGAIN_S`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, final

from config import HostConfig
from gateway.telemetry import (
    FallbackOff,
    FallbackOn,
    FleetEvent,
    WorkerBack,
    WorkerLost,
    WorkerReady,
    WorkerStarting,
)

WAKE_EVERY_S: Final = 60.0
MAX_WAKES: Final = 10
"""The most wake-up packets for one host. A host that is not awake after ten minutes needs a person.
"""
AGAIN_S: Final = 1800.0
MAX_POWER_RUNS: Final = 3


class HostAction(NamedTuple):
    """What to do to the host of that name, and why."""

    host: str
    what: Literal["wake", "power"]
    why: str


class _Host:
    """One host's workers, and the actions that were tried since its last worker was lost."""

    def __init__(self, config: HostConfig) -> None:
        self.config = config
        self.present: set[str] = set()
        self.wanted: set[str] = set()
        self.num_wakes = 0
        self.next_wake_s = -math.inf
        self.num_power_runs = 0
        self.power_s = math.inf

    def came(self, worker: str) -> None:
        self.present.add(worker)
        self.num_wakes = self.num_power_runs = 0
        self.power_s = math.inf

    def went(self, worker: str, now: float) -> None:
        self.present.discard(worker)
        if not self.present and self.config.power:
            self.power_s = now + self.config.power_after_s

    @property
    def next_s(self) -> float:
        """When the next action may be due."""
        return min(self.power_s, self.next_wake_s if self._is_to_wake else math.inf)

    def due(self, now: float) -> Iterable[HostAction]:
        name = self.config.name
        if self._is_to_wake and now >= self.next_wake_s:
            self.num_wakes += 1
            self.next_wake_s = now + WAKE_EVERY_S
            models = ", ".join(sorted(self.wanted))
            yield HostAction(name, "wake", f"{models} is asked for and no worker of it is here")
        if now >= self.power_s:
            self.num_power_runs += 1
            is_last = self.num_power_runs >= MAX_POWER_RUNS
            self.power_s = math.inf if is_last else now + AGAIN_S
            yield HostAction(name, "power", "its workers are lost and did not come back")

    @property
    def _is_to_wake(self) -> bool:
        has_mac = self.config.mac is not None
        return has_mac and bool(self.wanted) and not self.present and self.num_wakes < MAX_WAKES


@final
class Hosts:
    """All configured hosts."""

    def __init__(self, configs: Sequence[HostConfig]) -> None:
        self._hosts = [_Host(config) for config in configs]

    def observe(self, event: FleetEvent, now: float) -> None:
        """Take an event of the fleet."""
        match event:
            case WorkerStarting(worker) | WorkerReady(worker) | WorkerBack(worker):
                for host in self._of_worker(worker):
                    host.came(worker)
            case WorkerLost(worker, _):
                for host in self._of_worker(worker):
                    host.went(worker, now)
            case FallbackOn(model, _, _):
                for host in self._hosts:
                    if model in host.config.models:
                        host.wanted.add(model)
            case FallbackOff(model, _):
                for host in self._hosts:
                    host.wanted.discard(model)
            case _:
                pass

    def due(self, now: float) -> list[HostAction]:
        """The actions that are due now."""
        return [action for host in self._hosts for action in host.due(now)]

    def wait_s(self, now: float) -> float:
        """Seconds until `due` may have something; infinite if only an event can change that."""
        return max(0.0, min((host.next_s for host in self._hosts), default=math.inf) - now)

    def _of_worker(self, worker: str) -> list[_Host]:
        return [host for host in self._hosts if worker in host.config.workers]
