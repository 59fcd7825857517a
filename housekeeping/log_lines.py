"""How every process of Herma writes its log: the form of a line, and what is left out.

Owns the two environment variables, which the options `--log-format` and `--log-level` set for a
command and all of its children, the JSON form of a line, and the mark by which systemd's journal
knows a line's level. Must not know what is logged.
"""

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from housekeeping.errors import ConfigError

FORMAT_VARIABLE: Final = "HERMA_LOG_FORMAT"
LEVEL_VARIABLE: Final = "HERMA_LOG_LEVEL"

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

_JOURNAL_VARIABLE: Final = "JOURNAL_STREAM"
_PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Those of syslog(3), as sd-daemon(3) spells them before a line."""

_encode: Final = msgspec.json.Encoder().encode


class LogStyle(NamedTuple):
    """`form` is "text" or "json"; without one lines are text, and those of events JSON. `level` is
    the least that is written. `is_journal`: systemd's journal reads the lines.
    """

    form: str | None = None
    level: str = "info"
    is_journal: bool = False

    def marked(self, level: str, text: str) -> str:
        """`text` as it is written: in the journal each of its lines has its level."""
        if not self.is_journal:
            return text
        # A library's level of its own counts as info.
        mark = f"<{_PRIORITIES.get(level, _PRIORITIES['info'])}>"
        return mark + text.replace("\n", f"\n{mark}")


USUAL: Final = LogStyle()


def log_style(environ: Mapping[str, str]) -> LogStyle:
    """The style that the environment asks for. Raises `ConfigError` for an unknown word."""
    form, level = environ.get(FORMAT_VARIABLE) or None, environ.get(LEVEL_VARIABLE) or "info"
    for variable, word, known in (
        (FORMAT_VARIABLE, form, FORMATS),
        (LEVEL_VARIABLE, level, LEVELS),
    ):
        if word is not None and word not in known:
            raise ConfigError(f"{variable} is {word!r}; use {', '.join(known)}")
    return LogStyle(form, level, _is_journal(environ))


def _is_journal(environ: Mapping[str, str]) -> bool:
    """Whether stderr is still the stream that systemd has connected with its journal."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # a stderr that is closed, or is no file
        return False
    return environ.get(_JOURNAL_VARIABLE) == f"{found.st_dev}:{found.st_ino}"


def json_line(unix_time: float, level: str, source: str, text: str) -> str:
    """A line of the log as one JSON object; `source` is the process or the engine."""
    at = datetime.fromtimestamp(unix_time, UTC).isoformat(timespec="milliseconds")
    return _encode({"time": at, "level": level, "source": source, "text": text}).decode()
