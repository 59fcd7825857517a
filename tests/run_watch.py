"""A run of the tests as somebody sees it who waits for it: each failure is named as it happens, and
no process stays behind, however the run ends.

Every process of a run inherits a mark in its environment. When the run is over, also by SIGINT or
SIGTERM, what still has the mark is named and killed: engines and gateways that a test has started
and had no time to stop. Owns the mark; must not know what the tests do. Linux alone has /proc.

A process that gives itself a title writes it over its environment, mark included, unless
`SPT_NOENV` is set, a variable of setproctitle. So the watch sets it.
"""

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

MARK: Final = "HERMA_TEST_RUN"
KEEP_ENVIRONMENT: Final = "SPT_NOENV"


@pytest.hookimpl(trylast=True)  # behind the terminal's own
def pytest_configure(config: pytest.Config) -> None:
    """Watch in the process that was started by hand, of which those of xdist are children."""
    # A shell has its background jobs ignore SIGINT, and so would each process of a test.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    config.pluginmanager.register(RunWatch(reporter), "run-watch")


class RunWatch:
    """One run. `reporter` is pytest's, or None where nothing is printed."""

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter
        self._mark = f"{MARK}={secrets.token_hex(8)}"
        self._outer = os.environ.get(MARK)
        os.environ[MARK] = self._mark.partition("=")[2]
        os.environ.setdefault(KEEP_ENVIRONMENT, "1")
        # As SIGINT: a test that runs is left, fixtures are torn down. `timeout` sends it.
        self._was = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name a test that fails, and say why in a line; the end of the run shows it whole."""
        if not report.failed or self._reporter is None:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message.splitlines()[0] if crash is not None and crash.message else ""
        self._reporter.ensure_newline()
        self._reporter.write_line(f"FAILED {report.nodeid} ({report.when}) {why[:200]}", red=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Name and kill what is left of the run."""
        signal.signal(signal.SIGTERM, self._was)
        if self._outer is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = self._outer
        for pid, command in left_behind(self._mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if self._reporter is not None:
                self._reporter.write_line(f"left behind, killed: {pid} {command}", red=True)


def left_behind(mark: str) -> Iterator[tuple[int, str]]:
    """The process id and the command of each process but this one that has `mark`."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marks = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:  # it has ended, or belongs to somebody else
            continue
        if mark.encode() in marks and command and int(folder.name) != os.getpid():
            yield int(folder.name), command
