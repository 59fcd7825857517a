"""Moves this host's workers between versions, one at a time, without losing a stream.

Owns the order: check that something else can answer, drain, record the old version's answers, start
the new version, compare its answers, serve. A lease holds the worker meanwhile, so it goes back by
itself if this process is gone. Must not know how a version is made.
"""

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from herma.processes import Supervisor, ask, supervisors, whose
from herma.upgrade.judge import questions, speed_of, too_slow, wrong_answers
from protocol.control_messages import (
    Ask,
    AskHold,
    AskProbe,
    AskReplace,
    AskRestart,
    AskServe,
    Done,
    LastFault,
    ModelCover,
    ProbedAnswer,
    ProbeQuestion,
    Refused,
    WorkerStatus,
)
from protocol.errors import ConfigError, HermaError
from workers.versions import HERMA, Installation

LEASE_S: Final = 30.0
_RENEW_S: Final = 5.0
_POLL_S: Final = 0.1
_PROBE_S: Final = 120.0
_COME_S: Final = 60.0
"""How long a missing worker may take to be back: its parent starts it again within seconds."""
_BACK_S: Final = 900.0
"""The least time for the old version's start, which is awaited but not judged."""
_END_S: Final = 5.0
_MEASUREMENTS: Final = 3


class VersionRejected(HermaError):
    """A version is not good, or a worker cannot be moved; the text says why."""


@dataclass(frozen=True, slots=True)
class MoveBounds:
    """`drain_s` is for running sequences. `ready_s` is for a version to become ready. `may_pause`:
    go on although nothing else can answer for a model meanwhile.
    """

    drain_s: float = 600.0
    ready_s: float = 900.0
    may_pause: bool = False


Encode = Callable[[str], Sequence[int]]


@dataclass(slots=True)
class Mover:
    """Moves workers. `tokenizer` returns a worker's tokenizer, or None. `cover` returns what
    gateways know of models now. `say` receives lines for people.
    """

    installation: Installation
    bounds: MoveBounds
    tokenizer: Callable[[WorkerStatus], Encode | None]
    cover: Callable[[], Iterable[ModelCover]]
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    numbers: "itertools.count[int]" = field(
        default_factory=lambda: itertools.count(int(time.time()))
    )
    pids: dict[str, int] = field(default_factory=dict)

    def names(self) -> list[str]:
        """The workers of this host that run the installation. Raises `ConfigError` for an engine of
        several ranks; their supervisors take a version of Herma at their next start.
        """
        found = [each.status for each in supervisors() if each.status is not None]
        mine = sorted((each for each in found if self._is_mine(each)), key=lambda each: each.name)
        for status in mine:
            if status.group and self.installation.name != HERMA:
                raise ConfigError(
                    f"{status.name} is a rank of group {status.group}: groups are not moved "
                    "between versions"
                )
            if status.group:
                self.say(f"{status.name}: a rank of {status.group}, which changes when it restarts")
        names = [status.name for status in mine if not status.group]
        for name in names:
            same = [one for one in found if one.name == name]
            if len(same) > 1:  # each step finds its worker by name
                files = " and ".join(f"pid {one.pid} {whose(one)}" for one in same)
                raise ConfigError(
                    f"{len(same)} workers of this host are named `{name}` ({files}): stop one, or "
                    "give it another name"
                )
        if not names:
            self.say("no worker of it runs here, so it is not tried")
        return names

    def move(self, name: str, to: str) -> None:
        """Let the worker serve with version `to`. Raises `HermaError`; the worker may then be held,
        in either version.
        """
        trial = _Trial(self, name, to, self.bounds.ready_s)
        status = trial.find()
        if self.runs(status, to) and not status.is_held:
            return
        self._check_cover(status)
        self.pids[name] = status.pid
        self.say(f"{name}: draining")
        status = trial.hold(status)
        asked = questions(self.tokenizer(status))
        before = trial.baseline(status, asked)
        self.say(f"{name}: starting version {to}")
        trial.start()
        trial.judge(asked, before)
        trial.serve()
        self.say(f"{name}: serves by version {to}")

    def bring_back(self, name: str, to: str) -> None:
        """Let the worker serve with version `to`, as before. Raises `HermaError`."""
        trial = _Trial(self, name, to, max(self.bounds.ready_s, _BACK_S))
        status = self._find_again(trial, name)
        if self.runs(status, to) and status.state != "stopped":
            # Its engine was never replaced, and another start of it would cost minutes.
            if status.is_held:
                trial.serve()
            trial.wait_ready()
            return
        self.say(f"{name}: back to version {to}")
        if status.is_held:  # the tried version runs nothing, and may never be ready
            trial.renew(status)
        else:
            trial.hold(status)
        trial.start(lease_s=0.0)
        if self.installation.name != HERMA:
            trial.serve()
        trial.wait_ready()
        self.say(f"{name}: serves by version {to}")

    def runs(self, status: WorkerStatus, version: str) -> bool:
        """Whether the worker's process, or its engine, is of that version."""
        if self.installation.name != HERMA:
            return status.version == version
        environment = self.installation.environment(version)
        return bool(status.entry) and Path(status.entry[0]).parent.parent == environment

    def _is_mine(self, status: WorkerStatus) -> bool:
        return self.installation.name in (HERMA, status.installation)

    def _check_cover(self, status: WorkerStatus) -> None:
        """Raise `VersionRejected` if nothing else can answer for the worker's model."""
        if self.bounds.may_pause:
            return
        for model in self.cover():
            others = model.ready_workers - (status.state == "ready")
            if model.name == status.serves and (others > 0 or model.has_providers):
                return
        raise VersionRejected(
            f"{status.name}: no gateway that was asked knows another worker or a provider for "
            f"{status.serves}, so its requests would wait; name the gateway of another host with "
            "--gateway, or accept the wait with --pause"
        )

    def _find_again(self, trial: "_Trial", name: str) -> WorkerStatus:
        """The worker's status. A worker that hangs in the new version is ended, and its parent
        starts it again.
        """
        pid = self.pids.get(name)
        if pid is None or not _is_alive(pid):
            return trial.find(_COME_S)
        try:
            return trial.find(_END_S)
        except VersionRejected:
            self._end(pid)
            return trial.find(_COME_S)

    def _end(self, pid: int) -> None:
        """End a process that does not answer; its parent starts the current version."""
        self.say(f"ending process {pid}, which does not answer")
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = self.clock() + _END_S
            while _is_alive(pid) and self.clock() < deadline:
                self.sleep(_POLL_S)


@final
class _Trial:
    """The trial of a version on one worker. The version must be ready `ready_s` after its start."""

    def __init__(self, mover: Mover, name: str, to: str, ready_s: float) -> None:
        self._ready_s = ready_s
        self._mover = mover
        self._name = name
        self._to = to
        self._renew_at = float("-inf")

    def find(self, patience_s: float = 0.0) -> WorkerStatus:
        """The worker's status. Waits up to `patience_s` for the worker."""
        deadline = self._mover.clock() + patience_s
        while (found := self._look()) is None or found.status is None:
            if self._mover.clock() >= deadline:
                raise VersionRejected(f"{self._name}: no such worker answers on this host")
            self._mover.sleep(_POLL_S)
        return found.status

    def hold(self, status: WorkerStatus) -> WorkerStatus:
        """Hold the worker, after it has finished its running sequences."""
        drain_s = self._mover.bounds.drain_s
        self._ask(AskHold(drain_s, LEASE_S))
        if status.state == "stopped":
            return self.find()
        return self._wait(
            lambda now: now.is_held and now.state in ("ready", "stopped"),
            drain_s + _RENEW_S,
            "what runs was not finished",
        )

    def baseline(
        self, status: WorkerStatus, asked: Sequence[ProbeQuestion]
    ) -> list[list[ProbedAnswer]]:
        """The answers of the version that has served until now; empty if it does not run."""
        if status.state != "ready":
            self._mover.say(f"{self._name}: it did not run, so its answers cannot be compared")
            return []
        return [[*self._probe(asked), *self._measure_again(asked, _MEASUREMENTS - 1)]]

    def start(self, lease_s: float = LEASE_S) -> None:
        """Start the version, and return once it is ready."""
        mover = self._mover
        what = f"version {self._to} was not ready"
        if mover.installation.name == HERMA:
            entry = str(mover.installation.environment(self._to) / "bin" / "herma")
            self._ask(AskReplace((entry,), lease_s))
            self._wait(
                lambda now: mover.runs(now, self._to) and now.state == "ready",
                self._ready_s,
                what,
                is_held=lease_s > 0,
            )
            return
        epoch = self._ask(AskRestart(force=True, version=self._to)).epoch
        self._wait(
            lambda now: now.epoch >= epoch and now.state == "ready",
            self._ready_s,
            what,
            is_held=True,
        )

    def judge(self, asked: Sequence[ProbeQuestion], before: list[list[ProbedAnswer]]) -> None:
        """Raise `VersionRejected` for wrong answers, or too slow ones."""
        now = self._probe(asked)
        for answers in before:
            for problem in wrong_answers(answers[: len(asked)], now):
                raise VersionRejected(
                    f"{self._name}: version {self._to} answers otherwise: {problem}"
                )
            old = speed_of(answers)
            if old and not speed_of(now):
                self._mover.say(f"{self._name}: its speed is unknown, so it cannot be compared")
            if too_slow(old, speed_of(now)) is not None:
                now += self._measure_again(asked, _MEASUREMENTS - 1)
            if (slow := too_slow(old, speed_of(now))) is not None:
                raise VersionRejected(f"{self._name}: version {self._to} {slow}")
        if not before:
            slower = [line for line in self.find().warnings if "slower than" in line]
            if slower:
                raise VersionRejected(f"{self._name}: version {self._to} {slower[0]}")

    def serve(self) -> None:
        """Release the worker, and return once a gateway has it."""
        self._ask(AskServe())
        self.wait_ready()

    def wait_ready(self) -> None:
        """Return once the worker serves."""
        self._wait(
            lambda now: now.state == "ready" and not now.is_held and _has_gateway(now),
            self._ready_s,
            "it did not serve",
        )

    def _measure_again(self, asked: Sequence[ProbeQuestion], times: int) -> list[ProbedAnswer]:
        """More answers to the last question. The fastest counts, because a host that is busy for a
        moment makes any version slow.
        """
        return [answer for _ in range(times) for answer in self._probe(asked[-1:])]

    def _probe(self, asked: Sequence[ProbeQuestion]) -> list[ProbedAnswer]:
        """The answers; without leads if the engine reports none. Raises `VersionRejected`."""
        failure = ""
        for has_leads in (True, False):
            number = next(self._mover.numbers)
            self._ask(AskProbe(number, tuple(asked), has_leads))
            status = self._wait(
                lambda now, number=number: (  # type: ignore[misc]
                    now.probe is not None and now.probe.number == number and now.probe.is_over
                ),
                _PROBE_S,
                "the fixed questions were not answered",
            )
            assert status.probe is not None
            if not status.probe.failure:
                return list(status.probe.answers)
            failure = status.probe.failure
        raise VersionRejected(f"{self._name}: the fixed questions failed: {failure}")

    def _wait(
        self,
        accepts: Callable[[WorkerStatus], bool],
        bound_s: float,
        what: str,
        *,
        is_held: bool = False,
    ) -> WorkerStatus:
        """Wait until `accepts` takes the status; renew the lease meanwhile. `is_held`: the worker
        must stay held.
        """
        mover = self._mover
        deadline = mover.clock() + bound_s
        while mover.clock() < deadline:
            found = self._look()
            status = None if found is None else found.status
            if found is not None and status is not None:
                if accepts(status):
                    return status
                self._check(status, is_held=is_held)
                self.renew(status)
            mover.sleep(_POLL_S)
        raise VersionRejected(f"{self._name}: {what} in {bound_s:g} s")

    def _check(self, status: WorkerStatus, *, is_held: bool) -> None:
        if is_held and not status.is_held and status.state != "leaving":
            raise VersionRejected(
                f"{self._name}: version {self._to} ended, and the one before serves again"
            )
        if status.state == "stopped":
            raise VersionRejected(f"{self._name}: {_cause(status.fault)}")

    def renew(self, status: WorkerStatus) -> None:
        """Renew the lease of a held worker, if that is due."""
        now = self._mover.clock()
        if status.is_held and now >= self._renew_at:
            self._renew_at = now + _RENEW_S
            # The process may be replaced at this moment; a lease outlives five failed renewals.
            with suppress(HermaError):
                self._ask(AskHold(self._mover.bounds.drain_s, LEASE_S))

    def _look(self) -> Supervisor | None:
        found = (each for each in supervisors() if each.status is not None)
        return next((one for one in found if one.status and one.status.name == self._name), None)

    def _ask(self, question: Ask) -> Done:
        """Send a request to the worker. Raises `VersionRejected` if it is refused."""
        if (found := self._look()) is None:
            raise VersionRejected(f"{self._name}: no such worker answers on this host")
        match ask(found.path, question):
            case Done() as done:
                return done
            case Refused(reason=reason):
                raise VersionRejected(f"{self._name}: {reason}")
            case _:
                raise ConfigError(f"{self._name} sent an unexpected answer")


def _cause(fault: LastFault | None) -> str:
    """The cause of the engine's death, and its last log lines."""
    if fault is None:
        return "no cause is known"
    last = f" ({fault.last_log[-1]})" if fault.last_log else ""
    return fault.cause.partition("; stopped after")[0] + last


def _has_gateway(status: WorkerStatus) -> bool:
    """Whether a gateway has welcomed the worker, or the worker has no gateways."""
    welcomed, dialled = status.gateways
    return bool(welcomed) or not dialled


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
