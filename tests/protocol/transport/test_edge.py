"""The law of the edge-triggered FD: no timing leaves a message unread."""

import select
import time
from collections.abc import Sequence
from functools import partial

import pytest
import trio
import trio.testing
import zmq

from protocol.transport.pump import BURST_LIMIT, BURST_S, Pump
from tests.fakes.links import (
    ANY_PORT,
    GatewayEnd,
    WorkerEnd,
    bound_address,
    fresh_id,
    linked_pair,
    raw_socket,
    running,
    until,
)

NUM_ROUNDS = 20
NUM_PUMPED = 20_000


def _wait_for_edge(socket: zmq.Socket[bytes]) -> None:
    """Block the whole loop until the I/O thread has signalled a message to `socket`."""
    fd = socket.get(zmq.FD)
    assert isinstance(fd, int)
    readable, _, _ = select.select([fd], [], [], 10)
    assert readable


def _arrives(came: Sequence[object], expected: object) -> bool:
    return bool(came) and came[-1] == expected


async def _rounds_until_unread(*, patience_s: float) -> int:
    """A reply lands between two sends of one task, 20 times: how many rounds until one stays
    unread.
    """
    with raw_socket(zmq.ROUTER) as peer:
        peer.bind(ANY_PORT)
        worker = WorkerEnd(bound_address(peer))
        async with running(worker):
            await until(lambda: worker.changes)
            for number in range(NUM_ROUNDS):
                reply = b"reply %d" % number
                await trio.testing.wait_all_tasks_blocked(0.01)
                worker.dealer.send(b"first")
                identity, _ = peer.recv_multipart()
                peer.send_multipart([identity, reply])
                _wait_for_edge(worker.dealer._socket)
                worker.dealer.send(b"second")
                # libzmq skips its command queue within about 1 ms of the last look at it.
                worker.dealer._socket.get(zmq.EVENTS)
                peer.recv_multipart()
                with trio.move_on_after(patience_s):
                    await until(partial(_arrives, worker.frames, reply))
                if not _arrives(worker.frames, reply):
                    return number
    return NUM_ROUNDS


async def test_a_reply_between_two_sends_is_read() -> None:
    """No round leaves its message unread, although the second send consumed the edge."""
    assert await _rounds_until_unread(patience_s=10.0) == NUM_ROUNDS


async def test_without_the_law_replies_stay_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timing above is the one that hurts: a pump that is not told of touches misses replies."""
    monkeypatch.setattr(Pump, "touched", lambda _pump: None)
    assert await _rounds_until_unread(patience_s=0.05) < NUM_ROUNDS


async def test_a_frame_between_two_sends_of_the_gateway_is_read() -> None:
    """The router obeys the same law: frames that land between two sends are all delivered."""
    gateway = GatewayEnd()
    identity = fresh_id()
    with raw_socket(zmq.DEALER, identity) as peer:
        peer.connect(gateway.address)
        async with running(gateway):
            peer.send(b"hello")
            await until(lambda: gateway.frames)
            for number in range(NUM_ROUNDS):
                await trio.testing.wait_all_tasks_blocked(0.01)
                gateway.router.send(identity, b"first")
                peer.recv()
                peer.send(b"answer %d" % number)
                _wait_for_edge(gateway.router._socket)
                gateway.router.send(identity, b"second")
                peer.recv()
                await until(partial(_arrives, gateway.frames, (identity, b"answer %d" % number)))


async def test_a_touch_that_finds_room_moves_the_backlog() -> None:
    """A frame that waits for a gateway leaves although another touch consumed the edge that said
    that the connection is made.
    """
    with raw_socket(zmq.ROUTER) as peer:
        peer.bind(ANY_PORT)
        address = bound_address(peer)
        peer.unbind(address)
        worker = WorkerEnd(address)
        async with running(worker):
            worker.dealer.send(b"waiting")
            await trio.testing.wait_all_tasks_blocked(0.01)
            peer.bind(address)
            _wait_for_edge(worker.dealer._socket)
            worker.dealer._pump.touched()
            await until(lambda: peer.poll(0))
            assert peer.recv_multipart() == [worker.identity, b"waiting"]


async def test_a_retry_moves_a_backlog_whose_edge_is_gone() -> None:
    """Frames for a slow peer go on although another touch consumed the edge that said that it
    reads again: no event of a ROUTER names that peer.
    """
    gateway = GatewayEnd()
    identity = fresh_id()
    with raw_socket(zmq.DEALER, identity) as slow:
        slow.set(zmq.RCVHWM, 1)
        slow.connect(gateway.address)
        async with running(gateway):
            slow.send(b"hello")
            await until(lambda: gateway.frames)
            num_sent = 0
            while gateway.router.statistics().waiting_bytes < 2**20:
                gateway.router.send(identity, bytes(64 * 1024))
                num_sent += 1
            num_taken = 0

            def take_all() -> bool:
                nonlocal num_taken
                while num_taken < num_sent and slow.poll(0):
                    slow.recv()
                    num_taken += 1
                    gateway.router._pump.touched()
                return num_taken == num_sent

            await until(take_all)
            await until(lambda: gateway.router.statistics().waiting_peers == 0)


async def test_both_ways_flat_out() -> None:
    """Twenty thousand messages each way, sent inline by other tasks, all arrive in order."""
    async with linked_pair() as (gateway, worker), trio.open_nursery() as nursery:
        expected = [b"%d" % number + bytes(200) for number in range(NUM_PUMPED)]

        async def send_down() -> None:
            for number, frame in enumerate(expected):
                gateway.router.send(worker.identity, frame)
                if number % 16 == 0:
                    await trio.lowlevel.checkpoint()

        async def send_up() -> None:
            for number, frame in enumerate(expected):
                worker.dealer.send(frame)
                if number % 16 == 0:
                    await trio.lowlevel.checkpoint()

        nursery.start_soon(send_down)
        nursery.start_soon(send_up)
        await until(lambda: len(worker.frames) == NUM_PUMPED, timeout_s=60)
        await until(lambda: len(gateway.frames) == NUM_PUMPED, timeout_s=60)
        assert worker.frames == expected
        assert gateway.frames_of(worker.identity) == expected


async def test_answers_from_the_callback() -> None:
    """A callback may send: a ping-pong that runs inside the callbacks never stalls."""
    gateway = GatewayEnd()
    router = gateway.router
    router._on_frame = router.send
    worker = WorkerEnd(gateway.address)
    bounces = 0

    def bounce(frame: bytes) -> None:
        nonlocal bounces
        bounces += 1
        if bounces < 1000:
            worker.dealer.send(frame)

    worker.dealer._on_frame = bounce
    async with running(gateway, worker):
        worker.dealer.send(b"ball")
        await until(lambda: bounces == 1000)


async def test_a_flood_leaves_turns_to_others() -> None:
    """Between two turns of another task the pump delivers at most two bursts: trio runs ready
    tasks once per batch, in any order.
    """
    gateway = GatewayEnd()
    since_turn = longest = 0

    def on_frame(_peer: bytes, _frame: bytes) -> None:
        nonlocal since_turn, longest
        since_turn += 1
        longest = max(longest, since_turn)

    async def take_turns() -> None:
        nonlocal since_turn
        while True:
            since_turn = 0
            await trio.lowlevel.checkpoint()

    gateway.router._on_frame = on_frame
    with raw_socket(zmq.DEALER, fresh_id()) as peer:
        peer.connect(gateway.address)
        async with running(gateway), trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            for _ in range(3000):
                peer.send(b"flood")
            await until(lambda: gateway.router.statistics().received == 3000)
            nursery.cancel_scope.cancel()
    assert 0 < longest <= 2 * BURST_LIMIT


async def test_frames_that_take_long_leave_turns_to_others() -> None:
    """A frame that takes as long as a burst may is one: two of them are the most between turns."""
    gateway = GatewayEnd()
    since_turn = longest = 0

    def on_frame(_peer: bytes, _frame: bytes) -> None:
        nonlocal since_turn, longest
        since_turn += 1
        longest = max(longest, since_turn)
        time.sleep(BURST_S)

    async def take_turns() -> None:
        nonlocal since_turn
        while True:
            since_turn = 0
            await trio.lowlevel.checkpoint()

    gateway.router._on_frame = on_frame
    with raw_socket(zmq.DEALER, fresh_id()) as peer:
        peer.connect(gateway.address)
        async with running(gateway), trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            for _ in range(50):
                peer.send(b"many tokens")
            await until(lambda: gateway.router.statistics().received == 50)
            nursery.cancel_scope.cancel()
    assert 0 < longest <= 2
