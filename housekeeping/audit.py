"""The audit file: one JSON line for each act of an operator on a running process.

Owns the line and how it is appended: in one write, so that several processes can share the file,
which has mode 0600 and is opened for each line, so that it can be rotated. Nothing here shortens
it. If a line cannot be written, the act happens all the same, and an error is logged. Must not know
what an act does.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, final

from housekeeping.state_file import make_private

FILE_NAME: Final = "audit.jsonl"
MAX_FIELD_CHARS: Final = 500
_MODE: Final = 0o600
_FLAGS: Final = (
    os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
)
"""The last one is for a pipe in the place of the file, which would wait for a reader."""


class Act(NamedTuple):
    """What `who` did to `what`, and how it ended. `who` is the name of a key, a user and process of
    this host, or a signal; `address` is the address of an HTTP client.
    """

    act: str
    who: str
    result: str
    what: str = ""
    address: str = ""


Note = Callable[[Act], None]
"""Records an act. Never waits for long, and never raises."""


@final
class AuditFile:
    """`process` names the writer in each line; `complain` gets one line for each act that could not
    be written, which with `path` None is every act.
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
    make_private(path.parent)
    file = os.open(path, _FLAGS, _MODE)
    try:
        if os.fstat(file).st_mode & 0o077:
            os.fchmod(file, _MODE)
        if (num_written := os.write(file, line)) < len(line):
            raise OSError(f"only {num_written} of {len(line)} bytes were written")
    finally:
        os.close(file)
