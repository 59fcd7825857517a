"""What one request and one chunk of a stream cost a server, in CPU time of its own process.

Owns the load and the sums: bare ASGI apps without any work, 64 connections flat out, the server in
a process of its own. `python -m benchmarks.http_server [--json FILE]`.

CPU time is the sturdy figure on a shared machine; rates are not reported. The client is plain
sockets, so that it costs less than what it measures.
"""

import argparse
import functools
import json
import multiprocessing
import resource
import selectors
import socket
import statistics
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.machine import describe_machine
from gateway.http.response_writer import EXTENSION
from gateway.http.server import serve

NUM_CONNECTIONS: Final = 64
NUM_CHUNKS: Final = 256
REPLY: Final = b'{"text": "' + b"x" * 1900 + b'"}'
CHUNK: Final = b"data: " + b"x" * 192 + b"\n\n"
REQUEST: Final = (
    b"POST /%b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    b"authorization: Bearer 0123456789abcdef\r\nuser-agent: bench\r\n"
    b"accept: */*\r\ncontent-length: 900\r\n\r\n" + b"y" * 900
)
_HEADERS: Final = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(REPLY))]
_STREAM: Final = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
_END: Final = b"0\r\n\r\n"


@dataclass(frozen=True)
class Case:
    """`units` is how many things one request has, which share its cost."""

    name: str
    app: str
    path: bytes
    units: int
    num_requests: int


CASES: Final = (
    Case("herma, raw, request", "raw", b"json", 1, 20_000),
    Case("herma, starlette, request", "starlette", b"json", 1, 20_000),
    Case("herma, raw, chunk by send", "raw", b"stream", NUM_CHUNKS, 640),
    Case("herma, raw, chunk by push", "raw", b"push", NUM_CHUNKS, 640),
)


async def raw_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body and answers with one piece, or with chunks by either door."""
    while (await receive())["more_body"]:
        pass
    if scope["path"] == "/json":
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": REPLY, "more_body": False})
    elif scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        for _ in range(NUM_CHUNKS):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        await _push(scope)


async def _push(scope: Scope) -> None:
    push = scope["extensions"][EXTENSION]
    push.open(200, _STREAM)
    for _ in range(NUM_CHUNKS):
        push.write(CHUNK)
        # As a stream that waits for its engine does.
        await trio.lowlevel.checkpoint()
    push.end()


async def _json(request: Request) -> Response:
    await request.body()
    return Response(REPLY, media_type="application/json")


def _starlette_app() -> ASGIApp:
    others = [Route(f"/other/{i}", _json, methods=["POST"]) for i in range(13)]
    return Router([*others, Route("/json", _json, methods=["POST"])])


_APPS: Final[dict[str, Callable[[], ASGIApp]]] = {
    "raw": lambda: raw_app,
    "starlette": _starlette_app,
}


def _serve(case: Case, pipe: Connection) -> None:
    """The server's process: tells its port, then its CPU seconds whenever it is asked."""

    async def answer(url: str) -> None:
        pipe.send(int(url.rsplit(":", 1)[1]))
        while True:
            await trio.lowlevel.wait_readable(pipe.fileno())
            pipe.recv()
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(usage.ru_utime + usage.ru_stime)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            app = _APPS[case.app]()
            url = await nursery.start(functools.partial(serve, app, host="127.0.0.1", port=0))
            await answer(url)

    trio.run(main)


class _Load:
    """Keeps every connection busy with one request after the other."""

    def __init__(self, port: int, case: Case) -> None:
        self._request = REQUEST % case.path
        self._ends_with = b'"}' if case.path == b"json" else _END
        self._selector = selectors.DefaultSelector()
        for _ in range(NUM_CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ)

    def run(self, num_requests: int) -> None:
        """Have `num_requests` answered, a multiple of the connections."""
        left = {key.fileobj: num_requests // NUM_CONNECTIONS for key in self._keys()}
        for connection in left:
            connection.sendall(self._request)
        while left:
            for key, _ in self._selector.select():
                connection: Any = key.fileobj
                if connection.recv(2**18).endswith(self._ends_with):
                    left[connection] -= 1
                    if left[connection]:
                        connection.sendall(self._request)
                    else:
                        del left[connection]

    def close(self) -> None:
        """Close all connections."""
        for key in list(self._keys()):
            key.fileobj.close()
        self._selector.close()

    def _keys(self) -> Collection[selectors.SelectorKey]:
        return self._selector.get_map().values()


def cpu_us(case: Case, num_runs: int) -> list[float]:
    """CPU microseconds of the server per unit, one figure per run."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(case, theirs))
    process.start()
    load = _Load(ours.recv(), case)
    num_requests = case.num_requests // NUM_CONNECTIONS * NUM_CONNECTIONS
    load.run(num_requests // 4 // NUM_CONNECTIONS * NUM_CONNECTIONS or NUM_CONNECTIONS)
    figures = []
    for _ in range(num_runs):
        before = _ask(ours)
        load.run(num_requests)
        figures.append((_ask(ours) - before) * 1e6 / num_requests / case.units)
    load.close()
    process.kill()
    process.join()
    return figures


def _ask(pipe: Connection) -> float:
    pipe.send(None)
    seconds: float = pipe.recv()
    return seconds


def main() -> int:
    """Print the table, and write it as JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", metavar="WORD", default="", help="cases whose name holds WORD")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "machine": describe_machine(("trio", "httptools", "starlette")),
        "cpu_us": {},
    }
    for case in CASES:
        if arguments.only not in case.name:
            continue
        figures = cpu_us(case, arguments.runs)
        median = statistics.median(figures)
        report["cpu_us"][case.name] = round(median, 1)
        print(f"{case.name:32} {median:7.1f} us  ({min(figures):.1f} to {max(figures):.1f})")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
