"""What a link promises: delivery in order, bounded queues, known peers, life after a restart."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pytest
import trio
import zmq

from protocol.errors import ConfigError, LinkFull, PeerUnknown, WireError
from protocol.ids import WorkerId
from protocol.transport import MAX_BACKLOG_BYTES, DealerSocket
from protocol.wire import MAX_FRAME_BYTES
from tests.fakes.links import (
    GatewayEnd,
    WorkerEnd,
    fresh_id,
    greet,
    linked_pair,
    raw_socket,
    running,
    tcp_client,
    until,
)

CHUNK = bytes(64 * 1024)


def _fill(send: Callable[[bytes], None]) -> int:
    """Send numbered frames until the link is full; how many it took."""
    for number in range(10_000):
        try:
            send(b"%06d" % number + CHUNK)
        except LinkFull:
            return number
    raise AssertionError("the link never fills")


async def test_an_unknown_peer_is_an_error_at_once() -> None:
    """Sending to an unknown identity raises PeerUnknown, and the link stays usable."""
    async with linked_pair() as (gateway, worker):
        with pytest.raises(PeerUnknown, match="00000000"):
            gateway.router.send(WorkerId(bytes(16)), b"lost")
        gateway.router.send(worker.identity, b"found")
        await until(lambda: worker.frames == [b"found"])


async def test_a_closed_peer_becomes_unknown() -> None:
    """Once a worker closes its socket, sending to it is PeerUnknown."""
    async with linked_pair() as (gateway, worker):
        worker.dealer.close()

        def is_unknown() -> bool:
            try:
                gateway.router.send(worker.identity, b"are you there")
            except PeerUnknown:
                return True
            return False

        await until(is_unknown)


async def test_a_gateway_that_is_held_up_keeps_its_talkative_worker() -> None:
    """Thousands of small answers wait unread for longer than heartbeats may take: none is lost, and
    the link stays, since what reads the socket is not what is held up. The gateway knows that it is
    behind, and whether it still is.
    """
    gateway = GatewayEnd()
    worker = WorkerEnd(gateway.address)
    expected = [b"%d" % number for number in range(20_000)]
    async with running(worker):
        await until(lambda: worker.changes == [True])
        for frame in expected:
            worker.dealer.send(frame)
        await trio.sleep(1.0)
        assert gateway.router.is_behind()
        async with running(gateway):
            await until(lambda: len(gateway.frames) == len(expected))
            assert not gateway.router.is_behind()
            assert gateway.frames_of(worker.identity) == expected
            assert worker.changes == [True]


async def test_a_silent_peer_becomes_unknown() -> None:
    """A peer that keeps its connection but answers no heartbeat is given up."""
    gateway = GatewayEnd()
    identity = fresh_id()
    async with running(gateway):
        with tcp_client(gateway.address) as client:
            greet(client, identity)
            client.sendall(b"\x00\x05hello")
            await until(lambda: gateway.frames == [(identity, b"hello")])
            gateway.router.send(identity, b"into the void")

            def is_unknown() -> bool:
                try:
                    gateway.router.send(identity, b"still there?")
                except PeerUnknown:
                    return True
                return False

            await until(is_unknown)


async def test_an_identity_moves_to_its_new_connection() -> None:
    """When a worker comes back under its identity, frames go to the new connection."""
    gateway = GatewayEnd()
    identity = fresh_id()
    async with running(gateway):
        with raw_socket(zmq.DEALER, identity) as old, raw_socket(zmq.DEALER, identity) as new:
            old.set(zmq.RECONNECT_IVL, -1)
            old.connect(gateway.address)
            old.send(b"old")
            await until(lambda: gateway.frames == [(identity, b"old")])
            new.connect(gateway.address)
            new.send(b"new")
            await until(lambda: gateway.frames[1:] == [(identity, b"new")])
            gateway.router.send(identity, b"for the new one")
            assert new.recv() == b"for the new one"
            assert not old.poll(0)


async def test_a_full_link_refuses_and_loses_nothing_it_took() -> None:
    """Over 8 MiB a send is LinkFull; all frames taken before arrive in order, and it goes on."""
    gateway = GatewayEnd()
    identity = fresh_id()
    with raw_socket(zmq.DEALER, identity) as slow:
        slow.set(zmq.RCVHWM, 1)
        slow.connect(gateway.address)
        async with running(gateway):
            slow.send(b"hello")
            await until(lambda: gateway.frames)
            num_taken = _fill(partial(gateway.router.send, identity))
            waiting = gateway.router.statistics().waiting_bytes
            assert MAX_BACKLOG_BYTES - 2 * len(CHUNK) < waiting <= MAX_BACKLOG_BYTES
            received: list[bytes] = []

            def drain() -> bool:
                while slow.poll(0):
                    received.append(slow.recv())
                return len(received) == num_taken

            await until(drain, timeout_s=30)
            assert [int(frame[:6]) for frame in received] == list(range(num_taken))
            gateway.router.send(identity, b"after")
            assert slow.recv() == b"after"
            assert gateway.router.statistics().waiting_peers == 0


async def test_a_full_link_does_not_hold_up_the_others() -> None:
    """While one peer does not read, another one gets its frames."""
    async with linked_pair() as (gateway, worker):
        identity = fresh_id()
        with raw_socket(zmq.DEALER, identity) as slow:
            slow.set(zmq.RCVHWM, 1)
            slow.connect(gateway.address)
            slow.send(b"hello")
            await until(lambda: gateway.frames)
            _fill(partial(gateway.router.send, identity))
            for number in range(500):
                gateway.router.send(worker.identity, b"%d" % number)
            await until(lambda: len(worker.frames) == 500)


async def test_what_waits_for_a_peer_that_leaves_is_reported() -> None:
    """When a peer goes away with frames waiting, on_unroutable names it, once."""
    gateway = GatewayEnd()
    identity = fresh_id()
    async with running(gateway):
        with raw_socket(zmq.DEALER, identity) as slow:
            slow.set(zmq.RCVHWM, 1)
            slow.connect(gateway.address)
            slow.send(b"hello")
            await until(lambda: gateway.frames)
            _fill(partial(gateway.router.send, identity))
        await until(lambda: gateway.unroutable)
        assert gateway.unroutable == [identity]
        assert gateway.router.statistics().unroutable > 0
        assert gateway.router.statistics().waiting_bytes == 0


@pytest.mark.parametrize("reaction", ["close", "disconnect_the_other"])
async def test_the_report_of_a_lost_peer_may_act(reaction: str) -> None:
    """on_unroutable may close the router or drop another peer that waits."""
    gateway = GatewayEnd()
    identities = [fresh_id(), fresh_id()]

    def on_unroutable(peer: WorkerId) -> None:
        gateway.unroutable.append(peer)
        if reaction == "close":
            gateway.router.close()
        else:
            other = identities[1 - identities.index(peer)]
            assert gateway.router.disconnect_peer(other) > 0

    gateway.router._on_unroutable = on_unroutable
    async with running(gateway):
        with ExitStack() as slow_peers:
            for identity in identities:
                slow = slow_peers.enter_context(raw_socket(zmq.DEALER, identity))
                slow.set(zmq.RCVHWM, 1)
                slow.connect(gateway.address)
                slow.send(b"hello")
            await until(lambda: len(gateway.frames) == 2)
            for identity in identities:
                _fill(partial(gateway.router.send, identity))
        await until(lambda: gateway.unroutable)
        await until(lambda: gateway.router.statistics().waiting_peers == 0)
        assert len(gateway.unroutable) == 1


async def test_dropping_a_peer_forgets_what_waits_for_it() -> None:
    """disconnect_peer empties the queue of that link and says how much it was."""
    gateway = GatewayEnd()
    identity = fresh_id()
    async with running(gateway):
        with raw_socket(zmq.DEALER, identity) as slow:
            slow.set(zmq.RCVHWM, 1)
            slow.connect(gateway.address)
            slow.send(b"hello")
            await until(lambda: gateway.frames)
            _fill(partial(gateway.router.send, identity))
            assert gateway.router.disconnect_peer(identity) > 0
            assert gateway.router.disconnect_peer(identity) == 0
            assert gateway.router.statistics().waiting_bytes == 0


async def test_a_worker_may_speak_before_its_gateway_exists() -> None:
    """Frames sent while no gateway listens wait, up to 8 MiB, and arrive in order later."""
    gateway = GatewayEnd()
    address = gateway.address
    gateway.router.close()
    worker = WorkerEnd(address)
    async with running(worker):
        num_taken = _fill(worker.dealer.send)
        assert worker.dealer.statistics().waiting_frames == num_taken
        gateway = GatewayEnd(address)
        async with running(gateway):
            await until(lambda: len(gateway.frames) == num_taken, timeout_s=30)
            numbers = [int(frame[:6]) for frame in gateway.frames_of(worker.identity)]
            assert numbers == list(range(num_taken))


async def test_a_worker_can_forget_what_waits() -> None:
    """drop_waiting empties the queue: what was meant for a lost gateway never reaches the next."""
    gateway = GatewayEnd()
    gateway.router.close()
    worker = WorkerEnd(gateway.address)
    async with running(worker):
        worker.dealer.send(b"stale")
        assert worker.dealer.drop_waiting() == 1
        worker.dealer.send(b"fresh")
        gateway = GatewayEnd(gateway.address)
        async with running(gateway):
            await until(lambda: gateway.frames)
            assert gateway.frames == [(worker.identity, b"fresh")]


async def test_a_restarted_gateway_is_found_again() -> None:
    """The worker is told of loss and return, and both directions work again."""
    gateway = GatewayEnd()
    worker = WorkerEnd(gateway.address)
    async with running(worker):
        async with running(gateway):
            await until(lambda: worker.changes == [True])
        await until(lambda: worker.changes == [True, False])
        gateway = GatewayEnd(gateway.address)
        async with running(gateway):
            await until(lambda: worker.changes == [True, False, True])
            worker.dealer.send(b"here again")
            await until(lambda: gateway.frames == [(worker.identity, b"here again")])
            gateway.router.send(worker.identity, b"welcome")
            await until(lambda: worker.frames == [b"welcome"])
            assert worker.dealer.statistics().is_up


async def test_large_and_empty_frames_pass() -> None:
    """A frame of 32 MiB passes although the queue holds 8, and so does an empty one."""
    async with linked_pair() as (gateway, worker):
        files = bytes(32 * 2**20)
        worker.dealer.send(files)
        worker.dealer.send(b"")
        await until(lambda: len(gateway.frames) == 2, timeout_s=30)
        assert gateway.frames_of(worker.identity) == [files, b""]


async def test_oversize_frames_are_refused_before_they_break_the_link() -> None:
    """A frame over the limit is a WireError on either side."""
    async with linked_pair() as (gateway, worker):
        with pytest.raises(WireError):
            gateway.router.send(worker.identity, bytes(MAX_FRAME_BYTES + 1))
        with pytest.raises(WireError):
            worker.dealer.send(bytes(MAX_FRAME_BYTES + 1))


async def test_after_the_end_a_send_is_a_link_error() -> None:
    """Cancelling the pumps closes the sockets; a late send gets PeerUnknown, never a crash."""
    async with linked_pair() as (gateway, worker):
        pass
    with pytest.raises(PeerUnknown):
        gateway.router.send(worker.identity, b"late")
    with pytest.raises(PeerUnknown):
        worker.dealer.send(b"late")
    gateway.router.close()
    worker.dealer.close()


async def test_closing_ends_the_pumps() -> None:
    """close lets run return, from outside and from inside a callback."""
    gateway = GatewayEnd()
    worker = WorkerEnd(gateway.address)
    gateway.router._on_frame = lambda _peer, _frame: gateway.router.close()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gateway.router.run)
            nursery.start_soon(worker.dealer.run)
            worker.dealer.send(b"the last one")
            await until(lambda: gateway.router._socket.closed)
            worker.dealer.close()


async def test_a_farewell_arrives_with_linger() -> None:
    """A last frame that the link has taken still leaves when close is given time."""
    async with linked_pair() as (gateway, worker):
        worker.dealer.send(b"bye")
        worker.dealer.close(linger_s=1.0)
        await until(lambda: gateway.frames == [(worker.identity, b"bye")])


async def test_a_failing_callback_is_not_swallowed() -> None:
    """An error in a callback ends the pump with that error."""
    gateway = GatewayEnd()

    def fail(_peer: WorkerId, _frame: bytes) -> None:
        raise ZeroDivisionError

    gateway.router._on_frame = fail
    worker = WorkerEnd(gateway.address)
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with running(gateway, worker):
            worker.dealer.send(b"boom")
            await until(lambda: False)


def test_an_identity_has_sixteen_bytes() -> None:
    """A dealer with another identity is a mistake that is caught where it is made."""
    with pytest.raises(ValueError, match="16 bytes"):
        DealerSocket(WorkerId(b"short"), lambda _frame: None)


async def test_a_dealer_dials_one_gateway() -> None:
    """A second connect is refused: a dealer would share frames out between two gateways."""
    async with linked_pair() as (gateway, worker):
        with pytest.raises(ConfigError, match="already"):
            worker.dealer.connect(gateway.address)
        assert gateway.address in repr(worker.dealer)
        assert "received=1" in repr(gateway.router)
