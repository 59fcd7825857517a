"""The form of the supervisor's lines, and which are left out."""

import io
import json

from housekeeping.log_lines import LEVELS, LogStyle
from workers.supervisor.log import WorkerLog


def lines_of(style: LogStyle) -> list[str]:
    stream = io.StringIO()
    log = WorkerLog("gpu0", stream, style=style)
    log.info("it starts")
    log.engine_line("loading")
    log.close()
    return stream.getvalue().splitlines()


def test_lines_are_text_or_json() -> None:
    text = lines_of(LogStyle())
    assert [line.partition("INFO ")[2] for line in text] == [
        "worker gpu0: it starts",
        "engine gpu0: loading",
    ]
    found = [json.loads(line) for line in lines_of(LogStyle("json"))]
    assert [(one["source"], one["text"]) for one in found] == [
        ("worker gpu0", "it starts"),
        ("engine gpu0", "loading"),
    ]


def test_a_level_leaves_out_what_is_below_it() -> None:
    """The supervisor's lines and the engine's, whose lines have no level and count as info."""
    lines = {
        level: [line.split(" ", 2)[2] for line in _all_lines(LogStyle(level=level))]
        for level in LEVELS
    }
    every = ["INFO worker w: starts", "INFO engine w: loads", "WARNING worker w: is slow"]
    every.append("ERROR worker w: has given up")
    assert lines == {
        "debug": every,
        "info": every,
        "warning": every[2:],
        "error": every[3:],
    }
    marked = _all_lines(LogStyle(is_journal=True))
    assert [line[:3] for line in marked] == ["<6>", "<6>", "<4>", "<3>"]
    levels = [json.loads(line)["level"] for line in _all_lines(LogStyle("json", "warning"))]
    assert levels == ["warning", "error"]


def _all_lines(style: LogStyle) -> list[str]:
    stream = io.StringIO()
    log = WorkerLog("w", stream, style=style)
    log.info("starts")
    log.engine_line("loads")
    log.warning("is slow")
    log.error("has given up")
    log.close()
    return stream.getvalue().splitlines()


def test_a_level_of_a_librarys_own_is_marked_as_info() -> None:
    """The line is not lost."""
    assert LogStyle(is_journal=True).marked("level 25", "a line") == "<6>a line"
