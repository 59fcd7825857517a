"""Whole responses over ASGI.

Owns how a status, headers and a body become ASGI messages. Must not know what they say.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
from starlette.types import Send

Header = tuple[bytes, bytes]

JSON: Final = b"application/json"
JSON_TYPE: Final[Header] = (b"content-type", JSON)

_PRINTABLE: Final = bytes(byte if 0x20 <= byte <= 0x7E else ord("?") for byte in range(256))
_encode = msgspec.json.Encoder().encode


async def send_body(
    send: Send,
    status: int,
    body: bytes,
    *,
    content_type: bytes = JSON,
    headers: Iterable[Header] = (),
) -> None:
    """Send a whole response; the server leaves the body out for HEAD."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_json(send: Send, value: object, *, status: int = 200) -> None:
    """Send `value` as JSON."""
    await send_body(send, status, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """`value` as JSON; a large one takes long, so make it beside the loop."""
    return _encode(value)


def header(name: bytes, value: object) -> Header:
    """A header whose value cannot break the response: printable ASCII only."""
    return name, str(value).encode("ascii", "replace").translate(_PRINTABLE)
