"""One fault, injected several times into a fleet under load.

Owns the order: traffic, wait until the victim is at work, hurt it, wait until it is back, three
seconds of peace, the next. Must not know how a fault is made, nor bars.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from tests.chaos import measure
from tests.chaos.faults import Fault
from tests.chaos.fleet import Fleet, until
from tests.chaos.measure import Injection
from tests.chaos.traffic import NUM_CLIENTS, Answers, Prompt, Stream, Traffic
from workers.supervisor.restart_policy import MAX_DELAY_S

PEACE_S = 3.0
BACK_S = 60.0
ABLE_S = BACK_S + 2 * MAX_DELAY_S
"""How long an engine may take to have its weights. Each of the last deaths is followed by a failed
start, so its restart policy waits twice, for up to `MAX_DELAY_S`.
"""


@dataclass(slots=True)
class Outcome:
    """What one scenario has shown. `problems` must be empty; nothing in it depends on speed."""

    name: str
    num_workers: int
    injections: list[Injection] = field(default_factory=list)
    num_answers: int = 0
    problems: list[str] = field(default_factory=list)


class Lateness:
    """How late a thread that only sleeps wakes up: the machine's load, as it hits a process."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._is_over.is_set():
            due = time.monotonic() + 0.01
            time.sleep(0.01)
            self.worst_s = max(self.worst_s, time.monotonic() - due)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch for the length of the block."""
        self._thread.start()
        yield
        self._is_over.set()
        self._thread.join()

    def take(self) -> float:
        """The worst since the last call."""
        worst, self.worst_s = self.worst_s, 0.0
        return worst


class Scenario:
    """`run` returns what happened; nothing but a broken harness raises."""

    def __init__(
        self,
        fleet: Fleet,
        fault: Fault,
        prompts: list[Prompt],
        expected: Answers,
        seed: int,
        *,
        peace_s: float = PEACE_S,
    ) -> None:
        self._fleet = fleet
        self._fault = fault
        self._seed = seed
        self._peace_s = peace_s
        self._traffic = Traffic(fleet.herma.base_url, prompts, expected)
        self._lateness = Lateness()
        self._moved: dict[Stream, str] = {}
        self.outcome = Outcome(fault.name, len(fleet.names))

    async def run(self, num_injections: int, num_clients: int = NUM_CLIENTS) -> Outcome:
        """The whole of it, with the victims taking turns."""
        names, traffic = self._fleet.names, self._traffic
        with self._lateness.watched():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(traffic.run, num_clients, self._seed)
                await trio.sleep(self._peace_s)
                try:
                    for turn in range(num_injections):
                        await self._inject(names[turn % len(names)], turn)
                except AssertionError as error:
                    self.outcome.problems.append(str(error))
                traffic.stop()
        self._check_evidence()
        self.outcome.num_answers = len(traffic.over)
        self.outcome.problems += traffic.problems
        self._find_resumptions()
        return self.outcome

    async def _inject(self, victim: str, turn: int) -> None:
        # Not at the same phase of the clients each time.
        await trio.sleep(0.1 * ((self._seed + 3 * turn) % 7))
        hit = await self._wait_busy(victim)
        before = self._pids()
        self._lateness.take()
        injection = Injection(victim, time.time(), hit)
        self.outcome.injections.append(injection)
        injection.able_at = await self._fault.inject(self._fleet, victim, turn)
        if self._fault.detection == "none":
            await trio.sleep(self._peace_s)
            self._check_undisturbed(injection, before)
        else:
            await self._wait_back(injection)
            self._move(injection)
            await trio.sleep(self._peace_s)
        injection.late_s, injection.load = self._lateness.take(), os.getloadavg()[0]

    async def _wait_busy(self, victim: str) -> list[Stream]:
        """The streams that run on the victim, once there is one with text."""
        await until(lambda: self._on(victim), f"work on {victim}")
        return self._on(victim)

    def _on(self, name: str) -> list[Stream]:
        return [
            stream
            for stream in list(self._traffic.running)
            if stream.times and self._moved.get(stream, stream.worker) == name
        ]

    def _pids(self) -> list[int]:
        fleet = self._fleet
        return [pid for n in fleet.names for pid in (fleet.engine_pid(n), fleet.supervisor_pid(n))]

    def _check_undisturbed(self, injection: Injection, before: list[int]) -> None:
        noticed = measure.noticed_at(self._fleet.events(), injection.victim, injection.at)
        if noticed is not None or self._pids() != before:
            self.outcome.problems.append(f"{self._fault.name} cost {injection.victim} its engine")

    def _check_evidence(self) -> None:
        """A fault that did not happen proves nothing."""
        text = self._fault.evidence
        found = sum(text in line for line in list(self._fleet.herma.output))
        if found < len(self.outcome.injections):
            self.outcome.problems.append(f"{text!r} stands {found} times in the log")

    async def _wait_back(self, injection: Injection) -> None:
        victim, fleet = injection.victim, self._fleet

        def is_noticed() -> bool:
            injection.noticed_at = measure.noticed_at(fleet.events(), victim, injection.at)
            return injection.noticed_at is not None

        def is_able() -> bool:
            if injection.able_at is None:
                injection.able_at = fleet.loaded_at(victim, injection.at)
            return injection.able_at is not None

        def is_back() -> bool:
            assert injection.able_at is not None
            streams = [*self._traffic.over[-200:], *self._traffic.running]
            waiting = injection.hit if len(fleet.names) == 1 else []
            injection.back_at = measure.back_at(streams, waiting, victim, injection.able_at)
            return injection.back_at is not None

        await until(is_noticed, f"a word on {victim}", timeout_s=BACK_S)
        await until(is_able, f"an engine of {victim}", timeout_s=ABLE_S)
        await until(is_back, f"an answer of {victim}", timeout_s=BACK_S)

    def _move(self, injection: Injection) -> None:
        """Remember where the victim's streams are now: its header stands as it was."""
        others = [name for name in self._fleet.names if name != injection.victim]
        for stream in injection.hit:
            self._moved[stream] = others[0] if others else injection.victim

    def _find_resumptions(self) -> None:
        """When all streams are over, because some had been silent when the worker was back. One
        worker alone resumes what it has when it is back, which is measured as such.
        """
        if len(self._fleet.names) == 1:
            return
        for injection in self.outcome.injections:
            if injection.noticed_at is not None:
                found = (
                    measure.resumed_at(stream, injection.at, injection.noticed_at)
                    for stream in injection.hit
                )
                injection.resumed_at = [at for at in found if at is not None]
