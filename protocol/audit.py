"""The audit file: one JSON line for each act of an operator upon a running process.

Owns the line, and how it is appended: with mode 0600, in one write, so that several processes share
a file; opened anew each time, so that it can be moved away meanwhile. Nothing shortens it here.
An act whose line cannot be written happens all the same, and is logged. Must not know what an act
does.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, final

FILE_NAME: Final = "audit.jsonl"
MAX_FIELD_CHARS: Final = 500
_MODE: Final = 0o600
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Act(NamedTuple):
    """What `who` did to `what`, and how it ended. `who` is a key's name, a user of this host with
    the process that asked, or a signal; `address` is that of an HTTP client.
    """

    act: str
    who: str
    result: str
    what: str = ""
    address: str = ""


Note = Callable[[Act], None]
"""Writes an act down. Never waits for long, and never raises."""


@final
class AuditFile:
    """`process` names the writer in each line; `complain` gets one line for each act that could not
    be written down. `path` None: none can.
    """

    def __init__(
        self,
        path: Path | None,
        process: str,
        complain: Callable[[str], None],
        unix_time: Callable[[], float],
    ) -> None:
        self._path = path
        self._process = process
        self._complain = complain
        self._unix_time = unix_time

    def note(self, act: Act) -> None:
        """Append its line."""
        at = datetime.fromtimestamp(self._unix_time(), UTC).isoformat(timespec="milliseconds")
        fields = {name: value[:MAX_FIELD_CHARS] for name, value in act._asdict().items()}
        line = json.dumps({"time": at, "process": self._process, "pid": os.getpid(), **fields})
        try:
            _append(self._path, line.encode() + b"\n")
        except OSError as error:
            self._complain(f"{act.act} by {act.who} is not in the audit file: {error}")


def _append(path: Path | None, line: bytes) -> None:
    if path is None:
        raise OSError("there is no place for it: set XDG_STATE_HOME or HOME")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(path, _FLAGS, _MODE)
    try:
        if os.fstat(file).st_mode & 0o077:
            os.fchmod(file, _MODE)
        if (num_written := os.write(file, line)) < len(line):
            raise OSError(f"only {num_written} of {len(line)} bytes were written")
    finally:
        os.close(file)
