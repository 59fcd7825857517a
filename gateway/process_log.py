"""The log of the gateway process on stderr.

Owns the form of its lines and the level below which lines, events included, are left out. Must not
know what is logged.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.telemetry import FleetEvent, words_of
from gateway.telemetry.event_feed import LOGGER as EVENTS_LOGGER
from housekeeping.log_lines import LogStyle, json_line
from housekeeping.log_output import LineWriter, lost_line

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
        text = super().format(record)  # the message, with the traceback of an exception
        return json_line(record.created, record.levelname.lower(), self._source, text)


class _EventsInWords(logging.Formatter):
    """Each event as a sentence, in the form of the other lines."""

    def format(self, record: logging.LogRecord) -> str:
        level, words = words_of(_decode_event(record.getMessage()))
        record.msg, record.args = words, ()
        record.levelno = _LEVELS[level]
        record.levelname = logging.getLevelName(record.levelno)
        return super().format(record)


class _Marked(logging.Formatter):
    """The lines of another formatter, with the level that `style` puts before them."""

    def __init__(
        self,
        inner: logging.Formatter,
        style: LogStyle,
        level_of: Callable[[logging.LogRecord], int],
    ) -> None:
        super().__init__()
        self._inner, self._log_style, self._level_of = inner, style, level_of

    def format(self, record: logging.LogRecord) -> str:
        level = logging.getLevelName(self._level_of(record)).lower()
        return self._log_style.marked(level, self._inner.format(record))


def start_log(label: str, style: LogStyle) -> None:
    """Write the log of this process, `label` among several, to stderr. If the style names no form,
    lines are text, except that events are JSON objects.
    """
    least = logging.getLevelNamesMapping()[style.level.upper()]
    text = f"%(asctime)s %(levelname)s{label} %(message)s"
    as_json, source = style.form == "json", f"gateway{label}"

    def lost(num_lost: int) -> str:
        line = lost_line(num_lost)
        return json_line(time.time(), "warning", source, line) if as_json else line

    writer = LineWriter(sys.stderr, lost)
    handler = _handler_of(writer)
    usual = _JsonLines(source) if as_json else logging.Formatter(text)
    handler.setFormatter(_Marked(usual, style, lambda record: record.levelno))
    logging.basicConfig(handlers=[handler], level=least)
    handler = _handler_of(writer)
    in_words = style.form == "text"
    of_events = _EventsInWords(text) if in_words else logging.Formatter("%(message)s")
    handler.setFormatter(_Marked(of_events, style, _level_of))
    handler.addFilter(lambda record: _level_of(record) >= least)
    events = logging.getLogger(EVENTS_LOGGER)
    events.setLevel(logging.INFO)
    events.addHandler(handler)
    events.propagate = False
    # httpx logs each request to a provider, with the provider's address.
    logging.getLogger("httpx").setLevel(max(least, logging.WARNING))


def _handler_of(writer: LineWriter) -> logging.Handler:
    """A handler that gives each record to `writer` as a line."""
    handler = logging.StreamHandler(writer)
    handler.terminator = ""
    return handler


def _level_of(record: logging.LogRecord) -> int:
    """The level of an event's line, which the feed logs without one."""
    return _LEVELS[words_of(_decode_event(record.getMessage()))[0]]
