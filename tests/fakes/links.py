"""Both ends of a link on real sockets, and peers that are not ours."""

import os
import socket as stdlib_socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio
import zmq

from protocol.ids import WorkerId
from protocol.transport import CurveClient, CurveServer, DealerSocket, RouterSocket

ANY_PORT = "tcp://127.0.0.1:*"


def fresh_id() -> WorkerId:
    """An identity that nobody else has."""
    return WorkerId(os.urandom(16))


async def until(condition: Callable[[], object], *, timeout_s: float = 60.0) -> None:
    """Return once `condition` holds; `trio.TooSlowError` if it never does."""
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 (what we wait for has no event)
            await trio.sleep(0.001)


class GatewayEnd:
    """A router that keeps what it was given."""

    def __init__(self, address: str = ANY_PORT, *, keys: CurveServer | None = None) -> None:
        self.frames: list[tuple[WorkerId, bytes]] = []
        self.unroutable: list[WorkerId] = []
        self.router = RouterSocket(self.on_frame, self.unroutable.append, keys=keys)
        self.address = self.router.bind(address)

    def on_frame(self, peer: WorkerId, frame: bytes) -> None:
        """Keep the frame."""
        self.frames.append((peer, frame))

    def frames_of(self, peer: WorkerId) -> list[bytes]:
        """What came from one peer."""
        return [frame for sender, frame in self.frames if sender == peer]


class WorkerEnd:
    """A dealer that keeps what it was given."""

    def __init__(
        self, address: str, *, identity: WorkerId | None = None, keys: CurveClient | None = None
    ) -> None:
        self.identity = fresh_id() if identity is None else identity
        self.frames: list[bytes] = []
        self.changes: list[bool] = []
        self.dealer = DealerSocket(
            self.identity, self.frames.append, keys=keys, on_link=self.changes.append
        )
        self.dealer.connect(address)


@asynccontextmanager
async def running(*ends: GatewayEnd | WorkerEnd) -> AsyncIterator[None]:
    """Run the pumps of these ends; they are closed at the end."""
    async with trio.open_nursery() as nursery:
        for end in ends:
            pumped = end.router if isinstance(end, GatewayEnd) else end.dealer
            await nursery.start(pumped.run)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def linked_pair() -> AsyncIterator[tuple[GatewayEnd, WorkerEnd]]:
    """A gateway and a worker that have heard of each other."""
    gateway = GatewayEnd()
    worker = WorkerEnd(gateway.address)
    async with running(gateway, worker):
        worker.dealer.send(b"hello")
        await until(lambda: gateway.frames)
        gateway.frames.clear()
        yield gateway, worker


@contextmanager
def raw_socket(kind: int, identity: bytes | None = None) -> Iterator[zmq.Socket[bytes]]:
    """A plain blocking zmq socket with a time limit, as a peer that is not ours would use."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(kind)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RCVTIMEO, 10_000)
    socket.set(zmq.SNDTIMEO, 10_000)
    if identity is not None:
        socket.set(zmq.ROUTING_ID, identity)
    try:
        yield socket
    finally:
        # With what watches it: a test that failed would never end.
        context.destroy(linger=0)


def bound_address(socket: zmq.Socket[bytes]) -> str:
    """Where a raw socket listens."""
    endpoint = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


@contextmanager
def tcp_client(address: str) -> Iterator[stdlib_socket.socket]:
    """A plain TCP connection to a zmq address."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with stdlib_socket.create_connection((host, int(port)), timeout=10) as client:
        yield client


def greet(client: stdlib_socket.socket, identity: bytes) -> None:
    """Shake hands as a ZMTP 3.0 DEALER without security; then nothing reads or answers."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", identity)
    client.sendall(greeting + bytes([0x04, len(ready)]) + ready)
    _receive_exactly(client, len(greeting))
    _, size = _receive_exactly(client, 2)
    assert b"READY" in _receive_exactly(client, size)


def _receive_exactly(client: stdlib_socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        chunk = client.recv(num_bytes - len(received))
        assert chunk
        received += chunk
    return received


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
