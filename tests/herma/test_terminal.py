"""Tables and bars, to a terminal and to a pipe."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from herma.terminal import table_lines

ROWS = [["NAME", "N", "NOTES"], ["gpu0 [x] :smile:", "1,234", "a"], [], ["b", "1"]]
DRAW = """
import sys
from herma.terminal import step_bar, table_lines
print("\\n".join(table_lines([["NAME", "NOTES"], ["漢字", "word " * 16], ["[b]", "x"]])))
with step_bar(sys.stdout) as show:
    show("loading [weights]", 0.25, "5 of 20 GB")
print("end")
"""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_a_pipe_gets_lines_as_wide_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """What looks like markup or an emoji is text; a row may end early; an empty one is a rule."""
    assert table_lines(ROWS, right=range(1, 2)) == [
        "NAME                  N  NOTES",
        "gpu0 [x] :smile:  1,234  a",
        "----------------  -----  -----",
        "b                     1",
    ]
    long = "word " * 400 + "end"
    assert table_lines([["A", "B"], [long, "b"]])[1] == f"{long}  b"


def _shown(**environ: str) -> str:
    """What `DRAW` shows on a terminal of 60 columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    process = subprocess.Popen(
        [sys.executable, "-c", DRAW],
        stdin=slave,
        stdout=slave,
        env={**kept, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environ},
    )
    os.close(slave)
    text = b"".join(_read(master))
    assert process.wait() == 0
    return text.decode()


def _read(master: int) -> Iterator[bytes]:
    try:
        while part := os.read(master, 65_536):
            yield part
    except OSError:
        pass  # the end of a terminal that nobody writes to any more
    finally:
        os.close(master)


def test_a_terminal_gets_styles_and_breaks_within_columns() -> None:
    """A long cell goes on below itself; the bar is gone at the end."""
    text = _shown()
    assert "\x1b[1m" in text
    lines = _ESCAPE.sub("", text).split("\r\n")
    assert [line.rstrip() for line in lines[:4]] == [
        "NAME  NOTES",
        f"漢字  {'word ' * 11}".rstrip(),
        f"      {'word ' * 5}".rstrip(),
        "[b]   x",
    ]
    assert re.search(r"loading \[weights\] [━╸╺ ]+25% 5 of 20 GB", _ESCAPE.sub("", text))
    assert text.rstrip().endswith("end")


def test_without_colours_a_terminal_gets_no_style() -> None:
    """By the rule of no-color.org; a terminal that knows nothing gets no movement either."""
    assert not re.search(r"\x1b\[[0-9;]*m", _shown(NO_COLOR="1"))
    assert "\x1b[1m" in _shown(NO_COLOR="")
    assert "\x1b" not in _shown(TERM="dumb")


def test_what_serves_draws_nothing() -> None:
    """Neither a gateway nor a worker nor their parent imports rich, which costs 0.1 s."""
    code = (
        "import sys, gateway.app, workers.__main__, workers.supervisor\n"
        "import herma.cli, herma.commands.gateway, herma.commands.up, herma.commands.worker\n"
        "assert 'rich' not in sys.modules, 'rich'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
