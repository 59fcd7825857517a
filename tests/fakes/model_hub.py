"""A model hub on loopback: real HTTP, the routes that `huggingface_hub` uses, a folder of files."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class ModelHub:
    """Serves `folder/OWNER/NAME/...` as the repository OWNER/NAME; remembers what was fetched."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.fetched: list[str] = []


@contextmanager
def model_hub(folder: Path) -> Iterator[ModelHub]:
    """A hub for the length of the block."""

    class Handler(_Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.hub = ModelHub(folder, f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Handler.hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ModelHub

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass

    def _answer(self, *, with_body: bool) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        match parts:
            case ["api", "models", owner, name, "revision", _]:
                info = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": []}
                self._send_if(self._repo(owner, name), json.dumps(info).encode(), with_body)
            case ["api", "models", owner, name, "tree", *_]:
                listing = json.dumps(self._tree(owner, name)).encode()
                self._send_if(self._repo(owner, name), listing, with_body)
            case [owner, name, "resolve", commit, *rest] if commit == COMMIT:
                path = self._repo(owner, name).joinpath(*rest)
                if with_body:
                    self.hub.fetched.append("/".join(rest))
                self._send_if(path, path.read_bytes() if path.is_file() else b"", with_body)
            case _:
                self._send(404, b"", with_body)

    def _repo(self, owner: str, name: str) -> Path:
        return self.hub.folder / owner / name

    def _tree(self, owner: str, name: str) -> list[dict[str, object]]:
        repo = self._repo(owner, name)
        return [
            {
                "type": "file",
                "path": str(path.relative_to(repo)),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            }
            for path in sorted(repo.rglob("*"))
            if path.is_file()
        ]

    def _send_if(self, path: Path, body: bytes, with_body: bool) -> None:
        if path.exists():
            self._send(200, body, with_body)
        else:
            self._send(404, b"", with_body, error="RepoNotFound")

    def _send(self, status: int, body: bytes, with_body: bool, error: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if with_body:
            self.wfile.write(body)
