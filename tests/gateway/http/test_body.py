"""Reading bodies."""

import pytest
import trio

from gateway.core.errors import ApiError
from gateway.http.body import ClientGone, read_body
from gateway.http.routes import edge_app
from tests.fakes.asgi import Exchange, Script, scripted_edge


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
