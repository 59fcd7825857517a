"""What is told of a dead engine: one line for people and its last log lines.

Owns the wording and the bounds. Must not know processes.
"""

import re
from collections.abc import Iterable
from typing import Final

from workers.supervisor.diagnosis import Diagnosis
from workers.supervisor.restart_policy import MAX_FAILED_STARTS

LAST_LINES: Final = 50
MAX_LINE_CHARS: Final = 500
MAX_CAUSE_CHARS: Final = 1000

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""Colours and cursor movements (ECMA-48): of no use in a log, and harmful on a terminal."""


def fault_cause(diagnosis: Diagnosis, *, worker: str, failed_starts: int, stops: bool) -> str:
    """What happened, what to do, and whether there will be another try."""
    text = one_line(diagnosis.cause)
    if diagnosis.remedy:
        text += f"; {diagnosis.remedy}"
    if stops:
        starts = "1 start" if failed_starts == 1 else f"{failed_starts} starts in a row"
        text += (
            f"; stopped after {starts} that never got ready: "
            f"correct the cause, then `herma worker restart {worker}`"
        )
    elif failed_starts:
        text += f" (failed start {failed_starts} of {MAX_FAILED_STARTS})"
    return text


def one_line(text: str) -> str:
    """Any text as one bounded line without control characters."""
    return clean_text(" ".join(text.split()))[:MAX_CAUSE_CHARS]


def clean_text(text: str) -> str:
    """`text` without colours; what else a terminal would obey is written as `\\x1b`."""
    shown = _ANSI.sub("", text)
    return "".join(
        each if each.isprintable() or each == "\t" else each.encode("unicode_escape").decode()
        for each in shown
    )


def clean_line(line: bytes) -> str:
    """A line of a log as it may be kept and shown: of a progress bar, the last state."""
    text = line.decode(errors="replace").rstrip()
    return clean_text(text.rpartition("\r")[2][: 4 * MAX_LINE_CHARS])[:MAX_LINE_CHARS]


def last_log(lines: Iterable[str]) -> tuple[str, ...]:
    """The last lines of a log, cut to what a message may carry."""
    return tuple(line[:MAX_LINE_CHARS] for line in lines)[-LAST_LINES:]
