"""Reading bodies, and answers that come before their end."""

import pytest
import trio
from trio.testing import MockClock

from gateway.core.errors import ApiError
from gateway.http.body import BODY_SILENCE_S, ClientGone, read_body
from gateway.http.politeness import LINGER_S
from gateway.http.routes import edge_app
from tests.fakes.asgi import Exchange, Script, chat_body, scripted_edge


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


async def test_a_stalled_body_is_408(autojump_clock: MockClock) -> None:
    """A client that stops sending is answered, then left after the lingering time."""
    came_at = trio.current_time()
    exchange = Exchange(edge_app(scripted_edge(Script())), body=b"{", more_body=True)
    await exchange.run()
    assert exchange.status == 408
    assert exchange.writes[1][0] - came_at == BODY_SILENCE_S
    assert exchange.writes[-1][0] - came_at == BODY_SILENCE_S + LINGER_S


async def test_an_early_answer_is_whole_before_the_rest_is_read(autojump_clock: MockClock) -> None:
    """A refusal does not wait for the rest of the body."""
    came_at = trio.current_time()
    exchange = Exchange(edge_app(scripted_edge(Script())), path="/nothing", more_body=True)
    await exchange.run()
    assert exchange.writes[1][0] == came_at
    assert exchange.json["error"]["message"]


async def test_a_whole_body_ends_the_answer_at_once(autojump_clock: MockClock) -> None:
    """Nobody lingers when there is nothing left to read."""
    came_at = trio.current_time()
    await Exchange(edge_app(scripted_edge(Script())), path="/nothing", body=chat_body()).run()
    assert trio.current_time() == came_at
