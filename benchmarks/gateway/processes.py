"""The processes of one measurement: a gateway, optionally a worker and the floor's server.

Starts them on loopback in a folder of their own, reads the kernel's accounts of them, and ends them
by their ids.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import msgspec

from benchmarks.gateway.job import LoadJob, LoadOutcome
from benchmarks.gateway.words import CLOUD_MODEL, MODEL, MODEL_DIR

READY_S: Final = 60.0
STOP_S: Final = 20.0
_POLL_S: Final = 0.002
_CPU_CLOCK: Final = 2
"""CPUCLOCK_SCHED of `clock_getcpuclockid`: all threads of a process, including ended ones."""


@dataclass(frozen=True, slots=True)
class MeasuredFleet:
    """The servers behind a gateway of `processes` processes: a synthetic worker at `pace`,
    optionally a provider. With a price each request to the provider is reserved on disk. The head
    of a stream is held for `head_hold_s`.
    """

    step_ms: float = 0.0
    max_seqs: int = 64
    provider_port: int | None = None
    has_price: bool = False
    processes: int = 1
    max_waiting: int = 4096
    head_hold_s: int = 10


@dataclass(frozen=True, slots=True)
class LinkKind:
    """How the worker reaches the gateway: `ipc`, a Unix socket, or `tcp`, ZeroMQ on loopback."""

    link: str = "ipc"

    def worker_bind(self, folder: Path) -> str:
        """The address where the gateway waits for the worker."""
        return f"ipc://{folder}/workers" if self.link == "ipc" else f"tcp://127.0.0.1:{free_port()}"


class Process:
    """A child whose output goes to a file, and what it keeps to the folder of that file: nothing of
    a measurement stays in the user's state. It is ended at the end of the block.
    """

    def __init__(
        self, command: list[str], log: Path, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={
                    **environ,
                    "HERMA_RUNTIME_DIR": str(log.parent),
                    "XDG_STATE_HOME": str(log.parent),
                },
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU time of the process and its descendants, including ended ones."""
        return sum(map(_cpu_s, _family(self.pid)))

    def memory_mb(self, field: str) -> float:
        """`VmHWM` (the peak) or `VmRSS` (now), with its descendants', in MB of a million bytes."""
        return sum(_memory_mb(pid, field) for pid in _family(self.pid))

    def num_descriptors(self) -> int:
        """The number of its open files and sockets."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def wait_for(self, probe: Callable[[], bool]) -> None:
        """Wait until `probe` succeeds. Raises `RuntimeError` at the process's end or a timeout."""
        deadline = time.monotonic() + READY_S
        while not probe():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"it did not get ready:\n{self.log.read_text()[-4000:]}")
            time.sleep(_POLL_S)

    def find(self, pattern: str) -> str | None:
        """The first group of `pattern` in its output so far."""
        found = re.search(pattern, self.log.read_text(errors="replace"))
        return None if found is None else found[1]

    def stop(self) -> None:
        """Terminate it, then kill it if necessary."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class MeasuredGateway(Process):
    """`herma gateway` on a free port, and the worker behind it."""

    worker: Process

    def __init__(
        self, folder: Path, fleet: MeasuredFleet, link_kind: LinkKind, python: str = sys.executable
    ) -> None:
        config = folder / "herma.toml"
        config.write_text(_config(folder, fleet, link_kind), encoding="utf-8")
        self.port = free_port()
        words = ("gateway", "--config", str(config), "--port", str(self.port))
        started_at = time.monotonic()
        super().__init__([python, "-m", "herma", *words], folder / "gateway.log", _of(python))
        self._num_processes = fleet.processes
        self.wait_for(self._is_started)
        self.start_s = time.monotonic() - started_at
        """Seconds from exec to the first 200."""

    def cpu_s_by_process(self) -> list[float]:
        """CPU time of each process that answers; the parent of several does not."""
        first, *children = _family(self.pid)
        serving = [first] if self._num_processes == 1 else children[: self._num_processes]
        return [_cpu_s(pid) for pid in serving]

    def cpu_s_by_part(self) -> dict[str, float]:
        """CPU time of the gateway, all its processes, of the supervisor and of the engine."""
        supervisor, *engine = map(_cpu_s, _family(self.worker.pid))
        return {"gateway": self.cpu_s(), "supervisor": supervisor, "engine": sum(engine)}

    def get(self, path: str) -> bytes | None:
        """The body of a 200; None for any other answer."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as reply:
                body: bytes = reply.read()
                return body
        except (URLError, ConnectionError):
            return None

    def is_serving(self) -> bool:
        """Whether the model is served."""
        if self._num_processes > 1:
            # The parent reports for all of them.
            return self.find(r"(?m)^ready (\S+)") is not None
        body = self.get("/health")
        return body is not None and msgspec.json.decode(body)["models"].get(MODEL) == "ready"

    def _is_started(self) -> bool:
        lines = self.log.read_text(errors="replace").count(" serving ")
        return lines == self._num_processes and self.get("/health") is not None


@contextmanager
def running(
    fleet: MeasuredFleet, link_kind: LinkKind, python: str = sys.executable
) -> Iterator[MeasuredGateway]:
    """A ready gateway with `fleet` behind it, of the Herma that `python` has. All processes end
    with the block.
    """
    with TemporaryDirectory(prefix="herma-bench-") as text, ExitStack() as stack:
        folder = Path(text)
        gateway = MeasuredGateway(folder, fleet, link_kind, python)
        stack.callback(gateway.stop)
        command = [python, "-m", "herma", "worker", "--config", str(folder / "herma.toml")]
        worker = Process(command, folder / "worker.log", _of(python))
        stack.callback(worker.stop)
        gateway.worker = worker
        worker.wait_for(gateway.is_serving)
        yield gateway


@contextmanager
def running_floor() -> Iterator[int]:
    """The floor's server; its port."""
    with TemporaryDirectory(prefix="herma-bench-") as folder:
        floor = Process(_module("benchmarks.gateway.floor"), Path(folder) / "floor.log")
        try:
            floor.wait_for(lambda: floor.find(r"^(\d+)\n") is not None)
            yield int(floor.find(r"^(\d+)\n") or 0)
        finally:
            floor.stop()


def drive(job: LoadJob, process: Process | None = None) -> tuple[LoadOutcome, float]:
    """Run `job` in a load generator. Returns the outcome and the CPU seconds that `process` used.

    Raises `RuntimeError` if the generator fails.
    """
    payload = msgspec.msgpack.encode(job)
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(len(payload).to_bytes(8, "little") + payload)
        child.stdin.flush()
        is_ready = child.stdout.readline() == b"ready\n"
        cpu_s = 0.0 if process is None else process.cpu_s()
        if is_ready:
            child.stdin.write(b"!")
            child.stdin.close()
        line = child.stdout.readline()
        used_s = 0.0 if process is None else process.cpu_s() - cpu_s
    if not line:
        raise RuntimeError(f"the load generator ended with {child.returncode}")
    return msgspec.json.decode(line, type=LoadOutcome), used_s


def _cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK)


def _memory_mb(pid: int, field: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def _family(pid: int) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            yield from _family(int(child))


def _of(python: str) -> Mapping[str, str]:
    """The environment of another Python, which must not find this checkout's modules first."""
    if python == sys.executable:
        return os.environ
    return {**os.environ, "PYTHONSAFEPATH": "1"}


def _module(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


def free_port() -> int:
    """A currently free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _config(folder: Path, fleet: MeasuredFleet, link_kind: LinkKind) -> str:
    text = f"""
[gateway]
worker_bind = "{link_kind.worker_bind(folder)}"
{"insecure_local = true" if link_kind.link == "tcp" else ""}
processes = {fleet.processes}
max_queue = {fleet.max_waiting}
disconnect_grace_s = 1
head_hold_s = {fleet.head_hold_s}

[ledger]
path = "{folder}/ledger.sqlite"

[[models]]
name = "{MODEL}"
"""
    if fleet.provider_port is not None:
        text += f"""
[[models]]
name = "{CLOUD_MODEL}"
fallback = [{{ provider = "floor", model = "up" }}]

[providers.floor]
base_url = "http://127.0.0.1:{fleet.provider_port}/v1"
{"price = { input = 1.0, output = 1.0 }" if fleet.has_price else ""}
"""
    return f"""{text}
[[workers]]
name = "w"
serves = "{MODEL}"
model = "{MODEL_DIR}"
engine = "synthetic"
step_ms = {fleet.step_ms}
max_seqs = {fleet.max_seqs}
token_budget = 16384
max_waiting = {fleet.max_waiting}
kv_tokens = 4194304
"""
