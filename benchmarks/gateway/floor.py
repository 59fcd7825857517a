"""`python -m benchmarks.gateway.floor`: an HTTP server of a hundred lines, for comparison.

Owns the cheapest possible upstream: it answers at once, or sends an event every 20 ms to all
streams at the same absolute times. It is both the server of the direct run and a cloud provider.
Must not know gateways.

Prints its port. A request's `max_tokens` is the number of its words; a liveness probe gets one
word.
"""

from __future__ import annotations

import json
import re
import select
import socket
import time
from functools import cache
from typing import Final

STEP_S: Final = 0.02
_MAX_TOKENS: Final = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_STREAM: Final = re.compile(rb'"stream": ?true')
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_CHUNK_HEAD: Final = (
    '{"id":"chatcmpl-upstream","object":"chat.completion.chunk","created":1,"model":"up",'
)


@cache
def stream_events(num_tokens: int) -> tuple[bytes, ...]:
    """The events of a stream in order: a role, a word per token, the end, usage, [DONE]. Each has a
    field that no gateway knows.
    """
    deltas = [
        '"delta":{"role":"assistant","content":""},"finish_reason":null',
        *(f'"delta":{{"content":" word{i}"}},"finish_reason":null' for i in range(num_tokens)),
        '"delta":{},"finish_reason":"stop"',
    ]
    chunks = [
        f'{_CHUNK_HEAD}"choices":[{{"index":0,{delta}}}],"x_upstream":{{"n":{number}}}}}'
        for number, delta in enumerate(deltas)
    ]
    usage = {"prompt_tokens": 200, "completion_tokens": num_tokens, "total_tokens": num_tokens}
    chunks.append(f'{_CHUNK_HEAD}"choices":[],"usage":{json.dumps(usage)}}}')
    return tuple(f"data: {chunk}\n\n".encode() for chunk in (*chunks, "[DONE]"))


def whole_body(num_tokens: int) -> bytes:
    """The body of an answer in one piece."""
    message = {"role": "assistant", "content": " word" * num_tokens}
    return json.dumps(
        {
            "id": "chatcmpl-upstream",
            "object": "chat.completion",
            "created": 1,
            "model": "up",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 200, "completion_tokens": num_tokens, "total_tokens": 210},
        }
    ).encode()


class GatewayFloor:
    """All connections, and the streams due at the next tick."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._open: dict[int, socket.socket] = {}
        self._pending: dict[int, bytes] = {}
        self._streams: dict[int, list[bytes]] = {}
        self._tick_at = time.monotonic()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Serve until killed."""
        while True:
            now = time.monotonic()
            if now >= self._tick_at:
                self._tick()
                self._tick_at += STEP_S * max(1, round((now - self._tick_at) / STEP_S))
            rest_s = max(0.0, self._tick_at - time.monotonic()) if self._streams else -1.0
            for number, _ in self._poll.poll(rest_s):
                if number == self._listener.fileno():
                    self._accept()
                else:
                    self._read(number)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open[sock.fileno()] = sock
        self._pending[sock.fileno()] = b""
        self._poll.register(sock, select.EPOLLIN)

    def _read(self, number: int) -> None:
        try:
            data = self._open[number].recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self._close(number)
            return
        self._pending[number] += data
        head, blank, body = self._pending[number].partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if blank and len(body) >= (int(length[1]) if length is not None else 0):
            self._pending[number] = b""
            self._answer(number, body)

    def _answer(self, number: int, body: bytes) -> None:
        most = _MAX_TOKENS.search(body)
        num_tokens = int(most[1]) if most is not None else 1
        if _STREAM.search(body) is None:
            text = whole_body(num_tokens)
            head = (
                f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}"
            )
            self._send(number, head.encode() + b"\r\n\r\n" + text)
            return
        role, *words = stream_events(num_tokens)
        self._send(number, _STREAM_HEAD + _chunk(role))
        # The last ones in one write: nothing waits for a known end.
        self._streams[number] = [b"".join(map(_chunk, words[num_tokens:])) + b"0\r\n\r\n"]
        self._streams[number] += map(_chunk, reversed(words[:num_tokens]))
        if len(self._streams) == 1:
            self._tick_at = time.monotonic() + STEP_S

    def _tick(self) -> None:
        for number, events in list(self._streams.items()):
            self._send(number, events.pop())
            if not events:
                self._streams.pop(number, None)

    def _send(self, number: int, data: bytes) -> None:
        try:
            self._open[number].sendall(data)
        except OSError:
            self._close(number)

    def _close(self, number: int) -> None:
        self._streams.pop(number, None)
        self._pending.pop(number, None)
        if (sock := self._open.pop(number, None)) is not None:
            self._poll.unregister(number)
            sock.close()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


if __name__ == "__main__":
    floor = GatewayFloor()
    print(floor.port, flush=True)
    floor.run()
