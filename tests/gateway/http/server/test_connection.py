"""One connection in virtual time: order, deadlines, ends."""

import itertools
import socket

import h11
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.http.server.read_deadlines import Deadlines
from tests.fakes.wired import Echo, parsed, reply, statuses, whole_body, wired

DEADLINES = Deadlines()
GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
CLOSE = b"GET /z HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def _post(body: bytes) -> bytes:
    return b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def test_pipelined_requests_are_answered_in_order(autojump_clock: MockClock) -> None:
    """Fifty requests in one packet get fifty answers, in order, and others get their turns."""
    bodies = [b"%d" % i for i in range(50)]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with wired(Echo()) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await peer.send(b"".join(map(_post, bodies)) + CLOSE)
        answers = parsed(await peer.rest(), *["POST"] * 50, "GET")
        nursery.cancel_scope.cancel()
    assert [body for _, body in answers] == [*bodies, b""]
    assert turns > 50


@given(
    bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 1_500), max_size=8),
)
def test_h11_is_answered_however_its_bytes_are_split(bodies: list[bytes], cuts: list[int]) -> None:
    """An independent client gets each of its bodies back, in order, over any split of its bytes."""

    async def main() -> None:
        data = b"".join(map(_written_by_h11, bodies)) + CLOSE
        edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        async with wired(Echo()) as peer:
            for start, end in itertools.pairwise(edges):
                await peer.send(data[start:end])
                await wait_all_tasks_blocked()
            answers = parsed(await peer.rest(), *["POST"] * len(bodies), "GET")
        assert [body for _, body in answers] == [*bodies, b""]

    trio.run(main, clock=MockClock(autojump_threshold=0.001))


def _written_by_h11(body: bytes) -> bytes:
    client = h11.Connection(h11.CLIENT)
    headers = [("host", "x"), ("transfer-encoding", "chunked")]
    parts = [
        h11.Request(method="POST", target="/", headers=headers),
        h11.Data(data=body[:9]),
        h11.Data(data=body[9:]),
        h11.EndOfMessage(),
    ]
    return b"".join(client.send(part) or b"" for part in parts)


async def test_an_idle_connection_is_closed(autojump_clock: MockClock) -> None:
    """Without a request, before the first or after one, it is closed without a word; blank lines
    are no request.
    """
    for sent in (b"", GET):
        async with wired(Echo()) as peer:
            await peer.send(sent)
            if sent:
                await peer.until(b"\r\n\r\n")
            began_at = trio.current_time()
            await trio.sleep(DEADLINES.idle_s / 2)
            await peer.send(b"\r\n")
            assert await peer.rest() == b""
            _assert_about(trio.current_time() - began_at, DEADLINES.idle_s)


async def test_a_slow_head_is_408(autojump_clock: MockClock) -> None:
    """A head that drips in is answered and closed after its time, however lively it is."""
    async with wired(Echo()) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(_drip, peer.stream, b"GET / HTTP/1.1\r\nhost: " + b"x" * 1_000)
        answer = await peer.rest()
        nursery.cancel_scope.cancel()
    assert statuses(answer) == [408]
    _assert_about(trio.current_time(), DEADLINES.head_s)


async def test_a_silent_body_is_408(autojump_clock: MockClock) -> None:
    """The app that waits for a body learns that it will not come."""
    async with wired(Echo()) as peer:
        await peer.send(_post(bytes(10))[:-1])
        assert statuses(await peer.rest()) == [408]
    _assert_about(trio.current_time(), DEADLINES.body_silence_s)


async def test_a_dripping_body_is_408(autojump_clock: MockClock) -> None:
    """A body may not come slower than the least rate, even if it never falls silent."""
    async with wired(Echo()) as peer, trio.open_nursery() as nursery:
        await peer.send(_post(bytes(10_000))[:-10_000])
        nursery.start_soon(_drip, peer.stream, bytes(10_000))
        answer = await peer.rest()
        nursery.cancel_scope.cancel()
    assert statuses(answer) == [408]
    _assert_about(trio.current_time(), DEADLINES.body_grace_s)


async def test_an_app_may_take_its_time(autojump_clock: MockClock) -> None:
    """No deadline runs while the server itself is to act, nor while the app leaves a body alone."""

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(200)
        body = await whole_body(receive)
        await trio.sleep(200)
        await reply(send, b"%d" % len(body))

    async with wired(slow) as peer:
        await peer.send(GET)
        assert b"\r\n0" in await peer.until(b"\r\n\r\n0")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send, _post(bytes(2_000_000)))
            await peer.until(b"\r\n\r\n2000000")


async def test_expectations_are_met_when_the_body_is_wanted(autojump_clock: MockClock) -> None:
    """100 is sent once the app reads, and not if the body came by itself."""
    head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
    async with wired(Echo()) as peer:
        await peer.send(head)
        assert await peer.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await peer.send(b"abc")
        await peer.until(b"abc")
        await peer.send(head + b"def")
        assert statuses(await peer.until(b"def")) == [200]


async def test_a_refusal_needs_no_100(autojump_clock: MockClock) -> None:
    """An app that answers without reading is heard at once, and the connection ends."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, b"no", 401)

    async with wired(refuse) as peer:
        await peer.send(_post(bytes(100))[:-50].replace(b"host", b"expect: 100-continue\r\nhost"))
        answer = await peer.until(b"no")
        assert statuses(answer) == [401]
        assert b"connection: close" in answer
        assert trio.current_time() == 0


async def test_what_follows_an_early_answer_is_read_away(autojump_clock: MockClock) -> None:
    """The client can send all of its body although the answer is out, then sees the end."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, b"no", 413)

    async with wired(refuse) as peer:
        await peer.send(_post(bytes(3_000_000)))
        assert parsed(await peer.rest(), "POST") == [(413, b"no")]


async def test_http_1_0_is_answered_and_closed(autojump_clock: MockClock) -> None:
    """The oldest clients get plain bodies, whose end is the connection's."""

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"a", b"b"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async with wired(stream) as peer:
        await peer.send(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        answer = await peer.rest()
    assert answer.endswith(b"connection: close\r\n\r\nab")


async def test_leaving_cancels_the_app(autojump_clock: MockClock) -> None:
    """The app of a peer that has left is cancelled at once."""
    started, cancelled = trio.Event(), trio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with wired(wait) as peer:
        await peer.send(GET)
        await started.wait()
        await peer.stream.aclose()
        await cancelled.wait()
    assert trio.current_time() == 0


async def test_an_app_that_fails_is_500(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception, and a return without an answer, before the head is out: one clear error."""

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/a":
            raise RuntimeError("the inside")

    async with wired(fail) as peer:
        await peer.send(GET + CLOSE)
        answers = parsed(await peer.rest(), "GET", "GET")
    assert [status for status, _ in answers] == [500, 500]
    assert b"the inside" not in answers[0][1]
    assert "the inside" in caplog.text


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_answer_that_breaks_off_looks_broken(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, version: bytes
) -> None:
    """A client cannot take the half for the whole."""

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError

    async with wired(fail) as peer:
        await peer.send(GET.replace(b"1.1", version))
        answer = await peer.rest()
    assert b"half" in answer
    assert not answer.endswith(b"0\r\n\r\n")


async def test_a_draining_server_takes_no_more(autojump_clock: MockClock) -> None:
    """An idle connection ends, another one with the requests that are there; the last answer says
    so.
    """
    go_on = trio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await reply(send, b"done")

    async with wired(Echo()) as peer:
        peer.connections.end_soon()
        assert await peer.rest() == b""
    async with wired(wait) as peer:
        await peer.send(GET + GET)
        await wait_all_tasks_blocked()
        peer.connections.end_soon()
        go_on.set()
        first, _, last = (await peer.rest()).partition(b"done")
        assert statuses(first) == statuses(last) == [200]
        assert b"connection: close" in last
    assert trio.current_time() == 0


async def test_a_request_on_its_way_is_answered_by_a_draining_server(
    autojump_clock: MockClock,
) -> None:
    """What has arrived and was not read yet, and the first request of a peer that had just
    connected, while others are waited for.
    """
    async with wired(Echo()) as peer:
        await peer.send(GET)
        peer.connections.end_soon()
        assert statuses(await peer.rest()) == [200]
    async with wired(Echo()) as peer, trio.open_nursery() as nursery:
        busy, accepted = socket.socketpair()
        accepted.setblocking(False)
        with busy:
            nursery.start_soon(peer.connections.handle, accepted, None)
            busy.sendall(GET[:10])
            await wait_all_tasks_blocked()
            nursery.start_soon(peer.connections.drain)
            await wait_all_tasks_blocked()
            await peer.send(GET)
            answer = await peer.rest()
            assert statuses(answer) == [200]
            assert b"connection: close" in answer
            busy.sendall(GET[10:])
    assert trio.current_time() == 0


def _assert_about(passed_s: float, meant_s: float) -> None:
    assert meant_s <= passed_s <= meant_s + 2 * DEADLINES.sweep_s


async def _drip(stream: trio.SocketStream, data: bytes) -> None:
    for byte in data:
        await stream.send_all(bytes([byte]))
        await trio.sleep(1)
