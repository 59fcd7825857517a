"""A running `herma up` for end-to-end tests: real processes, real sockets, free ports."""

import os
import queue
import re
import secrets
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from tests.run_watch import left_behind

T = TypeVar("T")

READY_S = 120.0
GIVEN_UP_S = 5.0
NO_WORKER_STARTS = "not ready, and no worker is starting: "
STOP_S = 120.0
POLL_S = 0.05
REST = 0.1
"""For looks that cost something: one at the metrics costs the gateway 3 ms of a processor, and 20 a
second more than its whole start while an engine loads on a busy machine."""
MARK = "HERMA_TEST_UP"
"""Processes of one `herma up` have this variable in common."""

OURS = (sys.executable, "-m", "herma")


class HermaProcess:
    """`herma up` as a child; `base_url` ends in `/v1`. `trust` is for one that speaks TLS."""

    def __init__(
        self,
        config: Path | None,
        env: dict[str, str],
        port: int = 0,
        argv: Sequence[str] = OURS,
    ) -> None:
        words = [*argv, "up", "--port", str(port)]
        if config is not None:
            words += ["--config", str(config)]
        self._mark = f"{MARK}={secrets.token_hex(8)}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", name: value, **env},
        )
        self.output: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._pump_thread = threading.Thread(target=self._pump, daemon=True)
        self._pump_thread.start()
        self.base_url = ""
        self.trust: ssl.SSLContext | None = None

    @property
    def root_url(self) -> str:
        return self.base_url.removesuffix("/v1")

    def stop(self) -> int:
        """Ask it to stop, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def pids(self, title: str) -> list[int]:
        """Pids of this process's descendants whose process title starts with `title`."""
        return [pid for pid in descendants(self.process.pid) if title_of(pid).startswith(title)]

    def wait_pid(self, title: str, *, other_than: int = 0) -> int:
        """The pid of the descendant titled `title`, once there is one that is not `other_than`."""
        return wait_until(
            lambda: next((pid for pid in self.pids(title) if pid != other_than), None), title
        )

    def metrics(self) -> dict[str, float]:
        """The samples of `/metrics` by name and labels."""
        url = f"{self.root_url}/metrics"
        with urllib.request.urlopen(url, timeout=30, context=self.trust) as reply:
            text = reply.read().decode()
        samples = (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
        return {name: float(value) for name, _, value in samples}

    def wait_models_ready(self, num_workers: dict[str, int]) -> None:
        """Return once each model has so many ready workers."""

        def ready() -> bool:
            samples = self.metrics()
            return all(
                samples.get(f'herma_workers{{model="{model}",state="ready"}}', 0) >= count
                for model, count in num_workers.items()
            )

        wait_until(ready, f"ready workers {num_workers}", rest=REST)

    def _pump(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.output.append(line)
                self._lines.put(line)
        self._lines.put(None)

    def close(self) -> None:
        """Kill the remaining processes, also those that have lost their parent and would hold the
        output open.
        """
        for pid, _ in left_behind(self._mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._pump_thread.join()

    def wait_ready(self) -> str:
        """The URL of the `ready` line, once it is printed. Fails after `READY_S`, or soon after all
        workers have given up: a worker that dials in late is ready within `GIVEN_UP_S`.
        """
        deadline, why = time.monotonic() + READY_S, f"herma up was not ready after {READY_S:g} s"
        try:
            while (line := self._lines.get(timeout=deadline - time.monotonic())) is not None:
                if match := re.match(r"ready (https?://\S+)", line):
                    return match[1]
                if NO_WORKER_STARTS in line:
                    deadline, why = min(deadline, time.monotonic() + GIVEN_UP_S), line.strip()
        except (queue.Empty, ValueError) as late:
            text = f"{why}\n" + "".join(self.output[-100:])
            raise AssertionError(text) from late
        raise AssertionError("herma up ended before it was ready:\n" + "".join(self.output))


@contextmanager
def herma_up(
    config: Path | None, *, port: int = 0, argv: Sequence[str] = OURS, **env: str
) -> Iterator[HermaProcess]:
    """`herma up` for the length of the block; whatever is left of it afterwards is killed. `argv`
    are the first words of Herma's commands.
    """
    with TemporaryDirectory() as state:
        yield from _herma_up(config, {"XDG_STATE_HOME": state, **env}, port, argv)


def _herma_up(
    config: Path | None, env: dict[str, str], port: int, argv: Sequence[str]
) -> Iterator[HermaProcess]:
    herma = HermaProcess(config, env, port, argv)
    try:
        herma.base_url = herma.wait_ready()
        yield herma
        herma.stop()
    finally:
        herma.close()


def wait_until(
    probe: Callable[[], T], what: str, *, timeout_s: float = READY_S, rest: float = 0.0
) -> T:
    """Poll `probe` until it gives something true; fail with `what` after `timeout_s`. For what
    stays true, `rest` is the share of the time waited so far to the next look, a second at most.
    """
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < timeout_s:
        if found := probe():
            return found
        time.sleep(min(1.0, max(POLL_S, rest * waited)))
    raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")


def descendants(pid: int) -> list[int]:
    """The children of `pid`, their children, and so on."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, _read(task).split()):
            found += [child, *descendants(child)]
    return found


def title_of(pid: int) -> str:
    """The process title of `pid`, "" once it is gone or a zombie."""
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()


def rss_bytes(pid: int) -> int:
    """The resident memory of `pid`."""
    pages = int(_read(Path(f"/proc/{pid}/statm")).split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
