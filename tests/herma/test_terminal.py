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
from pathlib import Path

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
WORK = """
import signal, sys, pathlib
from herma.terminal import busy
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with busy("fetching [wheels]"):
    sys.stdin.read()
pathlib.Path(sys.argv[1]).write_text("done")
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


def test_a_narrow_terminal_leaves_out_columns_before_it_folds_cells() -> None:
    """The table leaves out as few columns as fit, in their order; a pipe gets all columns."""
    rows = [["NAME", "STATE", "PHASE", "PID"], ["w" * 30, "ready", "-", "1" * 16], ["v", "down"]]
    lines = f"table_lines({rows}, spare=spare)"
    draw = "from herma.terminal import table_lines\nfor spare in [], ['PHASE', 'PID']:\n"
    process, master = _on_terminal(f"{draw}    print(*{lines}, sep='\\n')")
    shown = _ESCAPE.sub("", b"".join(_read(master)).decode()).split("\r\n")
    process.communicate()
    assert [line.split() for line in shown if "NAME" in line] == [
        ["NAME", "STATE", "PHASE", "PID"],
        ["NAME", "STATE", "PID"],
    ]
    assert f"{'w' * 30}  ready  {'1' * 16}" in shown
    assert "PHASE" in table_lines(rows, spare=["PHASE"])[0]


def _on_terminal(*words: str, **environ: str) -> tuple["subprocess.Popen[bytes]", int]:
    """A Python that runs `words` on a terminal of 60 columns, and the terminal's other end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    process = subprocess.Popen(
        [sys.executable, "-c", *words],
        stdin=subprocess.PIPE,
        stdout=slave,
        env={**kept, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environ},
    )
    os.close(slave)
    return process, master


def _shown(**environ: str) -> str:
    """What `DRAW` shows."""
    process, master = _on_terminal(DRAW, **environ)
    text = b"".join(_read(master))
    process.communicate()
    assert process.returncode == 0
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
    """By the rule of no-color.org a terminal without colours gets no style; a terminal without any
    abilities gets no moving bar either.
    """
    assert not re.search(r"\x1b\[[0-9;]*m", _shown(NO_COLOR="1"))
    assert "\x1b[1m" in _shown(NO_COLOR="")
    assert "\x1b" not in _shown(TERM="dumb")


@pytest.mark.parametrize("is_lost", [False, True])
def test_work_goes_on_whatever_becomes_of_the_terminal(tmp_path: Path, is_lost: bool) -> None:
    """A long step shows that it goes on; nothing is left of it, and it ends without a terminal."""
    process, master = _on_terminal(WORK, str(tmp_path / "ended"))
    seen = b""
    while b"fetching [wheels]" not in seen or b"0:00:" not in seen:
        seen += os.read(master, 65_536)
    if is_lost:
        os.close(master)
    process.communicate()
    assert process.returncode == 0
    assert (tmp_path / "ended").read_text() == "done"
    if not is_lost:
        assert b"\x1b[2K" in b"".join(_read(master))


def test_what_serves_draws_nothing() -> None:
    """Processes that serve draw nothing: the gateway, the worker and their parent do not import
    rich, which takes 0.1 s.
    """
    code = (
        "import sys, gateway.app, workers.__main__, workers.supervisor\n"
        "import herma.cli, herma.commands.gateway, herma.commands.up, herma.commands.worker\n"
        "assert 'rich' not in sys.modules, 'rich'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_in_a_table_cannot_steer_the_terminal() -> None:
    """Clients name their conversations."""
    name = "a\x1b[31m\r\nb\x85\u202ec"
    assert table_lines([["NAME"], [name]])[1] == "a?[31m??b??c"
