"""A server that breaks: an OpenAI-compatible API, as text engine and as provider.

Owns the ways to break, by what breaks. A request says in its last message which way it wants
(`way=NAME`); others, such as health probes, get a right answer. It prints the question of each
request that it has read. A line on its standard input is the way in which its health breaks from
then on; an empty one heals it. `python -m tests.chaos.liar PORT good` is a server that always
answers.
"""

import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

WORDS: Final = ("All ", "of ", "the ", "answer.")
LONG_S: Final = 30.0
_WAY: Final = re.compile(r"way=([a-z-]+)")
QUESTION: Final = re.compile(r"way=[a-z-]+ [a-z-]+ [a-z]+ \w+")
_USAGE: Final = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def chunk(choices: list[Any], **more: Any) -> bytes:
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "there"}
    return b"data: " + json.dumps({**body, "choices": choices, **more}).encode() + b"\n\n"


def delta(content: str | None, finish: str | None = None) -> bytes:
    said = {} if content is None else {"content": content}
    return chunk([{"index": 0, "delta": said, "finish_reason": finish}])


def whole(content: str = "".join(WORDS), **more: Any) -> bytes:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "there"}
    return json.dumps({**body, "choices": [choice], "usage": _USAGE, **more}).encode()


DONE: Final = b"data: [DONE]\n\n"
TOLD: Final = tuple(map(delta, WORDS))
END: Final = delta(None, "stop")


class Wire:
    """The raw connection of one request. `streamed`: the client wants events."""

    def __init__(self, connection: socket.socket, *, streamed: bool) -> None:
        self._connection = connection
        self.streamed = streamed

    def raw(self, data: bytes) -> None:
        self._connection.sendall(data)

    def head(self, status: int = 200, **headers: str) -> None:
        kind = "text/event-stream" if self.streamed and status == 200 else "application/json"
        named = {"content-type": kind, "connection": "close", **headers}
        lines = [f"HTTP/1.1 {status} X", *(f"{k.replace('_', '-')}: {v}" for k, v in named.items())]
        self.raw("\r\n".join([*lines, "", ""]).encode())

    def body(self, *pieces: bytes) -> None:
        """Chunks of a body that has no end yet."""
        for piece in pieces:
            self.raw(b"%x\r\n%b\r\n" % (len(piece), piece))

    def end(self) -> None:
        self.raw(b"0\r\n\r\n")

    def begin(self) -> None:
        self.head(transfer_encoding="chunked")

    def answer(self, events: tuple[bytes, ...], answer: bytes) -> None:
        """A regular response with these events, or with this body."""
        self.begin()
        self.body(*(events if self.streamed else (answer,)))
        self.end()

    def slowly(self, piece: bytes, every_s: float = 0.1) -> None:
        """Send the same bytes again and again."""
        until = time.monotonic() + LONG_S
        while time.monotonic() < until:
            self.body(piece)
            time.sleep(every_s)


def right(wire: Wire) -> None:
    wire.answer((*TOLD, END, chunk([], usage=_USAGE), DONE), whole())


def _refusing(status: int, **headers: str) -> Callable[[Wire], None]:
    def refuse(wire: Wire) -> None:
        error = b'{"error": {"message": "it is so", "type": "x", "param": null, "code": "y"}}'
        wire.head(status, content_length=str(len(error)), **headers)
        wire.raw(error)

    return refuse


def _bodied(events: tuple[bytes, ...], answer: bytes) -> Callable[[Wire], None]:
    return lambda wire: wire.answer(events, answer)


def _dribbling_head(wire: Wire) -> None:
    wire.raw(b"HTTP/1.1 200 OK\r\n")
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        wire.raw(b"x")
        time.sleep(0.1)


def _cut_within(wire: Wire) -> None:
    wire.head(content_length="9999")
    wire.raw(b"".join(TOLD[:2]) if wire.streamed else whole()[:40])


def _bad_chunk(wire: Wire) -> None:
    wire.begin()
    wire.body(*(TOLD[:2] if wire.streamed else (whole()[:40],)))
    wire.raw(b"zz\r\nnonsense\r\n")


def _half_event(wire: Wire) -> None:
    wire.begin()
    wire.body(*((TOLD[0], TOLD[1][:20]) if wire.streamed else (whole()[:20],)))
    wire.end()


def _then(first: tuple[bytes, ...], ping: bytes | None) -> Callable[[Wire], None]:
    """Answer with these events, or half of a whole answer; then with pings, or nothing."""

    def say(wire: Wire) -> None:
        wire.begin()
        wire.body(*(first if wire.streamed else (whole()[: 10 * len(first)] or b" ",)))
        if ping is None:
            time.sleep(LONG_S)
        else:
            wire.slowly(ping if wire.streamed else b" ")

    return say


_ERROR: Final = b'data: {"error": {"message": "it broke", "code": 500}}\n\n'

WAYS: Final[dict[str, dict[str, Callable[[Wire], None]]]] = {
    "connect": {"cut-at-once": lambda _: None, "never-answers": lambda _: time.sleep(LONG_S)},
    "head": {
        "status-five-hundred": _refusing(500),
        "status-bad-gateway": _refusing(502),
        "status-moved": _refusing(302, location="http://127.0.0.1:9/"),
        "status-unauthorised": _refusing(401),
        "head-garbage": lambda wire: wire.raw(b"\x00\x01 nonsense\r\n\r\n"),
        "head-dribbles": _dribbling_head,
    },
    "body": {
        "web-page": _bodied((b"<html>no</html>",), b"<html>no</html>"),
        "body-empty": _bodied((), b""),
        "body-cut": _cut_within,
    },
    "framing": {"bad-chunk": _bad_chunk, "half-event": _half_event},
    "content": {
        "error-inside": _bodied((_ERROR,), b'{"error": {"message": "it broke"}}'),
        "error-late": _bodied((TOLD[0], _ERROR), b'{"error": {"message": "it broke"}}'),
        "garbage-late": _bodied((TOLD[0], b"data: {no\n\n"), b"{no"),
        "no-choices": _bodied((chunk([]), DONE), whole(choices=[])),
        "no-content": _bodied((DONE,), b"{}"),
    },
    "end": {
        "no-done": _bodied((*TOLD, END), whole()),
        "no-finish": _bodied(TOLD, b""),
        "data-behind-done": _bodied((*TOLD, END, DONE, TOLD[0]), whole()),
    },
    "usage": {
        "usage-odd": _bodied((*TOLD, END, chunk([], usage="many"), DONE), whole(usage=[1])),
        "usage-negative": _bodied(
            (*TOLD, END, chunk([], usage={"prompt_tokens": -3}), DONE),
            whole(usage={"prompt_tokens": -3}),
        ),
    },
    "time": {
        "pings-first": _then((), b": ping\n\n"),
        "silent-head": _then((), None),
        "pings-after-words": _then(TOLD[:2], b": ping\n\n"),
        "empty-after-words": _then(TOLD[:2], delta("")),
        "blank-after-words": _then(TOLD[:2], b"\n\n"),
        "silent-after-words": _then(TOLD[:2], None),
    },
}
BY_NAME: Final = {name: way for ways in WAYS.values() for name, way in ways.items()}


def _models(wire: Wire) -> None:
    body = b'{"object": "list", "data": [{"id": "there", "max_model_len": 4096}]}'
    wire.head(200, content_length=str(len(body)))
    wire.raw(body)


HEALTH: Final = ("health-lies", "health-fails", "health-hangs", "health-dribbles", "health-flaps")
"""`health-lies`: it is well and every answer fails; `health-fails`: the other way round."""


class _Handler(BaseHTTPRequestHandler):
    is_good = False
    health = ""

    def do_GET(self) -> None:
        self.close_connection = True
        wire = Wire(self.connection, streamed=False)
        try:
            self._health()(wire)
        except OSError:
            return

    def _health(self) -> Callable[[Wire], None]:
        match self.health:
            case "health-fails":
                return _refusing(500)
            case "health-flaps" if int(time.monotonic()) % 2:
                return _refusing(500)
            case "health-hangs":
                return lambda _: time.sleep(LONG_S)
            case "health-dribbles":
                return _dribbling_head
        return _models

    def do_POST(self) -> None:
        self.close_connection = True
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = json.dumps(body.get("messages", ""))
        if (question := QUESTION.search(said)) and not self.is_good:
            print(question[0], flush=True)
        found = _WAY.search(said)
        way = BY_NAME.get(found[1], right) if found and not self.is_good else right
        if self.health == "health-lies":
            way = BY_NAME["status-five-hundred"]
        try:
            way(Wire(self.connection, streamed=bool(body.get("stream"))))
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def _take_orders() -> None:
    for line in sys.stdin:
        _Handler.health = line.strip()
        print(f"ordered {_Handler.health}", flush=True)


if __name__ == "__main__":
    _Handler.is_good = "good" in sys.argv
    threading.Thread(target=_take_orders, daemon=True).start()
    _Server(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
