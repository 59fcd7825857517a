"""The control socket of a process, asked over its real socket file."""

import resource
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from housekeeping.audit import Act
from protocol.control_messages import Answer, Ask, AskReload, AskStatus, Done, Refused
from protocol.errors import ConfigError
from protocol.transport import ControlSocket, ask_control
from protocol.transport.control_socket import remove_socket


@contextmanager
def _no_descriptors() -> Iterator[None]:
    """No file can be opened within the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        lowest = stack.enter_context(socket.socket()).fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short name, because the path of a socket has 107 bytes at most."""
    with TemporaryDirectory() as name:
        monkeypatch.setenv("HERMA_RUNTIME_DIR", name)
        yield Path(name)


async def _answer(ask: Ask) -> Answer:
    if isinstance(ask, AskReload):
        raise ConfigError("there is no file")
    return Done(epoch=7)


async def test_a_request_is_answered_and_an_act_is_noted(folder: Path) -> None:
    """What only reads leaves no act; a refusal is an act too."""
    acts: list[Act] = []
    control = ControlSocket("gateway", _answer, acts.append)
    assert control.path.parent == folder
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        assert await ask_control(control.path, AskStatus()) == Done(epoch=7)
        assert not acts
        assert isinstance(await ask_control(control.path, AskReload()), Refused)
        assert [(act.act, act.result) for act in acts] == [("reload", "refused: there is no file")]
        nursery.cancel_scope.cancel()
    assert not control.path.exists()


async def test_a_process_without_descriptors_answers_later(folder: Path) -> None:
    """Accepting fails while the process has none left; the process goes on."""
    control = ControlSocket("gateway", _answer, lambda _act: None)
    assert control.path.parent == folder
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        client = socket.socket(socket.AF_UNIX)
        with _no_descriptors():
            client.connect(str(control.path))
            await wait_all_tasks_blocked(cushion=0.01)
        client.setblocking(False)
        async with trio.SocketStream(trio.socket.from_stdlib_socket(client)) as stream:
            await stream.send_all(b'{"type":"status"}\n')
            assert b'"epoch":7' in await stream.receive_some()
        nursery.cancel_scope.cancel()


def _take_away(folder: Path) -> None:
    """Remove the folder, and leave no place for another one."""
    shutil.rmtree(folder)
    folder.symlink_to("/nowhere/at/all")


async def test_a_socket_file_that_is_gone_is_made_again(
    folder: Path, autojump_clock: MockClock
) -> None:
    """A socket file that is gone is made again, with its folder, as when the user's last session
    ends; without it no reload would be possible.
    """
    control = ControlSocket("gateway", _answer, lambda _act: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        assert await ask_control(control.path, AskStatus()) == Done(epoch=7)
        _take_away(folder)
        await trio.sleep(60)
        remove_socket(folder)
        await trio.sleep(60)
        assert await ask_control(control.path, AskStatus()) == Done(epoch=7)
        nursery.cancel_scope.cancel()
    assert not control.path.exists()
