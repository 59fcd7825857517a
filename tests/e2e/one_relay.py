"""The cost of a relayed answer in calls of our functions, by the counter of `one_way`.

A gateway runs in a process of its own under `sys.setprofile`; behind it is a provider that sends
each event by itself. What runs between two sends to the client is the way of the event that the
later one carries. Of several answers the one with the fewest calls counts: a ping or a tick that
falls into it is no part of the way.

`python -m tests.e2e.one_relay` prints the calls of each part.
"""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.e2e.one_way import READY_S, ROOT, SENT, Call, state_of

NUM_ANSWERS: Final = 16
IDLE_S: Final = 0.05
"""The gateway finishes a request behind its last byte."""


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "up"} | {
        "choices": [choice]
    }


def _call(arguments: str, **fields: Any) -> dict[str, Any]:
    """A part of a call, which is whole in its first chunk if it has a name and its arguments."""
    function = {"arguments": arguments} | {k: v for k, v in fields.items() if k == "name"}
    part = {"index": 0, "function": function} | {k: v for k, v in fields.items() if k != "name"}
    return _chunk({"tool_calls": [part]})


EVENTS: Final = {
    "role": _chunk({"role": "assistant", "content": ""}),
    "word 1": _chunk({"content": " one"}),
    "word 2": _chunk({"content": " two"}),
    "word 3": _chunk({"content": " three"}),
    "call": _call("", id="call_1", type="function", name="f"),
    "arguments 1": _call('{"a": '),
    "arguments 2": _call('"b'),
    "arguments 3": _call('c"}'),
    "end": _chunk({}, "tool_calls"),
}


_may_send: Final = threading.Semaphore(0)
"""The client has the event before: however slow the gateway is, each event goes by itself."""


class _Upstream(BaseHTTPRequestHandler):
    """Sends `EVENTS` and the usage, each once the client has the one before, or a short answer in
    one piece.
    """

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        usage = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
        if not asked.get("stream"):
            message = {"role": "assistant", "content": "Yes."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._whole(
                {"id": "c", "object": "chat.completion", "created": 1, "model": "up"}
                | {"choices": [choice], "usage": usage}
            )
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        last = {**_chunk({}), "choices": [], "usage": usage}
        for event in EVENTS.values():
            assert _may_send.acquire(timeout=READY_S)
            self._send(json.dumps(event))
        # Read together with the last event, the rest of the answer would be part of its way.
        assert _may_send.acquire(timeout=READY_S)
        self._send(json.dumps(last))
        self._send("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, event: str) -> None:
        data = f"data: {event}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _whole(self, reply: dict[str, Any]) -> None:
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def trace_relay() -> dict[str, int]:
    """Run a gateway before a provider, and count the calls: to the request to the provider, of each
    event behind the first, and in all of a whole answer.
    """
    with TemporaryDirectory() as folder, _gateway(Path(folder)) as ask:
        for is_streamed in (True, False):
            ask(is_streamed)
        streams = [parts for _ in range(NUM_ANSWERS) if (parts := _parts(ask(True)))]
        wholes = [len(_ours(ask(False))) for _ in range(NUM_ANSWERS)]
    return {name: min(one[name] for one in streams) for name in streams[0]} | {"whole": min(wholes)}


def _parts(calls: list[Call]) -> dict[str, int]:
    """The first send is the request to the provider, and each later one an event to the client; the
    role goes out with the first word. Empty where the gateway sent events together.
    """
    sends = [i for i, call in enumerate(calls) if call == SENT]
    names = list(EVENTS)[2:]
    edges = sends[1 : len(names) + 2]
    if len(sends) < len(names) + 3:
        return {}
    parts = {
        name: len(_ours(calls[begin:end]))
        for name, begin, end in zip(names, edges, edges[1:], strict=False)
    }
    return {"request": len(_ours(calls[: sends[0]])), **parts}


def _ours(calls: list[Call]) -> list[Call]:
    return [call for call in calls if call[0]]


@contextmanager
def _gateway(folder: Path) -> Iterator[Callable[[bool], list[Call]]]:
    """A traced gateway before the provider: asks, streamed or not, and returns the calls."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Upstream)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = folder / "gateway.toml"
    config.write_text(
        f'[gateway]\nport = 0\nworker_bind = "ipc://{folder}/workers"\n'
        f'[ledger]\npath = "{folder}/ledger.sqlite"\n[[models]]\nname = "m"\n'
        'fallback = [{ provider = "p", model = "up" }]\n'
        f'[providers.p]\nbase_url = "http://127.0.0.1:{server.server_port}/v1"\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.one_way", "--gateway", str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HERMA_RUNTIME_DIR": str(folder)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        host, port = re.findall(r"//(.+):(\d+)", line)[0]
        with socket.create_connection((host, int(port))) as connection:
            yield lambda is_streamed: _asked(process, connection, is_streamed)
    finally:
        process.terminate()
        process.communicate(timeout=READY_S)
        server.shutdown()
        server.server_close()


def _asked(
    process: subprocess.Popen[str], connection: socket.socket, is_streamed: bool
) -> list[Call]:
    """The calls of one answer, from the bytes of the request to the gateway's rest."""
    deadline = time.monotonic() + READY_S
    while state_of(process.pid) != "S":
        assert time.monotonic() < deadline
        time.sleep(0.001)
    _obeyed(process, "record")
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"model": "m", "messages": messages, "stream": is_streamed, "max_tokens": 50}
    body = json.dumps(asked).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    received = b""
    while _may_send.acquire(blocking=False):
        pass
    _may_send.release(2)
    while not (received.endswith(b"0\r\n\r\n") if is_streamed else b'"Yes."' in received):
        data = connection.recv(65_536)
        assert data, received
        for _ in range((received + data).count(b"data: ") - received.count(b"data: ")):
            _may_send.release()
        received += data
    assert received.startswith(b"HTTP/1.1 200"), received
    time.sleep(IDLE_S)
    return [(path, name) for path, name in json.loads(_obeyed(process, "report"))]


def _obeyed(process: subprocess.Popen[str], command: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{command}\n")
    process.stdin.flush()
    while not (line := process.stdout.readline()).startswith(("recording", "[")):
        assert line, "the gateway ended"
    return line


if __name__ == "__main__":
    print(*(f"{name}: {count}" for name, count in trace_relay().items()), sep="\n")
