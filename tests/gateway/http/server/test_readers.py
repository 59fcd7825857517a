"""One task reads for all: who fails, falls silent or sends too much is no matter to the others."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.http.server.connection import Readers


class _Recorder:
    """Reads a few bytes each time that it is called."""

    def __init__(self, connection: socket.socket, *, fails: bool = False) -> None:
        self.connection = connection
        self.fails = fails
        self.read_so_far = b""
        self.is_lost = False

    def read(self) -> None:
        if self.fails:
            raise RuntimeError("the inside")
        self.read_so_far += self.connection.recv(4)

    def lose(self) -> None:
        self.is_lost = True


class _Failing(_Recorder):
    def __init__(self, connection: socket.socket, readers: Readers) -> None:
        super().__init__(connection, fails=True)
        self._readers = readers

    def lose(self) -> None:
        super().lose()
        self._readers.drop(self.connection)


@asynccontextmanager
async def _running() -> AsyncIterator[tuple[Readers, list[tuple[socket.socket, socket.socket]]]]:
    pairs = [socket.socketpair() for _ in range(3)]
    for _, theirs in pairs:
        theirs.setblocking(False)
    with closing(Readers()) as readers:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readers.run)
            yield readers, pairs
            nursery.cancel_scope.cancel()
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


async def test_who_is_readable_is_read_until_nothing_is_left() -> None:
    """However little a reader takes at once, and beside others."""
    async with _running() as (readers, pairs):
        recorders = [_Recorder(theirs) for _, theirs in pairs]
        for recorder in recorders:
            readers.add(recorder.connection, recorder)
        for number, (ours, _) in enumerate(pairs):
            ours.send(b"%d" % number * 11)
        await wait_all_tasks_blocked()
        assert [recorder.read_so_far for recorder in recorders] == [b"0" * 11, b"1" * 11, b"2" * 11]


async def test_who_is_dropped_is_read_no_more_until_it_is_added() -> None:
    """The bytes that it sends meanwhile wait until it is added."""
    async with _running() as (readers, ((ours, theirs), *_)):
        recorder = _Recorder(theirs)
        readers.add(theirs, recorder)
        readers.drop(theirs)
        ours.send(b"ab")
        await wait_all_tasks_blocked()
        assert recorder.read_so_far == b""
        readers.add(theirs, recorder)
        await wait_all_tasks_blocked()
        assert recorder.read_so_far == b"ab"


async def test_a_failure_ends_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged and ends its own connection; the others are read on."""
    async with _running() as (readers, pairs):
        failing = _Failing(pairs[0][1], readers)
        others = [_Recorder(theirs) for _, theirs in pairs[1:]]
        for reader in (failing, *others):
            readers.add(reader.connection, reader)
        for ours, _ in pairs:
            ours.send(b"abcdefgh")
        await wait_all_tasks_blocked()
        assert failing.is_lost
        assert [other.read_so_far for other in others] == [b"abcdefgh"] * 2
        assert not any(other.is_lost for other in others)
    assert len(caplog.records) == 1
