"""Garbage is harmless: strangers are counted or dropped, the fleet goes on."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import zmq

from tests.fakes.links import (
    ANY_PORT,
    GatewayEnd,
    WorkerEnd,
    bound_address,
    fresh_id,
    greet,
    linked_pair,
    raw_socket,
    running,
    tcp_client,
    until,
)

NUM_FRAMES = 200


@asynccontextmanager
async def _undisturbed() -> AsyncIterator[tuple[GatewayEnd, WorkerEnd]]:
    """A link whose traffic, before and after what happens inside, arrives whole and in order."""
    async with linked_pair() as (gateway, worker):
        for number in range(NUM_FRAMES):
            worker.dealer.send(b"up %d" % number)
        yield gateway, worker
        for number in range(NUM_FRAMES):
            worker.dealer.send(b"up %d" % (NUM_FRAMES + number))
            gateway.router.send(worker.identity, b"down %d" % number)
        await until(lambda: len(worker.frames) == NUM_FRAMES)
        await until(lambda: len(gateway.frames_of(worker.identity)) == 2 * NUM_FRAMES)
        expected = [b"up %d" % number for number in range(2 * NUM_FRAMES)]
        assert gateway.frames_of(worker.identity) == expected
        assert worker.changes == [True]


def _has_foreign(gateway: GatewayEnd, num_foreign: int) -> bool:
    return gateway.router.statistics().foreign == num_foreign


def _closed_by_peer(client: socket.socket) -> bool:
    """Read what comes until the other side closes."""
    try:
        while client.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: herma\r\n\r\n" * 4, id="HTTP"),
        pytest.param(b"\x16\x03\x01" + bytes(200), id="TLS"),
        pytest.param(bytes(range(256)) * 64, id="noise"),
    ],
)
async def test_a_stranger_on_tcp_is_shut_out(garbage: bytes) -> None:
    """A client that does not speak ZMTP gets nothing, and the fleet does not notice."""
    async with _undisturbed() as (gateway, _):
        with tcp_client(gateway.address) as client:
            # The gateway may close at the first bytes, before it has read the rest.
            with suppress(OSError):
                client.sendall(garbage)
                client.shutdown(socket.SHUT_WR)
            assert _closed_by_peer(client)


async def test_half_open_strangers_are_harmless() -> None:
    """Connections that stop in the middle of the greeting do not block others."""
    async with linked_pair() as (gateway, worker):
        with ExitStack() as strangers:
            for size in range(0, 60, 3):
                client = strangers.enter_context(tcp_client(gateway.address))
                client.sendall((b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48))[:size])
            worker.dealer.send(b"still here")
            await until(lambda: gateway.frames == [(worker.identity, b"still here")])


@pytest.mark.parametrize(
    "evil",
    [
        pytest.param(b"\x02" + b"\x7f" + b"\xff" * 7, id="a frame of 2**63 bytes"),
        pytest.param(b"\x02" + (41 * 2**20).to_bytes(8, "big"), id="a frame over the limit"),
        pytest.param(b"\xff" * 64, id="reserved flags"),
        pytest.param(b"\x06" + b"\xff" * 8, id="a command of 2**64 bytes"),
    ],
)
async def test_a_peer_that_turns_evil_is_shut_out(evil: bytes) -> None:
    """After a clean handshake, broken framing costs that peer its connection and nothing else."""
    async with _undisturbed() as (gateway, _):
        with tcp_client(gateway.address) as client:
            greet(client, fresh_id())
            with suppress(ConnectionError):
                client.sendall(evil)
            assert _closed_by_peer(client)


async def test_strange_identities_are_counted_and_dropped() -> None:
    """A DEALER whose identity is not 16 bytes is foreign: its frames are not delivered."""
    async with _undisturbed() as (gateway, _):
        before = len(gateway.frames)
        identities = [None, b"x", b"x" * 15, b"x" * 17, b"x" * 255]
        for identity in identities:
            with raw_socket(zmq.DEALER, identity) as stranger:
                stranger.connect(gateway.address)
                foreign = gateway.router.statistics().foreign
                stranger.send(os.urandom(64))
                await until(partial(_has_foreign, gateway, foreign + 1))
        strangers = gateway.frames[before:]
        assert all(len(peer) == 16 for peer, _ in strangers)


@pytest.mark.parametrize("parts", [[b"", b"x"], [b"a", b"b", b"c"], [b""] * 1000])
async def test_messages_of_several_parts_are_counted_and_dropped(parts: list[bytes]) -> None:
    """Our messages are one frame; anything else is malformed and nothing of it is delivered."""
    async with _undisturbed() as (gateway, _):
        identity = fresh_id()
        with raw_socket(zmq.DEALER, identity) as stranger:
            stranger.connect(gateway.address)
            stranger.send_multipart(parts)
            stranger.send(b"a single one")
            await until(lambda: gateway.frames_of(identity))
        assert gateway.frames_of(identity) == [b"a single one"]
        assert gateway.router.statistics().malformed == 1


async def test_garbage_in_a_frame_is_for_the_decoder() -> None:
    """The transport passes on any bytes of a peer with a proper identity, unread."""
    async with _undisturbed() as (gateway, _):
        identity = fresh_id()
        garbage = [os.urandom(size) for size in (0, 1, 64, 100_000)]
        with raw_socket(zmq.DEALER, identity) as stranger:
            stranger.connect(gateway.address)
            for frame in garbage:
                stranger.send(frame)
            await until(lambda: gateway.frames_of(identity) == garbage)


async def test_other_kinds_of_zmq_sockets_are_harmless() -> None:
    """A REQ peer's empty delimiter makes its messages malformed; a SUB peer is refused."""
    async with _undisturbed() as (gateway, _):
        with raw_socket(zmq.REQ, fresh_id()) as req, raw_socket(zmq.SUB) as sub:
            req.connect(gateway.address)
            sub.connect(gateway.address)
            sub.subscribe(b"")
            req.send(b"please")
            await until(lambda: gateway.router.statistics().malformed == 1)


async def test_a_worker_survives_a_strange_gateway() -> None:
    """Messages of several parts are counted at the worker too, and the next frame is delivered."""
    with raw_socket(zmq.ROUTER) as gateway:
        gateway.bind(ANY_PORT)
        worker = WorkerEnd(bound_address(gateway))
        async with running(worker):
            worker.dealer.send(b"hello")
            await until(lambda: gateway.poll(0))
            identity, _ = gateway.recv_multipart()
            gateway.send_multipart([identity, b"one", b"two"])
            gateway.send_multipart([identity, b"good"])
            await until(lambda: worker.frames == [b"good"])
            assert worker.dealer.statistics().malformed == 1


async def test_a_worker_dials_again_after_an_oversize_frame() -> None:
    """libzmq gives up a connection for good after a frame over the limit; the worker does not."""
    with raw_socket(zmq.ROUTER) as gateway:
        gateway.set(zmq.ROUTER_HANDOVER, 1)
        gateway.bind(ANY_PORT)
        worker = WorkerEnd(bound_address(gateway))
        async with running(worker):
            await until(lambda: worker.changes == [True])
            worker.dealer.send(b"hello")
            await until(lambda: gateway.poll(0))
            identity, _ = gateway.recv_multipart()
            gateway.send_multipart([identity, bytes(41 * 2**20)])
            await until(lambda: worker.changes == [True, False, True])
            worker.dealer.send(b"here again")
            await until(lambda: gateway.poll(0))
            assert gateway.recv_multipart() == [worker.identity, b"here again"]


async def test_a_worker_finds_the_gateway_behind_a_wrong_server() -> None:
    """Something else on the port is no reason to stay away once the gateway is there."""
    with socket.create_server(("127.0.0.1", 0)) as wrong:
        address = f"tcp://127.0.0.1:{wrong.getsockname()[1]}"
        worker = WorkerEnd(address)
        async with running(worker):
            worker.dealer.send(b"anyone?")
            client, _ = await trio.to_thread.run_sync(wrong.accept)
            client.sendall(
                b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"OTHER".ljust(20, b"\0") + bytes(32)
            )
            await until(lambda: worker.dealer.statistics().last_failure)
            client.close()
            wrong.close()
            gateway = GatewayEnd(address)
            async with running(gateway):
                await until(lambda: gateway.frames == [(worker.identity, b"anyone?")])
