"""Links within a machine keep the promises of all links, and notice an end at once."""

import errno
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import zmq
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError, LinkFull, PeerUnknown, WireError
from protocol.ids import WorkerId
from protocol.transport import MAX_BACKLOG_BYTES, LocalDealer, LocalRouter, local_router
from protocol.transport.frame_stream import HEADER, FrameStream
from protocol.transport.local_socket import MAGIC, unlink
from protocol.wire import MAX_FRAME_BYTES, LengthDecoder
from tests.fakes.links import fresh_id, raw_socket, until

CHUNK = bytes(64 * 1024)


class Gateway:
    """A router that keeps what it was given."""

    def __init__(self, address: str) -> None:
        self.frames: list[tuple[WorkerId, bytes]] = []
        self.gone: list[WorkerId] = []
        self.then: Callable[[WorkerId, bytes], None] = lambda _peer, _frame: None
        self.router = LocalRouter(self._take, self.gone.append)
        self.address = self.router.bind(address)

    def _take(self, peer: WorkerId, frame: bytes) -> None:
        self.frames.append((peer, frame))
        self.then(peer, frame)


class Worker:
    """A dealer that keeps what it was given."""

    def __init__(self, address: str, identity: WorkerId | None = None) -> None:
        self.identity = identity or fresh_id()
        self.frames: list[bytes] = []
        self.changes: list[bool] = []
        self.dealer = LocalDealer(self.identity, self.frames.append, on_link=self.changes.append)
        self.dealer.connect(address)


@pytest.fixture(name="address")
def _address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/herma.sock"


@asynccontextmanager
async def linked(address: str) -> AsyncIterator[tuple[Gateway, Worker, trio.Nursery]]:
    """A gateway and a worker that is connected."""
    gateway, worker = Gateway(address), Worker(address)
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.router.run)
        await nursery.start(worker.dealer.run)
        await until(lambda: worker.identity in gateway.router._streams and worker.changes)
        yield gateway, worker, nursery
        nursery.cancel_scope.cancel()


def raw_client(address: str) -> socket.socket:
    """A plain connection."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(address.removeprefix("ipc://"))
    return client


def fill(router: LocalRouter, peer: WorkerId) -> int:
    """Send numbered frames until the link is full; how many it took."""
    for number in range(10_000):
        try:
            router.send(peer, b"%06d" % number + CHUNK)
        except LinkFull:
            return number
    raise AssertionError("the link never fills")


async def test_frames_come_in_order_both_ways(address: str) -> None:
    """Frames of any size, empty ones too, arrive in order both ways, as many as were sent."""
    async with linked(address) as (gateway, worker, _):
        sent = [bytes([n % 251]) * (n * 37 % 5000) for n in range(500)]
        for frame in sent:
            worker.dealer.send(frame)
            gateway.router.send(worker.identity, frame)
        await until(lambda: len(gateway.frames) == len(worker.frames) == len(sent))
        assert gateway.frames == [(worker.identity, frame) for frame in sent]
        assert worker.frames == sent
        assert gateway.router.statistics().received == worker.dealer.statistics().sent == len(sent)


async def test_frames_that_are_sent_together_are_frames(address: str) -> None:
    """One by one at the other end, in order: small ones, large ones, and on a link that is stuck;
    one that is too large ends the row.
    """
    async with linked(address) as (gateway, worker, _):
        rows = [[b"a", b"", b"c" * 9], [CHUNK, b"x" + CHUNK, CHUNK * 4], [b"one"], [CHUNK] * 40]
        rows += [[b"stuck", b"too"], []]
        for row in rows:
            gateway.router.send_all(worker.identity, row)
        with pytest.raises(WireError):
            gateway.router.send_all(worker.identity, [b"last", bytes(MAX_FRAME_BYTES + 1), b"no"])
        sent = [frame for row in rows for frame in row] + [b"last"]
        await until(lambda: len(worker.frames) == len(sent))
        assert worker.frames == sent
        assert gateway.router.statistics().sent == len(sent)


async def test_the_largest_frame_passes_and_a_larger_one_is_refused(address: str) -> None:
    """A model's files pass; what the peer would not take is an error of the sender."""
    async with linked(address) as (gateway, worker, _):
        worker.dealer.send(bytes(MAX_FRAME_BYTES))
        worker.dealer.send(b"after")
        with pytest.raises(WireError):
            worker.dealer.send(bytes(MAX_FRAME_BYTES + 1))
        with pytest.raises(WireError):
            gateway.router.send(worker.identity, bytes(MAX_FRAME_BYTES + 1))
        await until(lambda: len(gateway.frames) == 2)
        assert len(gateway.frames[0][1]) == MAX_FRAME_BYTES
        assert gateway.frames[1][1] == b"after"


async def test_who_is_not_there_is_unknown(address: str) -> None:
    """A peer that is not there is unknown at once, and the link stays usable."""
    async with linked(address) as (gateway, worker, _):
        with pytest.raises(PeerUnknown, match="00000000"):
            gateway.router.send(WorkerId(bytes(16)), b"lost")
        gateway.router.send(worker.identity, b"found")
        await until(lambda: worker.frames == [b"found"])


async def test_an_end_is_told_after_the_last_frame(address: str) -> None:
    """A worker that says something and dies: both are heard, in that order, without a ping."""
    async with linked(address) as (gateway, worker, _):
        worker.dealer.send(b"bye")
        worker.dealer.close()
        await until(lambda: gateway.gone == [worker.identity])
        assert gateway.frames == [(worker.identity, b"bye")]
        with pytest.raises(PeerUnknown):
            gateway.router.send(worker.identity, b"are you there")
        with pytest.raises(PeerUnknown):
            worker.dealer.send(b"closed")


async def test_a_link_that_is_not_read_is_full_and_keeps_what_it_took(address: str) -> None:
    """Over 8 MiB nothing more is taken; what was taken arrives whole once it is read."""
    gateway = Gateway(address)
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.router.run)
        with raw_client(address) as client:
            identity = fresh_id()
            client.sendall(MAGIC + identity)
            await until(lambda: identity in gateway.router._streams)
            num_taken = fill(gateway.router, identity)
            waiting = gateway.router.statistics().waiting_bytes
            assert MAX_BACKLOG_BYTES - 2 * len(CHUNK) < waiting < MAX_BACKLOG_BYTES + 2 * len(CHUNK)
            decoder, frames = LengthDecoder(HEADER), list[bytes]()
            assert client.recv(len(MAGIC)) == MAGIC
            while len(frames) < num_taken:
                data = await trio.to_thread.run_sync(client.recv, 1 << 20)
                frames += [frame for _, frame in decoder.feed(data)]
            assert frames == [b"%06d" % n + CHUNK for n in range(num_taken)]
        nursery.cancel_scope.cancel()


async def test_what_waits_can_be_forgotten_without_breaking_the_stream(address: str) -> None:
    """A frame of which a part is out is completed; the rest is never sent."""
    async with linked(address) as (gateway, worker, _):
        for number in range(64):
            gateway.router.send(worker.identity, bytes([number]) + CHUNK)
        num_dropped = gateway.router.disconnect_peer(worker.identity)
        assert num_dropped > 0
        gateway.router.send(worker.identity, b"farewell")
        await until(lambda: worker.frames[-1:] == [b"farewell"])
        num_sent = 64 - num_dropped
        assert worker.frames[:-1] == [bytes([number]) + CHUNK for number in range(num_sent)]


async def test_a_second_connection_takes_the_place_of_the_first(address: str) -> None:
    """A worker that dials again is served there, and none is reported as gone."""
    async with linked(address) as (gateway, worker, nursery):
        again = Worker(address, worker.identity)
        await nursery.start(again.dealer.run)
        await until(lambda: again.changes == [True] and False in worker.changes)
        worker.dealer.close()
        gateway.router.send(worker.identity, b"hello")
        await until(lambda: again.frames == [b"hello"])
        assert gateway.gone == []


async def test_a_gateway_that_comes_back_is_found(address: str) -> None:
    """The loss is told at once, dialling goes on, and what waits can be dropped before."""
    async with linked(address) as (gateway, worker, nursery):
        gateway.router.close()
        await until(lambda: worker.changes == [True, False])
        worker.dealer.send(b"waits")
        assert worker.dealer.statistics().waiting_frames == 1
        successor = Gateway(address)
        await nursery.start(successor.router.run)
        await until(lambda: successor.frames == [(worker.identity, b"waits")])
        assert worker.changes == [True, False, True]
        successor.router.close()


async def test_strangers_are_counted_and_harm_nobody(address: str) -> None:
    """Wrong first bytes, an early end and a length over the limit cost only their connection."""
    async with linked(address) as (gateway, worker, _):
        for first in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f", MAGIC + b"short"):
            with raw_client(address) as client:
                client.sendall(first)
        await until(lambda: gateway.router.statistics().foreign == 3)
        with raw_client(address) as client:
            client.sendall(MAGIC + bytes(16) + struct.pack("<I", MAX_FRAME_BYTES + 1))
            await until(lambda: gateway.gone == [bytes(16)])
        worker.dealer.send(b"still here")
        await until(lambda: gateway.frames == [(worker.identity, b"still here")])


async def test_a_listener_that_is_no_gateway_is_named(address: str) -> None:
    """A worker that reaches ZeroMQ, which an older gateway speaks there, says so."""
    with raw_socket(zmq.ROUTER) as router:
        router.bind(address)
        worker = Worker(address)
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.dealer.run)
            await until(lambda: worker.dealer.statistics().last_failure)
            assert "no gateway" in (worker.dealer.statistics().last_failure or "")
            nursery.cancel_scope.cancel()
    assert worker.changes == []


async def test_unread_frames_are_known(address: str) -> None:
    """`is_behind` tells them from silence, in the socket and in the middle of a burst."""
    async with linked(address) as (gateway, worker, _):
        seen: list[bool] = []
        gateway.then = lambda _peer, _frame: seen.append(gateway.router.is_behind())
        assert not gateway.router.is_behind()
        worker.dealer.send(b"unread")
        assert gateway.router.is_behind()
        await until(lambda: gateway.frames)
        assert seen == [True]
        assert not gateway.router.is_behind()


async def test_a_callback_may_close_the_link(address: str) -> None:
    """A callback may close the link: nothing is delivered after it, and `run` ends."""
    async with linked(address) as (gateway, worker, nursery):
        gateway.then = lambda _peer, _frame: gateway.router.close()
        worker.dealer.send(b"one")
        worker.dealer.send(b"two")
        await until(lambda: worker.changes == [True, False])
        assert gateway.frames == [(worker.identity, b"one")]
        nursery.cancel_scope.cancel()


def test_the_path_is_taken_once_and_left_clean(address: str) -> None:
    """A living listener is not robbed, a dead one's file is no hindrance, and ours goes."""
    path = Path(address.removeprefix("ipc://"))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    first = Gateway(address)
    with pytest.raises(ConfigError, match="already taken"):
        Gateway(address)
    first.router.close()
    assert not path.exists()
    path.write_text("not a socket")
    with pytest.raises(ConfigError, match="a file that is no socket"):
        Gateway(address)
    assert path.read_text() == "not a socket"


@pytest.mark.parametrize("address", ["ipc://", f"ipc:///{'x' * 200}", "tcp://127.0.0.1:1"])
def test_a_misspelt_address_is_one_clear_line(address: str) -> None:
    """Bound or dialled."""
    with pytest.raises(ConfigError, match=r"tcp://HOST:PORT|has 201 bytes; 107 are the limit"):
        Gateway(address)
    with pytest.raises(ConfigError, match=r"tcp://HOST:PORT|has 201 bytes; 107 are the limit"):
        Worker(address)


async def test_abstract_names_work() -> None:
    """A socket without a file."""
    async with linked("ipc://@herma-test-local") as (gateway, worker, _):
        worker.dealer.send(b"hello")
        await until(lambda: gateway.frames == [(worker.identity, b"hello")])


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 2500), max_size=6))
def test_frames_are_found_at_any_split(frames: list[bytes], cuts: list[int]) -> None:
    """However a stream is cut, the same frames come out of it."""
    stream = b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)
    decoder, found, start = LengthDecoder(HEADER), list[bytes](), 0
    for cut in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        found += [frame for _, frame in decoder.feed(stream[start:cut])]
        start = cut
    assert found == frames


class _Poor(socket.socket):
    """A socket for which the kernel has no memory when it is to take the last frame."""

    def send(self, data: Any, flags: int = 0, /) -> int:
        if bytes(data).endswith(b"last"):
            raise OSError(errno.ENOBUFS, "no buffer space")
        return super().send(data, flags)


async def test_a_frame_that_the_kernel_refuses_ends_the_link() -> None:
    """The peer is there, and would wait for ever for what it was not sent; what came before the
    end is heard on both sides.
    """
    ours, theirs = socket.socketpair()
    heard: list[bytes] = []
    answers: list[bytes] = []
    poor = _Poor(fileno=ours.detach())
    for sock in (poor, theirs):
        sock.setblocking(False)
    sender, receiver = FrameStream(poor, answers.append), FrameStream(theirs, heard.append)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            receiver.send(b"answer")
            sender.send(b"first")
            sender.send(b"last")
            nursery.start_soon(sender.run)
            nursery.start_soon(receiver.run)
    assert (heard, answers) == ([b"first"], [b"answer"])


async def test_a_file_that_is_gone_is_made_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts again could not dial in otherwise. Those that are linked stay."""
    monkeypatch.setattr(local_router, "LOOK_S", 0.02)
    async with linked(address) as (gateway, worker, nursery):
        unlink(address)
        other = Worker(address)
        await nursery.start(other.dealer.run)
        await until(lambda: other.identity in gateway.router._streams)
        gateway.router.send(worker.identity, b"still here")
        await until(lambda: worker.frames == [b"still here"])
        assert worker.changes == [True]
