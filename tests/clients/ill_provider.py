"""A provider of chats on loopback that is ill: it breaks answers off, or is busy for a time.

Owns each illness and when it ends. It is chosen by the model's name; a request without tools (for a
title, say) is answered well. Must not know who asks.
"""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

BUSY_S: Final = 30.0
CUTS: Final = ("cut-head", "cut-event", "cut-text", "cut-call")
"""Before the head, before the first event, in the text, in a call."""

BUSY: Final = ("busy-429", "busy-503", "busy-529")

Choose = Callable[[str], dict[str, Any] | None]
"""The call that answers a conversation, given as text; None for the last words."""


class Illness:
    """When one model's provider is ill. A cut one is until `heal`, a busy one for `BUSY_S`."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._is_healed = False
        self._busy_since: float | None = None

    def fall_ill(self) -> None:
        """From now on, again."""
        self._is_healed, self._busy_since = False, None

    def heal(self) -> None:
        """Answers are whole from now on."""
        self._is_healed = True

    @property
    def is_cut(self) -> bool:
        return self.name in CUTS and not self._is_healed

    def busy_s(self) -> float:
        """How long it is still busy, from the first request on."""
        if self.name not in BUSY:
            return 0.0
        now = self._clock()
        if self._busy_since is None:
            self._busy_since = now
        return self._busy_since + BUSY_S - now


class IllProvider:
    """`url` ends in /v1. `illnesses` are by the model's name."""

    def __init__(self, choose: Choose) -> None:
        self.illnesses = {name: Illness(name) for name in (*CUTS, *BUSY)}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                illness = provider.illnesses.get(body["model"], Illness("well"))
                if not body.get("tools"):
                    illness = Illness("well")
                try:
                    _Answer(self, body, illness, choose).send()
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the gateway has left, because its client has

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def serve(self) -> None:
        """Until `shutdown`."""
        self._server.serve_forever(poll_interval=0.05)

    def shutdown(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def ill_provider(choose: Choose) -> Iterator[IllProvider]:
    """A provider for the length of the block."""
    provider = IllProvider(choose)
    thread = threading.Thread(target=provider.serve)
    thread.start()
    try:
        yield provider
    finally:
        provider.shutdown()
        thread.join()


class _Answer:
    """One answer on the wire."""

    def __init__(
        self,
        handler: BaseHTTPRequestHandler,
        body: dict[str, Any],
        illness: Illness,
        choose: Choose,
    ) -> None:
        self._handler = handler
        self._body = body
        self._illness = illness
        self._call = choose(json.dumps(body["messages"])) if body.get("tools") else None

    def send(self) -> None:
        left_s = self._illness.busy_s()
        cut = self._illness.name if self._illness.is_cut else ""
        if left_s > 0:
            self._refuse(int(self._illness.name[-3:]), math.ceil(left_s))
        elif cut == "cut-head":
            self._break_off()
        elif self._body.get("stream"):
            self._stream(cut)
        else:
            self._whole(cut)

    def _refuse(self, status: int, retry_after_s: int) -> None:
        self._head(status, "application/json", {"retry-after": str(retry_after_s)})
        self._chunk(b'{"error": {"message": "busy", "type": "overloaded_error"}}')
        self._chunk(b"")

    def _stream(self, cut: str) -> None:
        self._head(200, "text/event-stream")
        if cut == "cut-event":
            return self._break_off()
        self._event({"role": "assistant", "content": ""})
        if self._call is None:
            self._event({"content": "It is "})
            if cut == "cut-text":
                return self._break_off()
            self._event({"content": "done."})
        else:
            arguments = json.dumps(self._call["arguments"])
            half = len(arguments) // 2
            called = {"name": self._call["name"], "arguments": arguments[:half]}
            first = {"index": 0, "id": _call_id(self._body), "type": "function", "function": called}
            self._event({"tool_calls": [first]})
            if cut == "cut-call":
                return self._break_off()
            rest = {"index": 0, "function": {"arguments": arguments[half:]}}
            self._event({"tool_calls": [rest]})
        self._event({}, "stop" if self._call is None else "tool_calls")
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        self._data({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")
        return None

    def _whole(self, cut: str) -> None:
        if cut:
            return self._break_off()
        message: dict[str, Any] = {"role": "assistant", "content": "It is done."}
        if self._call is not None:
            function = {
                "name": self._call["name"],
                "arguments": json.dumps(self._call["arguments"]),
            }
            call = {"id": _call_id(self._body), "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        finish = "stop" if self._call is None else "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        self._head(200, "application/json")
        self._chunk(json.dumps({**self._base(), "choices": [choice], "usage": usage}).encode())
        self._chunk(b"")
        return None

    def _base(self) -> dict[str, Any]:
        return {"id": "chat-1", "created": 1, "model": self._body["model"], "object": "chat"}

    def _event(self, delta: dict[str, Any], finish: str | None = None) -> None:
        self._data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _data(self, fields: dict[str, Any]) -> None:
        body = {**self._base(), "object": "chat.completion.chunk", **fields}
        self._chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def _head(self, status: int, kind: str, headers: dict[str, str] | None = None) -> None:
        self._handler.send_response_only(status)
        for name, value in {"content-type": kind, **(headers or {})}.items():
            self._handler.send_header(name, value)
        self._handler.send_header("transfer-encoding", "chunked")
        self._handler.end_headers()

    def _chunk(self, data: bytes) -> None:
        self._handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self._handler.wfile.flush()

    def _break_off(self) -> None:
        """The connection ends here, without a last chunk."""
        self._handler.close_connection = True
        self._handler.connection.shutdown(socket.SHUT_RDWR)


def _call_id(body: dict[str, Any]) -> str:
    return f"call_{len(body['messages'])}"
