"""Reading bodies."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.api.errors import ApiError
from gateway.http.body import read_body
from gateway.http.error_responses import ClientGone
from gateway.http.response_writer import EXTENSION, ResponseWriter
from gateway.http.routes import edge_app
from tests.fakes.asgi import Exchange, Script, scripted_edge
from tests.fakes.wired import parsed, reply, wired


class Parts:
    """A client that sends its body in parts, then leaves if `leaves`."""

    def __init__(self, *parts: bytes, leaves: bool = False) -> None:
        self.parts = list(parts)
        self.leaves = leaves

    async def __call__(self) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        if not self.parts and self.leaves:
            return {"type": "http.disconnect"}
        part = self.parts.pop(0)
        more = bool(self.parts) or self.leaves
        return {"type": "http.request", "body": part, "more_body": more}


async def test_parts_are_joined() -> None:
    """A body in parts, with or without its length, is read whole, up to exactly the bound."""
    assert await read_body(Parts(b"ab", b"", b"cd"), [], 4) == b"abcd"
    assert await read_body(Parts(b"abc"), [(b"content-length", b"3")], 4) == b"abc"
    assert await read_body(Parts(b""), [], 4) == b""


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 413),
        ([(b"content-length", b"5")], 413),
        ([(b"content-length", b"\xb2")], 400),
        ([(b"content-length", b"+3")], 400),
        ([(b"content-length", b"3")], 400),
        ([(b"content-encoding", b"br")], 415),
    ],
)
async def test_what_cannot_be_read_is_an_error(
    headers: list[tuple[bytes, bytes]], status: int
) -> None:
    """Too much, a wrong length or a compressed body has its own status."""
    parts = Parts(b"abcd", b"e") if status == 413 else Parts(b"abcd")
    with pytest.raises(ApiError) as caught:
        await read_body(parts, headers, 4)
    assert caught.value.status == status


async def test_leaving_while_sending_is_no_error() -> None:
    """A client that leaves before its body is whole gets nothing and starts nothing."""
    with pytest.raises(ClientGone):
        await read_body(Parts(b"ab", leaves=True), [], 4)
    script = Script()
    exchange = Exchange(edge_app(scripted_edge(script)), body=b"{", more_body=True)
    exchange.disconnect()
    await exchange.run()
    assert not exchange.writes
    assert not script.requests


async def _echo_at_hand(scope: Scope, receive: Receive, send: Send) -> None:
    writer: ResponseWriter = scope["extensions"][EXTENSION]
    at_hand = writer.whole_body(9)
    body = at_hand if at_hand is not None else await read_body(receive, scope["headers"], 9)
    assert writer.whole_body(9) is None
    await reply(send, body + b"!" if at_hand is None else body)


@given(body=st.binary(max_size=12), cut=st.integers(0, 80), is_chunked=st.booleans())
def test_what_is_at_hand_is_the_body(body: bytes, cut: int, *, is_chunked: bool) -> None:
    """Wherever the request is cut, it is the same, or refused alike; a whole one is not awaited."""
    framed = b"content-length: %d\r\n\r\n%b" % (len(body), body)
    if is_chunked:
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        framed = b"transfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % chunk
    head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    request = head + framed
    edge = min(cut, len(request))

    async def main() -> None:
        async with wired(_echo_at_hand) as peer:
            await peer.send(request[:edge])
            await wait_all_tasks_blocked()
            await peer.send(request[edge:])
            ((status, answer),) = parsed(await peer.rest(), "POST")
        assert status == (200 if len(body) <= 9 else 413)
        is_cut = len(request) - len(framed) + framed.index(b"\r\n\r\n") + 4 <= edge < len(request)
        if status == 200:
            assert answer == body + b"!" * is_cut

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("coding", [b"br", b"identity\r\ncontent-encoding: gzip"])
async def test_a_compressed_body_is_refused(coding: bytes) -> None:
    """A compressed body is refused, also when all of it has arrived."""
    async with wired(_echo_at_hand) as peer:
        head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1\r\n"
        await peer.send(head + b"content-encoding: %b\r\n\r\nx" % coding)
        ((status, _),) = parsed(await peer.rest(), "POST")
    assert status == 415
