"""A connection that has ended is freed at once, without the garbage collector: a collection stops
all streams, for 20 ms and more after some hundred connections that waited for it.
"""

import gc
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import trio

from tests.fakes.running_gateway import wait_until
from tests.fakes.whole_gateway import WholeGateway, whole_gateway

NUM_TIMES = 10
MAX_LEFT = 100
"""Objects of other tasks; ten connections have over 300."""


def chat(**fields: object) -> bytes:
    messages = [{"role": "user", "content": "Hello?"}]
    return json.dumps({"model": "alpha", "messages": messages, **fields}).encode()


def request(body: bytes, *headers: str, length: int | None = None) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: localhost", *headers]
    head = "\r\n".join([*lines, f"content-length: {len(body) if length is None else length}"])
    return head.encode() + b"\r\n\r\n" + body


STREAM = chat(stream=True, max_tokens=500, ignore_eos=True)
SENT = {
    "one request": request(chat(max_tokens=2), "connection: close"),
    "two requests": request(chat(max_tokens=2)) + request(chat(max_tokens=2), "connection: close"),
    "a mistake": request(b"{", "connection: close"),
    "no request": b"what?\r\n\r\n",
    "nothing": b"",
    "a part of a head": b"POST /v1/chat/completions HTT",
    "a part of a body": request(b"{", length=30_000),
    "a stream that is left": request(STREAM),
    "an answer that is left": request(chat(max_tokens=500, ignore_eos=True)),
}


@pytest.fixture
def collector() -> Iterator[None]:
    """Collects only when it is told to."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", SENT)
@pytest.mark.usefixtures("collector")
async def test_a_connection_that_has_ended_is_freed_at_once(name: str) -> None:
    async with whole_gateway() as gateway:
        gateway.worker.pause_after = 3
        await _come_and_leave(gateway, SENT[name])
        gc.collect()
        for _ in range(NUM_TIMES):
            await _come_and_leave(gateway, SENT[name])
        assert gc.collect() < MAX_LEFT


async def _come_and_leave(gateway: WholeGateway, data: bytes) -> None:
    """Send this, read what comes at first, and close the connection; return once it has ended."""
    before = trio.lowlevel.current_statistics().tasks_living
    parts = urlsplit(gateway.url)
    assert parts.hostname is not None
    async with await trio.open_tcp_stream(parts.hostname, parts.port or 0) as stream:
        if data:
            await stream.send_all(data)
        with trio.move_on_after(5 if b"close" in data or b"stream" in data else 0.05):
            await stream.receive_some()
    await wait_until(lambda: trio.lowlevel.current_statistics().tasks_living <= before)
