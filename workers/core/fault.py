"""Why an engine is gone, in one line.

Owns which of several reasons is the one to tell. Must not know processes.
"""

from collections.abc import Iterable
from typing import Final

from workers.core.restart import MAX_FAILED_STARTS, diagnose_exit

LAST_LINES: Final = 50
MAX_LINE_CHARS: Final = 500


def fault_cause(
    *, killed_for: str | None, told: str | None, exit_code: int | None, gives_up: bool
) -> str:
    """Our own verdict first, then what the engine said, then what its exit code means."""
    if killed_for is not None:
        cause = killed_for
    elif told is not None:
        cause = told
    elif exit_code is not None:
        cause = diagnose_exit(exit_code)
    else:
        cause = "the engine could not be started"
    if gives_up:
        cause += (
            f"; stopped after {MAX_FAILED_STARTS} starts in a row that never got ready: "
            "correct the cause and restart the worker"
        )
    return cause


def last_log(lines: Iterable[str]) -> tuple[str, ...]:
    """The last lines of a log, cut to what a message may carry."""
    return tuple(line[:MAX_LINE_CHARS] for line in lines)[-LAST_LINES:]
