"""When a dead engine is started again, and what its death means.

Owns the backoff and the diagnosis of exit codes. Must not know processes or clocks: the caller
says what happened and when.
"""

import signal
from typing import Final

FIRST_DELAY_S: Final = 0.1
MAX_DELAY_S: Final = 30.0
HEALTHY_AFTER_S: Final = 60.0
MAX_FAILED_STARTS: Final = 5
_SIGNAL_BASE: Final = 128

_BY_CODE: Final = {
    0: "it left without being asked",
    1: "it ended with an error; its last log lines say more",
    2: "its command line was not understood",
    126: "file not executable: the interpreter or a script lacks permission",
    127: "file not found: the interpreter or a script is gone",
}

_BY_SIGNAL: Final = {
    signal.SIGKILL: "killed; without our doing that is mostly the out-of-memory killer, see dmesg",
    signal.SIGSEGV: "a crash in native code; its last log lines may name the library",
    signal.SIGABRT: "a failed assertion in native code; its last log lines may name it",
    signal.SIGBUS: "a bus error: often a model file cut short, or a full /dev/shm",
    signal.SIGILL: "an instruction that this CPU does not have",
    signal.SIGTERM: "somebody asked it to end",
    signal.SIGINT: "interrupted from the keyboard",
}


def shell_code(returncode: int) -> int:
    """The exit code as a shell shows it: 128 + the signal for a killed process."""
    return returncode if returncode >= 0 else _SIGNAL_BASE - returncode


def diagnose_exit(code: int) -> str:
    """One line about an exit code (as of a shell) for people."""
    if code in _BY_CODE:
        return f"exit code {code}: {_BY_CODE[code]}"
    try:
        name = signal.Signals(code - _SIGNAL_BASE)
    except ValueError:
        return f"exit code {code}: see its last log lines"
    return f"exit code {code} ({name.name}): {_BY_SIGNAL.get(name, 'ended by that signal')}"


class RestartPolicy:
    """0.1 s, doubling to 30 s; as new after 60 s of health; five failed starts in a row end it.

    An engine that gets ready and dies again is restarted for ever, ever more slowly; one that
    never gets ready is stopped, because each try may leave something behind.
    """

    def __init__(self) -> None:
        self._delay_s = FIRST_DELAY_S
        self._failed_starts = 0
        self._ready_at: float | None = None

    @property
    def failed_starts(self) -> int:
        """Starts in a row that never got ready."""
        return self._failed_starts

    def ready(self, now: float) -> None:
        """The engine has generated tokens."""
        self._ready_at = now
        self._failed_starts = 0

    def exited(self, now: float) -> float | None:
        """How many seconds to wait before the next start; None: start no more."""
        if self._ready_at is None:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                return None
        elif now - self._ready_at >= HEALTHY_AFTER_S:
            self._delay_s = FIRST_DELAY_S
        self._ready_at = None
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, MAX_DELAY_S)
        return delay_s
