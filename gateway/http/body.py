"""The body of a request, bounded.

Owns how many bytes are read; the server bounds the time. Must not know what the bytes mean.
"""

from collections.abc import Iterable
from io import BytesIO

from starlette.types import Receive

from gateway.api import ApiError
from gateway.http.error_responses import ClientGone


async def read_body(
    receive: Receive, headers: Iterable[tuple[bytes, bytes]], max_bytes: int
) -> bytes:
    """The whole body, at most `max_bytes`.

    Raises `ApiError` 413 for a larger body (at once if Content-Length announces it), 400 for a
    Content-Length that is no number or differs from the body's, 415 for a compressed body;
    `ClientGone`; and what `receive` raises (408 for a client that stalls).
    """
    expected = _check_headers(headers, max_bytes)
    # Joining the parts of 28 MB at the end would take 27 ms at once.
    whole = BytesIO()
    size = 0
    more = True
    while more:
        part, more = await _next_part(receive)
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        whole.write(part)
    if expected is not None and size != expected:
        raise ApiError(400, f"Content-Length says {expected} bytes, but the body has {size}.")
    return whole.getvalue()


async def _next_part(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


def _check_headers(headers: Iterable[tuple[bytes, bytes]], max_bytes: int) -> int | None:
    length: int | None = None
    for name, value in headers:
        if name == b"content-length":
            if not value.isdigit():
                text = value.decode("latin-1")[:40]
                raise ApiError(400, f"Content-Length is {text!r}, not a number of bytes.")
            length = int(value)
            if length > max_bytes:
                raise _too_large(max_bytes)
        elif name == b"content-encoding" and value.strip().lower() not in {b"", b"identity"}:
            raise ApiError(415, "Compressed request bodies are not taken; send plain JSON.")
    return length


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"The request body is larger than the {max_bytes} bytes that are taken here "
        "([gateway] max_body_bytes).",
        code="request_too_large",
    )
