"""The protocol of sd_notify, at a real socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from housekeeping.service_manager import ServiceManager


@pytest.fixture
def end(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as bound:
        bound.bind(str(tmp_path / "notify"))
        yield bound


def said(end: socket.socket) -> list[str]:
    """All datagrams so far."""
    found: list[str] = []
    while True:
        try:
            found.append(end.recv(4096).decode())
        except BlockingIOError:
            return found


def test_ready_and_stopping(end: socket.socket) -> None:
    """The variables are gone afterwards: children must not speak for the service."""
    environ = {"NOTIFY_SOCKET": end.getsockname(), "WATCHDOG_USEC": "60000000", "HOME": "/"}
    manager = ServiceManager.take(environ)
    assert environ == {"HOME": "/"}
    manager.ready("serving\nhere")
    manager.stopping()
    assert said(end) == ["READY=1\nSTATUS=serving here", "STOPPING=1"]


def test_a_watchdog_for_another_process_is_not_ours() -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "2", "WATCHDOG_PID": str(os.getpid())}
    assert ServiceManager.take(dict(environ)).watchdog_s == 2e-6
    assert ServiceManager.take({**environ, "WATCHDOG_PID": "1"}).watchdog_s is None


async def test_signs_of_life(end: socket.socket, autojump_clock: MockClock) -> None:
    """Twice in the time of the watchdog; the status when it changes."""
    manager = ServiceManager(end.getsockname(), 60.0)
    status = "loading"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.keep_alive, lambda: status)
        await trio.sleep(31)
        assert said(end) == ["WATCHDOG=1\nSTATUS=loading"]
        await trio.sleep(30)
        status = "ready"
        await trio.sleep(30)
        assert said(end) == ["WATCHDOG=1", "WATCHDOG=1\nSTATUS=ready"]
        nursery.cancel_scope.cancel()


async def test_without_a_manager_keep_alive_returns_at_once(autojump_clock: MockClock) -> None:
    manager = ServiceManager.take({})
    manager.ready("x")
    began_at = trio.current_time()
    with trio.fail_after(60):
        await manager.keep_alive()
    assert trio.current_time() == began_at


def test_an_abstract_address(capfd: pytest.CaptureFixture[str]) -> None:
    """A name with @; a manager that is gone is one line, once."""
    name = f"herma-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as bound:
        bound.bind(f"\0{name}")
        manager = ServiceManager(f"@{name}")
        manager.stopping()
        assert said(bound) == ["STOPPING=1"]
    manager.stopping()
    manager.stopping()
    assert capfd.readouterr().err.count("no service manager at @herma-test") == 1
