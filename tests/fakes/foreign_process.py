"""A stub of somebody else's engine as a process of its own, and the words that start one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from protocol.errors import HttpError
from protocol.transport import HttpClient
from tests.fakes.ports import free_ports
from tests.fakes.worker_process import BOUND_S, WorkerProcess, worker_process

JSON = [(b"content-type", b"application/json")]


def stub_argv(address: str, **settings: Any) -> list[str]:
    """The command line of a stub at a port or a path."""
    return [sys.executable, "-m", "tests.fakes.foreign_engine", address, json.dumps(settings)]


class ForeignProcess:
    """A running stub that no worker has started."""

    def __init__(self, address: str, settings: dict[str, Any]) -> None:
        self.address = address
        self.settings = settings
        self.process = self._spawn()

    @property
    def url(self) -> str:
        is_path = self.address.startswith("/")
        return f"unix:{self.address}" if is_path else f"http://127.0.0.1:{self.address}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.process = self._spawn()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        argv = stub_argv(self.address, **self.settings)
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL)


@contextmanager
def foreign_process(address: str | None = None, **settings: Any) -> Iterator[ForeignProcess]:
    """One stub for the length of the block."""
    stub = ForeignProcess(address or str(free_ports(1)), settings)
    try:
        yield stub
    finally:
        stub.kill()


@contextmanager
def holding_worker(folder: Path, *gateways: str) -> Iterator[tuple[WorkerProcess, ForeignProcess]]:
    """A worker for `echo`, and its engine, which stops within an answer of more than 20 tokens
    until `change(engine.url, hold_after=None)`.
    """
    with foreign_process(hold_after=20) as engine:
        keys = {"engine": "vllm", "model": "builtin:herma-tiny", "probe_context": 0}
        with worker_process(folder, *gateways, url=engine.url, **keys) as worker:
            yield worker, engine


async def told(url: str) -> dict[str, Any]:
    """What the stub at `url` was asked, once it answers."""
    return await _stub(url, "GET", b"")


async def change(url: str, **settings: Any) -> None:
    """Have it break from now on, or no longer."""
    await _stub(url, "POST", msgspec.json.encode(settings))


async def wait_told(url: str, accepts: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the stub tells, once `accepts` takes it."""
    with trio.fail_after(BOUND_S):
        while not accepts(answer := await told(url)):  # noqa: ASYNC110 (another process)
            await trio.sleep(0.02)
    return answer


async def _stub(url: str, method: str, body: bytes) -> Any:
    path = url.removeprefix("unix:") if url.startswith("unix:") else None
    client = HttpClient(url if path is None else "http://localhost", uds=path)
    with trio.fail_after(BOUND_S):
        while True:
            try:
                async with client.exchange(method, "/stub", JSON, body) as response:
                    data = b"".join([part async for part in response.body])
                    return msgspec.json.decode(data)
            except HttpError:
                await trio.sleep(0.02)
            finally:
                client.close()


def pids_of(address: str) -> list[int]:
    """The stubs at that address, whoever started them."""
    found: list[int] = []
    for path in Path("/proc").iterdir():
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"tests.fakes.foreign_engine" in words and address.encode() in words:
            found.append(int(path.name))
    return found


def kill_launched(address: str) -> None:
    """kill -9 of the stub that a worker has launched."""
    (pid,) = pids_of(address)
    os.kill(pid, signal.SIGKILL)
