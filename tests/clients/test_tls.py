"""The official clients over TLS, with a certificate of a private authority.

They see what they see in plain text: the same checks, and every observation is the same. The
authority comes from the environment, as their users give it.
"""

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from openai import OpenAI

from tests.clients.conftest import FLEET, KEY, SMALL_WINDOW, sha256
from tests.fakes.certificates import Authority
from tests.fakes.herma_process import HermaProcess, herma_up

BOUND_S = 180
HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("CLIENTS_DIR", HERE.parents[1] / ".clients")).absolute()
SLOW_SCRIPT = """
[[rules]]
contains = "slowly"
answer = "{answer}"
token_ms = 20
"""
ANSWER = "It is what it is, and it is never far away. " * 6

CLIENTS = {
    "installed": [sys.executable, HERE / "check_openai.py"],
    "openai-2": [ENVIRONMENTS / "openai-2/bin/python", HERE / "check_openai.py"],
    "openai-3": [ENVIRONMENTS / "openai-3/bin/python", HERE / "check_openai.py"],
    "anthropic-0": [ENVIRONMENTS / "anthropic-0/bin/python", HERE / "check_anthropic.py"],
    "anthropic-2": [ENVIRONMENTS / "anthropic-2/bin/python", HERE / "check_anthropic.py"],
    "node": ["node", HERE / "check_openai.mjs", ENVIRONMENTS / "node"],
}


class _Secured:
    """A fleet over TLS, and the files of its certificate."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.files = folder / "tls.pem", folder / "tls.key"
        self.authority.issue(*self.files)
        self.trust = ssl.create_default_context(cafile=self.authority.certificate)
        script = folder / "script.toml"
        script.write_text(SLOW_SCRIPT.format(answer=ANSWER) + (HERE / "script.toml").read_text())
        certificate, key = self.files
        tls = f'tls_certificate_file = "{certificate}"\ntls_key_file = "{key}"\n[[models]]'
        text = FLEET.format(
            folder=folder, script=script, window=SMALL_WINDOW, hash=sha256(KEY)
        ).replace("[[models]]", tls, 1)
        self.config = folder / "herma.toml"
        self.config.write_text(text)
        self.herma: HermaProcess

    def environ(self) -> dict[str, str]:
        """What a user sets for Python's and for Node's clients."""
        trusted = str(self.authority.certificate)
        return {**os.environ, "SSL_CERT_FILE": trusted, "NODE_EXTRA_CA_CERTS": trusted}

    def shown(self) -> bytes:
        """The certificate that a new connection gets."""
        parts = urlsplit(self.herma.base_url)
        assert parts.hostname is not None
        assert parts.port is not None
        text = ssl.get_server_certificate(
            (parts.hostname, parts.port), ca_certs=str(self.authority.certificate)
        )
        return ssl.PEM_cert_to_DER_cert(text)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Secured]:
    """The clients' fleet behind TLS."""
    one = _Secured(tmp_path_factory.mktemp("tls"))
    with herma_up(one.config) as herma:
        one.herma, herma.trust = herma, one.trust
        assert herma.base_url.startswith("https://127.0.0.1:")
        herma.wait_models_ready({"alpha": 1, "narrow": 1})
        yield one


def _seen(client: str, url: str, environ: dict[str, str]) -> dict[str, Any]:
    argv = [*map(str, CLIENTS[client]), url, KEY]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=BOUND_S, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr
    # One text names the request that failed.
    same = re.sub(r"request [0-9a-f]{8}", "request ID", done.stdout)
    observed: dict[str, Any] = json.loads(same)
    return observed


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sees_over_tls_what_it_sees_without(
    client: str, secured: _Secured, scripted: HermaProcess
) -> None:
    """Answers, streams, tools, errors, cancelled requests."""
    if client != "installed" and "CLIENTS_DIR" not in os.environ:
        pytest.skip("`make test-clients` makes the environments and runs this")
    is_anthropic = client.startswith("anthropic")
    urls = [one.root_url if is_anthropic else one.base_url for one in (scripted, secured.herma)]
    plain, encrypted = (_seen(client, url, secured.environ()) for url in urls)
    assert encrypted == plain


def test_a_client_that_does_not_trust_it_is_not_answered(secured: _Secured) -> None:
    """A client that does not trust the certificate gets no answer, and the gateway serves the next
    client.
    """
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{secured.herma.base_url}/models", trust_env=False)
    assert httpx.get(f"{secured.herma.root_url}/health", verify=secured.trust).status_code == 200


def test_a_stream_outlives_a_renewed_certificate(
    secured: _Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next connection gets the new one; the stream's bytes go on."""
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.authority.certificate))
    first = secured.shown()
    with OpenAI(base_url=secured.herma.base_url, api_key=KEY, max_retries=0) as client:
        stream = client.chat.completions.create(
            model="alpha",
            messages=[{"role": "user", "content": "Say it slowly"}],
            stream=True,
        )
        text, renewed = "", b""
        for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            if text and not renewed:
                secured.authority.issue(*secured.files)
                renewed = secured.shown()
                assert len(text) < len(ANSWER), "the answer was over before"
    assert renewed != first
    assert text.strip() == ANSWER.strip()
