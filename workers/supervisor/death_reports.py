"""Reports the death of an engine: to the log, to later status requests and to the gateways.

Owns the last death and the order of a report. Must not know how a death is diagnosed
(`diagnosis.py`) or what follows from it (`lifecycle.py`).
"""

from dataclasses import dataclass
from typing import final

import trio

from config import WorkerConfig
from protocol.control_messages import MAX_SHOWN_LINES, LastFault
from protocol.messages import FaultKind
from workers.supervisor.diagnosis import DeathEvidence, diagnose, fault_cause, last_log
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.log import WorkerLog
from workers.supervisor.restart_policy import RestartPolicy


@dataclass(frozen=True, slots=True)
class Death:
    """The death of the engine of `epoch`, at a time in seconds."""

    epoch: int
    at: float
    cause: str
    kind: FaultKind
    exit_code: int | None
    lines: tuple[str, ...]

    def shown(self, now: float) -> LastFault:
        """The death as a status shows it."""
        return LastFault(
            epoch=self.epoch,
            kind=self.kind,
            cause=self.cause,
            exit_code=self.exit_code,
            ago_s=max(0.0, now - self.at),
            last_log=self.lines[-MAX_SHOWN_LINES:],
        )


@final
class DeathReports:
    """The deaths of one worker's engines; `last` is the latest one."""

    def __init__(self, log: WorkerLog, policy: RestartPolicy) -> None:
        self.last: Death | None = None
        self._log = log
        self._policy = policy

    def report(
        self,
        ending: DeathEvidence,
        config: WorkerConfig,
        relay: FrameRelay,
        *,
        is_told: bool,
        is_final: bool = False,
        next_s: float = 0.0,
    ) -> None:
        """Report the death of the engine of `config`. `is_told`: the gateways have heard of it
        already. `is_final`: no start follows.
        """
        diagnosis, policy = diagnose(ending), self._policy
        cause = fault_cause(
            diagnosis,
            worker=config.name,
            failed_starts=policy.failed_starts,
            stops=is_final,
            next_s=next_s,
            is_endless=policy.is_endless(is_attached=config.is_attached),
        )
        lines, now = last_log(ending.last_lines), trio.current_time()
        if not self._log.beside_gateway:
            write = self._log.error if is_final else self._log.warning
            write(f"engine start {relay.epoch} is gone: {cause}")
        self.last = Death(relay.epoch, now, cause, diagnosis.kind, ending.exit_code, lines)
        if is_told:
            return
        # On a shared terminal the engine's last lines are already shown above.
        shown = () if self._log.beside_gateway else lines
        relay.engine_gone(cause, ending.exit_code, shown, is_final=is_final, kind=diagnosis.kind)
