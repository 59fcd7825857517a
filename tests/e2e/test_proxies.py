"""HAProxy, nginx and Caddy before a gateway, by the configurations in the documentation."""

import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from config import hash_api_key
from tests.fakes.certificates import Authority
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports

DOCS: Final = Path(__file__).parents[2] / "docs"
KEY: Final = "sk-of-an-operator"
BOUND_S: Final = 60.0
NUM_STREAMS: Final = 8
CONFIG: Final = """
[gateway]
port = {port}
worker_bind = "ipc://{folder}/workers"
drain_s = 40.0

[[models]]
name = "m"

[[keys]]
name = "operator"
hash = "{hash}"
admin = true

[[workers]]
name = "w"
model = "builtin:herma-tiny"
engine = "synthetic"
serves = "m"
step_ms = 10
token_budget = 32
max_seqs = 16
drain_s = 40.0
"""


class Proxied:
    """A proxy at `url`, whose clients trust `verify`, before the gateway of `herma`."""

    def __init__(self, url: str, herma: HermaProcess, verify: Any = True) -> None:
        self.url = url
        self.herma = herma
        self._verify = verify
        self.client = self.another_client()

    def another_client(self) -> httpx.Client:
        url, verify = self.url, self._verify
        return httpx.Client(base_url=url, verify=verify, trust_env=False, timeout=BOUND_S)

    def get(self, path: str, key: str | None = None, host: str | None = None) -> int:
        headers = {} if host is None else {"host": host}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        with self.client.stream("GET", path, headers=headers) as reply:
            return reply.status_code

    def stream(self, num_tokens: int) -> str:
        """The whole text of a stream."""
        request = _request(num_tokens, stream=True)
        with self.client.stream("POST", "/v1/chat/completions", **request) as reply:
            return "".join(reply.iter_text())

    def num_running(self) -> int:
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"{self.herma.root_url}/metrics"
        samples = httpx.get(url, headers=headers, trust_env=False).text
        (value,) = re.findall(r"^herma_sequences_running (\S+)", samples, re.MULTILINE)
        return int(float(value))


def _request(num_tokens: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "m", "messages": messages, "max_tokens": num_tokens, "ignore_eos": True}
    return {"json": {**body, **fields}, "headers": {"authorization": f"Bearer {KEY}"}}


@contextmanager
def _running(words: list[str], url: str, verify: Any, **environ: str) -> Iterator[None]:
    with subprocess.Popen(words, env={**os.environ, **environ}) as process:
        try:
            wait_until(lambda: process.poll() is not None or _is_up(url, verify), words[0])
            assert process.poll() is None
            yield
        finally:
            process.terminate()


def _is_up(url: str, verify: Any) -> bool:
    try:
        return httpx.get(f"{url}/health", verify=verify, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _block(page: str, language: str, begin: str) -> str:
    fence = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    blocks = fence.findall((DOCS / page).read_text())
    (found,) = [text for kind, text in blocks if kind == language and begin in text]
    return str(found)


def _exact(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@contextmanager
def haproxy(folder: Path, herma: HermaProcess) -> Iterator[Proxied]:
    port = free_ports(1)
    text = _block("two-gateways.md", "haproxy", "backend gateways")
    text = _exact(text, "bind :8000", f"bind 127.0.0.1:{port}")
    text = _exact(text, "10.0.0.1:8080", herma.root_url.removeprefix("http://"))
    text = re.sub(r".*10\.0\.0\.2.*\n", "", text)
    config = folder / "haproxy.cfg"
    config.write_text(f"global\n  maxconn 1000\n{text}")
    url = f"http://127.0.0.1:{port}"
    with _running(["haproxy", "-db", "-f", str(config)], url, verify=True):
        yield Proxied(url, herma)


@contextmanager
def nginx(folder: Path, herma: HermaProcess) -> Iterator[Proxied]:
    port, authority = free_ports(1), Authority(folder)
    certificate, key = folder / "herma.pem", folder / "herma.key"
    authority.issue(certificate, key)
    text = _block("http.md", "nginx", "upstream herma")
    text = _exact(text, "127.0.0.1:8080", herma.root_url.removeprefix("http://"))
    text = _exact(text, "listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    text = _exact(text, "/etc/ssl/herma.pem", str(certificate))
    text = _exact(text, "/etc/ssl/herma.key", str(key))
    paths = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {paths}\n{text}}}\n"
    )
    url, verify = (
        f"https://127.0.0.1:{port}",
        ssl.create_default_context(cafile=authority.certificate),
    )
    words = ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(config)]
    with _running(words, url, verify):
        yield Proxied(url, herma, verify)


@contextmanager
def caddy(folder: Path, herma: HermaProcess) -> Iterator[Proxied]:
    port = free_ports(1)
    text = _block("http.md", "", "# Caddy")
    text = _exact(text, "herma.example.com {", f"http://:{port} {{\n    bind 127.0.0.1")
    text = _exact(text, "127.0.0.1:8080", herma.root_url.removeprefix("http://"))
    config = folder / "Caddyfile"
    config.write_text(f"{{\n    admin off\n}}\n{text}")
    url = f"http://127.0.0.1:{port}"
    words = ["caddy", "run", "--adapter", "caddyfile", "--config", str(config)]
    with _running(words, url, verify=True, HOME=str(folder), XDG_DATA_HOME=str(folder)):
        yield Proxied(url, herma)


Open = Callable[[Path, HermaProcess], Any]
PROXIES: Final[dict[str, Open]] = {"haproxy": haproxy, "nginx": nginx, "caddy": caddy}


@pytest.fixture(params=PROXIES)
def proxied(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Proxied]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    config = tmp_path / "herma.toml"
    port = free_ports(1)
    config.write_text(CONFIG.format(port=port, folder=tmp_path, hash=hash_api_key(KEY)))
    folder = tmp_path / "proxy"
    folder.mkdir()
    with (
        herma_up(config, port=port) as herma,
        PROXIES[request.param](folder, herma) as found,
        found.client,
    ):
        yield found


def test_the_documented_file_serves_and_hides_the_operators_pages(proxied: Proxied) -> None:
    """Streams come as they are written; nobody without a key gets an operator's page or a list,
    whichever Host he says; a client that leaves ends its work, also of a whole answer; a stop lets
    all open streams end.
    """
    for host in (None, "herma.example.com", "localhost", "127.0.0.1", "10.1.2.3:80"):
        for path in ("/metrics", "/events", "/v1/models", "/dashboard/state", "/", "/debug/route"):
            assert proxied.get(path, host=host) in {401, 403, 404}, (path, host)
    assert proxied.get("/metrics", KEY) == proxied.get("/v1/models", KEY) == 200

    for streamed in (True, False):
        request = _request(60_000, stream=streamed)
        with proxied.another_client() as leaving:
            url = "/v1/chat/completions"
            if streamed:
                with leaving.stream("POST", url, **request) as reply:
                    chunks = reply.iter_raw()
                    assert b"data:" in next(chunks)
                    assert proxied.num_running() == 1
            else:
                with pytest.raises(httpx.ReadTimeout):
                    leaving.post(url, **request, timeout=3.0)
        wait_until(lambda: proxied.num_running() == 0, "the end of the work", timeout_s=BOUND_S)

    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        texts = [threads.submit(proxied.stream, 500) for _ in range(NUM_STREAMS)]
        wait_until(lambda: proxied.num_running() == NUM_STREAMS, "the streams")
        proxied.herma.process.send_signal(signal.SIGTERM)
        ends = [text.result()[-14:] for text in texts]
    assert ends == ["data: [DONE]\n\n"] * NUM_STREAMS
    assert proxied.herma.process.wait(BOUND_S) == 0
