"""How every process of Herma writes its log: the form of a line, and what is left out.

Owns the two environment variables, which the options `--log-format` and `--log-level` set for a
command and all of its children, and the JSON form of a line. Must not know what is logged.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from housekeeping.errors import ConfigError

FORMAT_VARIABLE: Final = "HERMA_LOG_FORMAT"
LEVEL_VARIABLE: Final = "HERMA_LOG_LEVEL"

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

_encode: Final = msgspec.json.Encoder().encode


class LogStyle(NamedTuple):
    """`form` is "text" or "json"; without one lines are text, and those of events JSON. `level` is
    the least that is written.
    """

    form: str | None = None
    level: str = "info"


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
    return LogStyle(form, level)


def json_line(unix_time: float, level: str, source: str, text: str) -> str:
    """A line of the log as one JSON object; `source` is the process or the engine."""
    at = datetime.fromtimestamp(unix_time, UTC).isoformat(timespec="milliseconds")
    return _encode({"time": at, "level": level, "source": source, "text": text}).decode()
