"""A server that lists models as a gateway does, and has nothing else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from gateway.http.routes import model_entry, model_list
from gateway.routing.models import ModelView

POLL_S = 0.02


class ListedModels(ThreadingHTTPServer):
    """Answers as the gateway lists its models; with `key` set, only with that key."""

    def __init__(self, *models: ModelView, key: str = "", body: bytes | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.key = key
        self.body = body

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ListedModels

    def do_GET(self) -> None:
        status, answer = self._answer()
        body = self.server.body or msgspec.json.encode(answer)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> tuple[int, dict[str, Any]]:
        if self.server.key and self.headers["authorization"] != f"Bearer {self.server.key}":
            return 401, {"error": {"message": "no"}}
        models, name = self.server.models, self.path.removeprefix("/v1/models").strip("/")
        if not self.path.startswith("/v1/models"):
            return 404, {}
        if not name:
            return 200, model_list(models, 1)
        known = [one for model in models for one in (model.name, *model.aliases)]
        return (200, model_entry(models, name, 1)) if name in known else (404, {})

    def log_message(self, *args: Any) -> None:
        """Nothing on the terminal."""


@contextmanager
def running(gateway: ListedModels) -> Iterator[ListedModels]:
    thread = threading.Thread(target=gateway.serve_forever, args=(POLL_S,))
    thread.start()
    try:
        yield gateway
    finally:
        gateway.shutdown()
        thread.join()
        gateway.server_close()
