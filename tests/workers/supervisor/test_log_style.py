"""The form of the supervisor's lines, and which are left out."""

import io
import json

from housekeeping.log_lines import LogStyle
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


def test_from_warning_on_the_engine_is_silent() -> None:
    """From level warning on the engine's lines, which have no level, are left out; lines of the
    supervisor are rare.
    """
    assert len(lines_of(LogStyle(level="warning"))) == 1
