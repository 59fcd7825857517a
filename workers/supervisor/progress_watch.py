"""Watches that judge progress instead of elapsed time.

Owns three watches: of an engine that starts, of an engine that steps, of a gateway that pings. Each
records signs of life and judges whether the last one is too old; `now` is seconds of any monotonic
clock. Must not know processes or links.

A watch that runs late (the supervisor was stopped, the machine slept) has missed signs of life. So
it starts again instead of blaming the other side.
"""

from collections.abc import Callable
from typing import Final

from workers.ipc import Heartbeat

MIN_HANG_S: Final = 3.0
STEPS_PER_HANG: Final = 10.0
GATEWAY_SILENCE_S: Final = 10.0
"""Longer than the lag of a loop under load. The death of the gateway's process, or of the path to
it, is noticed within a second, by the heartbeats of the connection, which need no loop.
"""
STOPPED_S: Final = 0.6
"""A stopped process (SIGSTOP) that shares the engine with others is given up after this time; over
networks the connection's heartbeats take as long.
"""
MAX_PAUSE_S: Final = 3.0
"""How long an engine that serves several gateways waits for one that does not read. A shorter time
would make an overload worse, because work that is given up is computed again.
"""
LATE_S: Final = 0.5

_HEARTBEATS_TO_SEE_WORK: Final = 2
"""An idle heartbeat may have been in flight when the work was sent; the next one cannot."""


class SilenceTimer:
    """The time since the last sign of life, without the watcher's own pauses."""

    def __init__(self, now: float) -> None:
        self._sign_at = now
        self._asked_at = now

    def sign(self, now: float) -> None:
        """Note a sign of life."""
        self._sign_at = now

    def silent_s(self, now: float) -> float:
        """Seconds without a sign. Call it at least every `LATE_S`."""
        if now - self._asked_at > LATE_S:
            self._sign_at = now
        self._asked_at = now
        return now - self._sign_at


class GatewayWatch:
    """Judges one gateway. A gateway pings every 0.2 s and reads its messages. A gateway that does
    neither for 10 s on an open connection is stuck. If the engine is shared, the limit is lower.
    """

    def __init__(self, now: float) -> None:
        self._receiving = SilenceTimer(now)
        self._reading = SilenceTimer(now)

    def heard(self, now: float) -> None:
        """A frame came."""
        self._receiving.sign(now)

    def took(self, now: float) -> None:
        """The gateway has read some of its messages, or there were few to read."""
        self._reading.sign(now)

    def verdict(
        self,
        now: float,
        *,
        is_shared: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> str | None:
        """The reason why the gateway counts as gone, or None. `is_shared`: the engine serves others
        too.
        """
        silent_s = self._receiving.silent_s(now)
        if silent_s >= GATEWAY_SILENCE_S:
            return f"it has sent nothing for {GATEWAY_SILENCE_S:g} s"
        if is_shared and silent_s >= STOPPED_S and is_stopped():
            return "its process is stopped"
        patience_s = MAX_PAUSE_S if is_shared else GATEWAY_SILENCE_S
        if self._reading.silent_s(now) >= patience_s:
            return f"it has read nothing of what was sent for {patience_s:g} s"
        return None


class StartWatch:
    """Judges a start, which may take any time while it reports news at least every `stall_s`."""

    def __init__(self, stall_s: float, now: float) -> None:
        self.stall_s = stall_s
        self._silence = SilenceTimer(now)
        self._last: tuple[str, float, str] = ("start", 0.0, "")

    def progress(self, phase: str, fraction: float, detail: str, now: float) -> None:
        """Take a report. A repeated report is no progress."""
        if (phase, fraction, detail) != self._last:
            self._last = (phase, fraction, detail)
            self._silence.sign(now)

    def not_read(self, now: float) -> None:
        """The engine's frames are not being read, so its silence means nothing."""
        self._silence.sign(now)

    def verdict(self, now: float) -> str | None:
        """The reason why the start has failed, or None."""
        if self._silence.silent_s(now) < self.stall_s:
            return None
        phase, fraction, _ = self._last
        return f"no progress for {self.stall_s:g} s at `{phase}` ({fraction:.0%})"


class HangWatch:
    """Judges a running engine. With work, it must finish a step within max(3 s, 10 x its longest
    recent step).

    A step larger than any before may take 10 x its estimate, and a declared phase in a step (a
    compile) may take longer, but neither more than `stall_s`.
    """

    def __init__(self, stall_s: float, now: float) -> None:
        self.stall_s = stall_s
        self._silence = SilenceTimer(now)
        self._pending = False
        self._heartbeats_due = 0
        self._step = 0
        self._phase = ""
        self._limit_s = MIN_HANG_S

    def work_sent(self, now: float) -> None:
        """A submission went to the engine: a step is due from now on."""
        if not self._pending:
            self._pending = True
            self._silence.sign(now)
        self._heartbeats_due = _HEARTBEATS_TO_SEE_WORK

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        """Take a heartbeat. Only a new step, a new phase or idleness is progress."""
        if heartbeat.step != self._step or heartbeat.phase != self._phase or not heartbeat.busy:
            self._silence.sign(now)
        self._heartbeats_due = max(0, self._heartbeats_due - 1)
        self._pending = heartbeat.busy or self._heartbeats_due > 0
        self._step, self._phase = heartbeat.step, heartbeat.phase
        guess_s = self.stall_s if heartbeat.phase else STEPS_PER_HANG * heartbeat.expected_step_s
        self._limit_s = max(
            MIN_HANG_S, STEPS_PER_HANG * heartbeat.longest_step_s, min(guess_s, self.stall_s)
        )

    def not_read(self, now: float) -> None:
        """The engine's frames are not being read, so its silence means nothing."""
        self._silence.sign(now)

    def verdict(self, now: float) -> str | None:
        """The reason why the engine counts as hung, or None."""
        silent_s = self._silence.silent_s(now)
        if not self._pending or silent_s < self._limit_s:
            return None
        return f"hung: no step finished for {self._limit_s:.1f} s with work pending"
