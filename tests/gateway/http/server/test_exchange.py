"""Pushed and sent responses, to peers that read, read slowly, or leave."""

import gc
from collections.abc import Awaitable, Callable
from math import inf

import httptools
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.http.response_writer import EXTENSION, MAX_PENDING_BYTES, ResponseWriter
from gateway.http.server.exchange import PeerGone
from tests.fakes.wired import SILENT_PEER_S, Peer, parsed, whole_body, wired

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CLOSE = b"GET /z HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
HEADERS = [(b"content-type", b"text/plain")]
BLOCK = bytes(2**16)


def _pushing(work: Callable[[ResponseWriter], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """An app that pushes what `work` does."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await whole_body(receive)
        await work(scope["extensions"][EXTENSION])

    return app


async def _ask(peer: Peer, request: bytes = CLOSE, method: str = "GET") -> tuple[int, bytes]:
    await peer.send(request)
    (answer,) = parsed(await peer.rest(), method)
    return answer


@given(parts=st.lists(st.binary(max_size=50), max_size=6), last=st.binary(max_size=50))
def test_what_is_pushed_arrives(parts: list[bytes], last: bytes) -> None:
    """What is pushed arrives in order and whole, to GET, HEAD and HTTP/1.0, and the connection goes
    on.
    """

    async def push_all(writer: ResponseWriter) -> None:
        writer.open(200, HEADERS)
        assert all(writer.write(part) for part in parts)
        writer.end(last)

    async def main() -> None:
        body = b"".join(parts) + last
        async with wired(_pushing(push_all)) as peer:
            await peer.send(GET + GET.replace(b"GET", b"HEAD") + CLOSE)
            answers = parsed(await peer.rest(), "GET", "HEAD", "GET")
            assert answers == [(200, body), (200, b""), (200, body)]
        async with wired(_pushing(push_all)) as peer:
            await peer.send(b"GET / HTTP/1.0\r\n\r\n")
            assert (await peer.rest()).partition(b"\r\n\r\n")[2] == body

    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(body=st.binary(max_size=200))
def test_a_whole_response_arrives_as_if_it_was_opened_and_ended(body: bytes) -> None:
    """A whole response gives GET, HEAD and HTTP/1.0 the same bytes as an opened and ended one, with
    its length; the connection goes on.
    """

    async def respond(writer: ResponseWriter) -> None:
        writer.respond(201, HEADERS, body)
        with pytest.raises(ValueError, match="begun"):
            writer.respond(200, HEADERS, body)
        with pytest.raises(ValueError, match="begun"):
            writer.open(200, HEADERS)

    async def open_and_end(writer: ResponseWriter) -> None:
        writer.open(201, HEADERS)
        writer.end(body)

    async def received(work: Callable[[ResponseWriter], Awaitable[None]], request: bytes) -> bytes:
        async with wired(_pushing(work)) as peer:
            await peer.send(request)
            return await peer.rest()

    async def main() -> None:
        for request in (GET + GET.replace(b"GET", b"HEAD") + CLOSE, b"GET / HTTP/1.0\r\n\r\n"):
            whole = await received(respond, request)
            assert whole == await received(open_and_end, request)
            assert b"content-length: %d\r\n" % len(body) in whole

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_the_head_waits_for_the_first_part(autojump_clock: MockClock) -> None:
    """The head waits for the first part: nothing is sent at `open`; head and first part are sent in
    one packet.
    """
    go_on = trio.Event()

    async def work(writer: ResponseWriter) -> None:
        writer.open(200, HEADERS)
        await go_on.wait()
        writer.write(b"first")
        writer.end()

    async with wired(_pushing(work)) as peer:
        await peer.send(GET)
        with trio.move_on_after(5) as silence:
            await peer.stream.receive_some(1)
        assert silence.cancelled_caught
        go_on.set()
        assert b"first" in await peer.stream.receive_some(65_536)


async def test_a_step_leaves_in_one_piece(autojump_clock: MockClock) -> None:
    """What is written within a step is one packet at its end, and within its inner steps too."""
    go_on = trio.Event()

    async with trio.open_nursery() as nursery:
        peers: list[Peer] = []

        async def work(writer: ResponseWriter) -> None:
            writer.open(200, HEADERS)
            step = peers[0].batch
            with step:
                writer.write(b"one")
                with step:
                    writer.write(b"two")
                assert not received
                assert writer.write(b"three")
            await go_on.wait()
            with step:
                writer.write(b"four")
                writer.end(b"five")

        received: list[bytes] = []
        async with wired(_pushing(work)) as peer:
            peers.append(peer)
            await peer.send(CLOSE)
            received.append(await peer.stream.receive_some(65_536))
            assert b"one" in received[0]
            assert b"three" in received[0]
            go_on.set()
            received.append(await peer.stream.receive_some(65_536))
            assert received[1].endswith(b"4\r\nfour\r\n4\r\nfive\r\n0\r\n\r\n")
        nursery.cancel_scope.cancel()


async def test_within_a_step_all_holds_that_holds_without(autojump_clock: MockClock) -> None:
    """Nothing is a part of no length, which would be the end; nothing follows the end; the time is
    noted; and a whole response leaves at once.
    """
    told: list[object] = []

    async def work(writer: ResponseWriter) -> None:
        step = peers[0].batch
        if told:
            with step:
                writer.respond(200, HEADERS, b"whole")
                told.append(list(step.pending))
            return
        writer.open(200, HEADERS)
        writer.write(b"one")
        await trio.sleep(1)
        with step as now:
            writer.write(b"two")
            told.append(writer.wrote_at - now)
            writer.write(b"")
            writer.end()
            with pytest.raises(ValueError, match="between"):
                writer.write(b"three")

    peers: list[Peer] = []
    async with wired(_pushing(work)) as peer:
        peers.append(peer)
        await peer.send(GET + CLOSE)
        assert parsed(await peer.rest(), "GET", "GET") == [(200, b"onetwo"), (200, b"whole")]
    assert told == [0.0, []]


async def test_a_response_is_looked_after_until_its_end(autojump_clock: MockClock) -> None:
    """A response is looked after until its end, at the time that was asked for, or up to a second
    later, again and again; never once it has ended, though the connection lives on.
    """
    looks: list[float] = []

    async def work(writer: ResponseWriter) -> None:
        writer.open(200, HEADERS)
        writer.write(b"first")
        began_at = trio.current_time()

        def look(now: float) -> float:
            looks.append(now - began_at)
            writer.write(b"again")
            return now + 3.0

        writer.watch(look, began_at + 5.5)
        await trio.sleep(20.25)
        writer.end()
        await trio.sleep(10)  # the turn's books

    async with wired(_pushing(work)) as peer:
        await peer.send(GET)
        received = await peer.until(b"0\r\n\r\n")
        await trio.sleep(20)
        await peer.send(CLOSE.replace(b"/z", b"/"))
        await peer.rest()
    assert received.count(b"again") == 5
    assert len(looks) == 10
    for one in (looks[:5], looks[5:]):
        for due, at in zip([5.5, *(at + 3.0 for at in one)], one, strict=False):
            assert due <= at <= due + 1.0


async def test_a_slow_reader_gets_all_within_the_bound(autojump_clock: MockClock) -> None:
    """What the kernel does not take waits, up to the bound; over it nothing is kept, and what was
    taken still arrives whole.
    """
    taken = 0
    full = trio.Event()

    async def work(writer: ResponseWriter) -> None:
        nonlocal taken
        writer.open(200, HEADERS)
        while writer.write(BLOCK):
            taken += len(BLOCK)
        assert not writer.is_gone
        full.set()
        writer.end(b"last")
        await writer._send_buffer.flushed()

    async with wired(_pushing(work)) as peer:
        await peer.send(CLOSE)
        await full.wait()
        assert MAX_PENDING_BYTES <= taken < 2 * MAX_PENDING_BYTES
        (answer,) = parsed(await peer.rest(), "GET")
    assert answer == (200, bytes(taken) + b"last")


async def test_a_part_over_the_bound_makes_no_slow_reader(autojump_clock: MockClock) -> None:
    """A part over the bound is no fault of the client's. Small parts may follow while it is read,
    but no second large one.
    """
    large, refused = bytes(8 * MAX_PENDING_BYTES), trio.Event()

    async def work(writer: ResponseWriter) -> None:
        writer.open(200, HEADERS)
        assert writer.write(b"first")
        assert writer.write(large)
        assert writer.write(b"next")
        assert not writer.write(large)
        refused.set()
        await writer._send_buffer.flushed()
        assert writer.write(large)
        writer.end(b"last")

    async with wired(_pushing(work)) as peer:
        await peer.send(CLOSE)
        await refused.wait()
        (answer,) = parsed(await peer.rest(), "GET")
    assert answer == (200, b"first" + large + b"next" + large + b"last")


@pytest.mark.parametrize("is_pushed", [True, False])
async def test_a_peer_that_reads_nothing_is_given_up(
    autojump_clock: MockClock, is_pushed: bool
) -> None:
    """The connection of a peer that reads nothing ends after a while, and the app with it."""
    ended = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if is_pushed:
                writer = scope["extensions"][EXTENSION]
                writer.open(200, HEADERS)
                while writer.write(BLOCK):
                    pass
                await trio.sleep_forever()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": BLOCK, "more_body": True})
        finally:
            ended.set()

    async with wired(app) as peer:
        await peer.send(GET)
        await ended.wait()
        assert SILENT_PEER_S <= trio.current_time() <= SILENT_PEER_S + 3
        assert b"HTTP/1.1 200" in await peer.rest()


async def test_who_is_shielded_learns_that_the_peer_has_gone(autojump_clock: MockClock) -> None:
    """`send` raises, `write` is False, `receive` says so: nothing goes on as if nothing were."""
    seen: list[object] = []
    started = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        writer: ResponseWriter = scope["extensions"][EXTENSION]
        await whole_body(receive)
        with trio.CancelScope(shield=True):
            started.set()
            seen.append((await receive())["type"])
            writer.open(200, HEADERS)
            seen.extend([writer.is_gone, writer.write(b"x")])
            await writer._send_buffer.flushed()
            try:
                await send({"type": "http.response.body", "body": b"x"})
            except PeerGone as gone:
                seen.append(isinstance(gone, OSError))

    async with wired(app) as peer:
        await peer.send(GET)
        await started.wait()
        await peer.stream.aclose()
        await wait_all_tasks_blocked()
    assert seen == ["http.disconnect", True, False, True]


async def test_a_response_out_of_order_is_an_error_of_the_app(autojump_clock: MockClock) -> None:
    """Two heads, parts before the head or after the end: refused, and the peer sees none of it."""
    errors: list[str] = []

    def tell(act: Callable[[], object]) -> None:
        with pytest.raises(ValueError, match="response") as caught:
            act()
        errors.append(str(caught.value))

    async def work(writer: ResponseWriter) -> None:
        tell(lambda: writer.write(b"early"))
        writer.open(200, HEADERS)
        tell(lambda: writer.open(200, HEADERS))
        writer.write(b"ok")
        tell(lambda: writer.open(200, HEADERS))
        writer.end()
        tell(lambda: writer.write(b"late"))
        tell(writer.end)

    async with wired(_pushing(work)) as peer:
        assert await _ask(peer) == (200, b"ok")
    assert len(errors) == 5


async def test_a_stream_that_never_waits_does_not_run_alone(autojump_clock: MockClock) -> None:
    """Sends that the kernel takes at once let other tasks run now and then."""
    turns = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal turns
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(160):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
            nursery.cancel_scope.cancel()
        assert turns >= 8
        await send({"type": "http.response.body"})

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with wired(app) as peer:
        assert await _ask(peer) == (200, b"x" * 160)


async def test_a_handler_that_gives_up_has_its_answer_sent(autojump_clock: MockClock) -> None:
    """A handler that gives up is cancelled; a client that reads on gets what was written, and the
    connection ends.
    """
    ends: list[str] = []
    part = b"x" * 2**19

    async def work(writer: ResponseWriter) -> None:
        writer.open(200, HEADERS)
        assert writer.write(part)
        writer.end(b"too slow")
        writer.give_up()
        try:
            await trio.sleep_forever()
        finally:
            ends.append("cancelled" if trio.current_effective_deadline() == -inf else "went on")

    async with wired(_pushing(work)) as peer:
        await peer.send(GET + GET)
        await trio.sleep(5)
        assert ends == ["cancelled"]
        received = await peer.rest()
    assert received.count(b"HTTP/1.1 200") == 1
    assert received.endswith(b"too slow\r\n0\r\n\r\n")


async def test_a_client_that_is_given_up_and_reads_nothing_is_left(
    autojump_clock: MockClock,
) -> None:
    """A client that is given up and reads nothing is disconnected after the time that any peer has
    for what was sent.
    """

    async def work(writer: ResponseWriter) -> None:
        writer.open(200, HEADERS)
        writer.write(b"x" * 2**19)
        writer.end(b"too slow")
        writer.give_up()
        await trio.sleep_forever()

    async with wired(_pushing(work)) as peer:
        await peer.send(GET)
        await trio.sleep(2 * SILENT_PEER_S)
        assert b"too slow" not in await peer.rest()


async def test_an_answer_holds_no_parser(autojump_clock: MockClock) -> None:
    """An answer holds no parser: only bytes of a request have one. A long answer would hold
    0.9 KB.
    """
    asked, go_on = trio.Event(), trio.Event()

    async def work(writer: ResponseWriter) -> None:
        asked.set()
        await go_on.wait()
        writer.respond(200, HEADERS, b"")

    def num_parsers() -> int:
        return sum(type(one) is httptools.HttpRequestParser for one in gc.get_objects())

    async with wired(_pushing(work)) as peer:
        before = num_parsers()
        await peer.send(GET)
        await asked.wait()
        assert num_parsers() == before
        await peer.send(GET[:9])
        await wait_all_tasks_blocked()
        assert num_parsers() == before + 1
        go_on.set()
        await peer.until(b"HTTP/1.1 200")
        await peer.send(GET[9:])
        await peer.until(b"HTTP/1.1 200")
