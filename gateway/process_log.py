"""The log of the gateway process on stderr.

Owns the form of its lines and what is left out below a level, events included. Must not know what
is logged.
"""

import logging
import sys
from typing import Final

import msgspec

from gateway.telemetry import FleetEvent, words_of
from gateway.telemetry.event_feed import LOGGER as EVENTS_LOGGER
from housekeeping.log_lines import LogStyle, json_line

_LEVELS: Final = {
    "good": logging.INFO,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "critical": logging.ERROR,
}
_decode_event: Final = msgspec.json.Decoder(FleetEvent).decode


class _JsonLines(logging.Formatter):
    """Each record as one JSON object."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)  # with the traceback of an exception
        return json_line(record.created, record.levelname.lower(), self._source, text)


class _EventsInWords(logging.Formatter):
    """Each event as a sentence, in the form of the other lines."""

    def format(self, record: logging.LogRecord) -> str:
        level, words = words_of(_decode_event(record.getMessage()))
        record.msg, record.args = words, ()
        record.levelno = _LEVELS[level]
        record.levelname = logging.getLevelName(record.levelno)
        return super().format(record)


def start_log(label: str, style: LogStyle) -> None:
    """Write the log of this process, `label` among several, to stderr. Without a form lines are
    text, and those of events JSON objects.
    """
    least = logging.getLevelNamesMapping()[style.level.upper()]
    text = f"%(asctime)s %(levelname)s{label} %(message)s"
    logging.basicConfig(stream=sys.stderr, level=least, format=text)
    if style.form == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_JsonLines(f"gateway{label}"))
    handler = logging.StreamHandler(sys.stderr)
    in_words = style.form == "text"
    handler.setFormatter(_EventsInWords(text) if in_words else logging.Formatter("%(message)s"))
    handler.addFilter(lambda record: _level_of(record) >= least)
    events = logging.getLogger(EVENTS_LOGGER)
    events.setLevel(logging.INFO)
    events.addHandler(handler)
    events.propagate = False
    # httpx logs each request to a provider, with the provider's address.
    logging.getLogger("httpx").setLevel(max(least, logging.WARNING))


def _level_of(record: logging.LogRecord) -> int:
    """The level of an event's line, which the feed logs without one."""
    return _LEVELS[words_of(_decode_event(record.getMessage()))[0]]
