"""The form and the level of the gateway's log, in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from housekeeping.log_lines import LogStyle, log_style
from protocol.errors import ConfigError

PROGRAM = """
import logging, sys
from gateway.process_log import start_log
from gateway.telemetry import EventFeed
from gateway.telemetry.fleet_events import WorkerLost
from housekeeping.log_lines import log_style
import os
start_log(" [0/2]", log_style(os.environ))
logging.getLogger("gateway.x").info("it starts")
logging.getLogger("gateway.x").warning("it wobbles")
feed = EventFeed()
feed.publish(WorkerLost("gpu0", "silent"))
try:
    raise ValueError("in a trace")
except ValueError:
    logging.getLogger("gateway.x").exception("it broke")
"""


def lines_of(**environ: str) -> list[str]:
    argv = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        argv, env=environ, capture_output=True, text=True, timeout=300, check=True
    )
    return done.stderr.splitlines()


def test_without_a_form_lines_are_text_and_events_json() -> None:
    """Without a format option lines are text and events JSON, as programs read them since the first
    version.
    """
    lines = lines_of()
    assert lines[0].endswith("INFO [0/2] it starts")
    assert json.loads(lines[2])["worker"] == "gpu0"


def test_in_text_events_are_sentences() -> None:
    lines = lines_of(HERMA_LOG_FORMAT="text")
    assert lines[2].endswith("WARNING [0/2] gpu0 is gone: silent")
    assert not any(line.startswith("{") for line in lines)


def test_in_json_each_line_is_an_object() -> None:
    """A traceback too, in one line."""
    found = [json.loads(line) for line in lines_of(HERMA_LOG_FORMAT="json")]
    assert [one.get("text", "").partition("\n")[0] for one in found] == [
        "it starts",
        "it wobbles",
        "",
        "it broke",
    ]
    assert found[0]["source"] == "gateway [0/2]"
    assert found[2]["worker"] == "gpu0"
    assert "ValueError: in a trace" in found[3]["text"]


@pytest.mark.parametrize("form", ["", "text", "json"])
def test_the_journal_knows_the_level_of_each_line(form: str) -> None:
    """Only where stderr is what systemd has connected with it: a redirection gets lines alone."""
    reader, writer = os.pipe()
    found = os.fstat(writer)
    stream = f"{found.st_dev}:{found.st_ino}"
    environ = {"JOURNAL_STREAM": stream, "HERMA_LOG_FORMAT": form}
    argv = [sys.executable, "-c", PROGRAM]
    subprocess.run(argv, env=environ, stderr=writer, timeout=300, check=True)
    os.close(writer)
    with os.fdopen(reader) as lines:
        marks = [line[:3] for line in lines]
    assert marks[:3] == ["<6>", "<4>", "<4>"]
    assert {*marks[3:]} == {"<3>"}
    assert not any(line.startswith("<") for line in lines_of(**environ))


def test_a_level_holds_for_events_too() -> None:
    words = [line.rpartition("] ")[2] for line in lines_of(HERMA_LOG_LEVEL="warning")]
    assert "it starts" not in words
    assert "it wobbles" in words
    (line,) = lines_of(HERMA_LOG_LEVEL="error", HERMA_LOG_FORMAT="text")[:1]
    assert line.endswith("it broke")


@pytest.mark.parametrize("variable", ["HERMA_LOG_FORMAT", "HERMA_LOG_LEVEL"])
def test_an_unknown_word_is_refused(variable: str) -> None:
    assert log_style({}) == LogStyle()
    with pytest.raises(ConfigError, match=f"{variable} is 'loud'"):
        log_style({variable: "loud"})
