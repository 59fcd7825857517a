"""A proxy on loopback between a client and the gateway that writes down every request and answer.

Owns the record. Must not change a byte of a body, nor know what a test expects.
"""

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

UPSTREAM_S: Final = 300.0
_PIECE: Final = 65_536
_HOP: Final = {"connection", "keep-alive", "transfer-encoding", "host", "accept-encoding"}


@dataclass
class Asked:
    """A request and its answer. `status` is 0 while there is no head; `is_whole` says whether the
    answer ended as its head promised.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer_headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b""
    is_whole: bool = False

    @property
    def json(self) -> Any:
        """The body, None if it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def went_well(self) -> bool:
        """Answered with success, whole, and without an error inside of a stream."""
        return self.status < 400 and self.is_whole and not self._has_error

    @property
    def _has_error(self) -> bool:
        marks = (b'data: {"error"', b"event: error", b"event: response.failed")
        return any(mark in self.answer for mark in marks)


class RecordingProxy:
    """`root_url` is what a client is given; `asked` is everything that came, in order. `on_end` is
    called behind each answer.
    """

    def __init__(self, gateway_root_url: str) -> None:
        self.asked: list[Asked] = []
        self.on_end: Callable[[Asked], None] = lambda _: None
        parts = urlsplit(gateway_root_url)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass  # the record is `asked`

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the client has left

            def _pass_on(self) -> None:
                asked = Asked(self.command, self.path, _lower(self.headers), _body(self))
                proxy.asked.append(asked)
                wire = http.client.HTTPConnection(
                    parts.hostname or "", parts.port, timeout=UPSTREAM_S
                )
                try:
                    _exchange(self, asked, wire)
                finally:
                    wire.close()
                    proxy.on_end(asked)

            def __getattr__(self, name: str) -> Callable[[], None]:
                """The server calls do_GET, do_POST and so on."""
                if name.startswith("do_"):
                    return self._pass_on
                raise AttributeError(name)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.root_url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def serve(self) -> None:
        """Until `shutdown`."""
        self._server.serve_forever(poll_interval=0.05)

    def shutdown(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()

    def turns(self) -> list[Asked]:
        """The requests for an answer of the model that have tools; other requests of a client
        (titles, counts) are left out. For a client without tools, all requests for an answer.
        """
        answers = [one for one in self.asked if one.method == "POST" and _is_generation(one.path)]
        return [one for one in answers if (one.json or {}).get("tools")] or answers


@contextmanager
def recording_proxy(gateway_root_url: str) -> Iterator[RecordingProxy]:
    """A proxy for the length of the block."""
    proxy = RecordingProxy(gateway_root_url)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()


def _is_generation(path: str) -> bool:
    path = path.partition("?")[0]
    return path.endswith(("/chat/completions", "/messages", "/responses", "/completions"))


def _exchange(
    handler: BaseHTTPRequestHandler, asked: Asked, wire: http.client.HTTPConnection
) -> None:
    sent = {name: value for name, value in asked.headers.items() if name not in _HOP}
    try:
        wire.request(asked.method, asked.path, asked.body, sent)
        reply = wire.getresponse()
    except (OSError, http.client.HTTPException):
        handler.close_connection = True
        return
    asked.status = reply.status
    asked.answer_headers = {name.lower(): value for name, value in reply.getheaders()}
    handler.send_response_only(reply.status, reply.reason)
    for name, value in reply.getheaders():
        if name.lower() not in _HOP:
            handler.send_header(name, value)
    is_chunked = reply.chunked
    if is_chunked:
        handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    handler.wfile.flush()
    try:
        while data := reply.read1(_PIECE):
            asked.answer += data
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)
            handler.wfile.flush()
    except (http.client.IncompleteRead, ConnectionResetError, TimeoutError):
        handler.close_connection = True  # as the gateway did, without a last chunk
        return
    if not is_chunked or reply.isclosed():
        asked.is_whole = True
    if is_chunked:
        handler.wfile.write(b"0\r\n\r\n")
        handler.wfile.flush()


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    length = handler.headers.get("content-length")
    if length is not None:
        return handler.rfile.read(int(length))
    if "chunked" not in handler.headers.get("transfer-encoding", ""):
        return b""
    body = b""
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body
