"""Secrets and prompts in every place that takes them: none is in any output or file of Herma.

`tests/secrets_in_logs.py` looks at all tests' processes for what looks like a key. Here is planted
what other tests do not have: a provider that quotes the key in its error, secrets in
addresses, in a file that is wrong, in requests that are refused.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from config import hash_api_key
from protocol.transport import write_curve_pair
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports

SESSION = "session-of-an-agent"
"""The name of a conversation: for the dashboard, `/admin` and the ledger, not for logs."""
SECRET = "planted"
"""In every secret below, and in every prompt and answer; in nothing else."""
CLIENT = f"sk-client-{SECRET}"
PROVIDER = f"sk-provider-{SECRET}"
HOOK = f"hook-{SECRET}"
PROMPT = f"the prompt is {SECRET} here"

CONFIG = """
[gateway]
port = 0
worker_bind = "tcp://127.0.0.1:{port}"
curve_secret_file = "{folder}/gateway.key"
curve_worker_keys = {{ w = '{worker}' }}
log = "requests"
spending_thresholds = [1]

[[models]]
name = "m"

[[models]]
name = "far"
fallback = [{{ provider = "cloud", model = "vendor/big" }}]

[providers.cloud]
base_url = "{provider}"
api_key_env = "CLOUD_KEY"
price = {{ input = 1, output = 1 }}
max_output_tokens = 100
limits = {{ daily = 1 }}

[[keys]]
name = "k"
hash = "{hash}"
admin = true
rate_limit = {{ requests_per_minute = 1000 }}

[[alerts]]
name = "hook"
url_env = "HOOK"

[[alerts]]
name = "token"
url = "{provider}/alerts"
token_env = "HOOK_TOKEN"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
engine = "scripted"
script = "{folder}/script.toml"
serves = "m"
curve_secret_file = "{folder}/worker.key"
curve_server_key = '{gateway}'
"""
WRONG = """
[providers.cloud]
base_url = "http://user:{secret}@127.0.0.1:9/{secret}"
api_key = "{secret}"
price = "{secret}"
[[keys]]
name = "x"
hash = "{secret}"
cache = "shared"
[[alerts]]
name = "y"
url = "ftp://127.0.0.1/{secret}"
"""


class _Quoting(BaseHTTPRequestHandler):
    """A provider, and a receiver of alerts, that quotes what it was sent in its refusal."""

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        said = self.rfile.read(size).decode(errors="replace")[:300]
        key = self.headers["authorization"]
        text = f"Incorrect API key provided: {key}. You sent {said}"
        body = json.dumps({"error": {"message": text, "code": "invalid_api_key"}}).encode()
        self.send_response(401 if "alerts" not in self.path else 500, text[:20])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Drop the log of the test's server, which is not Herma's."""


@contextmanager
def _quoting() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Quoting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _command(words: str, environ: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "herma", *words.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **environ},
    )
    return done.stdout + done.stderr


def _write_config(folder: Path, provider: str) -> Path:
    gateway, worker = (write_curve_pair(folder / f"{one}.key") for one in ("gateway", "worker"))
    answer = json.dumps(f"the answer is {SECRET} too")
    (folder / "script.toml").write_text(f'[[rules]]\ncontains = ""\nanswer = {answer}\n')
    path = folder / "herma.toml"
    path.write_text(
        CONFIG.format(
            folder=folder,
            port=free_ports(1),
            gateway=gateway,
            worker=worker,
            provider=provider,
            hash=hash_api_key(CLIENT),
        )
    )
    return path


def _ask(client: httpx.Client, model: str, headers: dict[str, str], **fields: Any) -> int:
    messages = [{"role": "user", "content": PROMPT}]
    body = {"model": model, "messages": messages, "max_tokens": 20, **fields}
    return client.post("/chat/completions", json=body, headers=headers).status_code


def _ask_all(client: httpx.Client) -> None:
    """Answers, refusals, and bytes that are none."""
    known = {"authorization": f"Bearer {CLIENT}", "x-session-id": SESSION}
    unknown = {"x-api-key": f"sk-other-{SECRET}"}
    assert _ask(client, "m", known) == 200
    assert _ask(client, "m", known, stream=True) == 200
    assert _ask(client, "m", unknown) == 401
    assert _ask(client, "far", known) >= 400
    assert _ask(client, "far", known, stream=True) >= 400
    assert _ask(client, f"no-{SECRET}", known) == 404
    assert _ask(client, "m", known, tools=[{"type": f"{SECRET}"}]) == 400
    assert _ask(client, "m", known, response_format={"type": SECRET}) == 400
    broken = f'{{"model": "m", "messages": "{SECRET}'.encode()
    for path in ("/chat/completions", "/responses", "/messages", "/embeddings", "/tokenize"):
        assert client.post(path, content=broken, headers=known).status_code == 400
    assert client.delete("/responses/resp_1", headers=known).status_code == 404
    assert client.get(f"/nothing?key={SECRET}", headers=known).status_code == 404


def _seen(herma: HermaProcess, client: httpx.Client, state: Path) -> dict[str, str]:
    """All that is shown or kept, by its place. What is stored on demand, as responses, is not."""
    known = {"authorization": f"Bearer {CLIENT}"}
    seen = {"output": "".join(herma.output)}
    for path in ("/metrics", "/dashboard/state", "/health", "/openapi.json"):
        reply = client.get(f"{herma.root_url}{path}", headers=known)
        assert reply.status_code == 200
        seen[path] = reply.text
    for file in state.rglob("*"):
        if file.is_file() and not file.name.startswith("responses"):
            seen[str(file)] = file.read_bytes().decode("latin-1")
    return seen


def test_what_is_secret_is_nowhere(tmp_path: Path) -> None:
    """Keys, tokens in addresses, CURVE secrets, prompts and answers."""
    with _quoting() as provider, TemporaryDirectory(prefix="herma-test-") as runtime_dir:
        path, state = _write_config(tmp_path, provider), tmp_path / "state"
        environ = {
            "HERMA_RUNTIME_DIR": runtime_dir,
            "XDG_STATE_HOME": str(state),
            "CLOUD_KEY": PROVIDER,
            "HOOK": f"{provider}/alerts/{HOOK}?token={HOOK}",
            "HOOK_TOKEN": f"token-{SECRET}",
        }
        with herma_up(path, **environ) as herma:
            with httpx.Client(base_url=herma.base_url, timeout=300) as client:
                _ask_all(client)
                commands = [
                    _command(words, environ)
                    for words in (
                        "worker status",
                        "diff",
                        f"doctor --config {path}",
                    )
                ]
                path.write_text(path.read_text() + WRONG.format(secret=SECRET))
                refused = [
                    _command("reload", environ),
                    _command(f"config check {path}", environ),
                ]
                assert all("herma.toml:" in one for one in refused), refused
                wait_until(lambda: "alerts hook" in "".join(herma.output), "an alert that fails")
                seen = _seen(herma, client, state)
            herma.stop()
        seen |= {f"command {number}": text for number, text in enumerate(commands + refused)}
        secrets = [SECRET, *_curve_secrets(tmp_path)]
    assert len(seen["output"].splitlines()) > 10
    found = {
        f"{place}: ...{text[max(0, at - 100) : at + 60]}..."
        for place, text in seen.items()
        for secret in secrets
        if (at := text.find(secret)) >= 0
    }
    assert not found
    shown = {place for place, text in seen.items() if SESSION in text}
    assert not shown & {"output", "/metrics"}, shown
    assert "/dashboard/state" in shown


def _curve_secrets(folder: Path) -> list[str]:
    """The secrets of both pairs of CURVE keys."""
    texts = [(folder / f"{one}.key").read_text() for one in ("gateway", "worker")]
    secrets = [text.partition("\nsecret ")[2].strip() for text in texts]
    assert [len(one) for one in secrets] == [40, 40]
    return secrets
