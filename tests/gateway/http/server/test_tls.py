"""TLS: real handshakes on loopback, streams, clients that leave, certificates that change."""

import functools
import os
import shutil
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from starlette.types import Receive, Scope, Send

from gateway.http.server import Certificates, serve
from protocol.errors import ConfigError
from tests.fakes.certificates import certificate_for

BOUND_S = 60.0
PIECE = b"x" * 50_000


class App:
    """Streams ten pieces; `/slow` until its client leaves; else the body comes back."""

    def __init__(self) -> None:
        self.left = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/slow":
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
            return
        if scope["path"] == "/pieces":
            for _ in range(10):
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def secured(app: App, folder: Path) -> AsyncIterator[tuple[str, ssl.SSLContext]]:
    """A server for localhost, and a client's context that trusts it alone."""
    certificate, _ = certificate_for("localhost", folder)
    certificates = Certificates(str(certificate), str(folder / "key.pem"))
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            start = functools.partial(serve, app, host="127.0.0.1", port=0, drain_s=1.0)
            url = await nursery.start(functools.partial(start, certificates=certificates))
            assert url.startswith("https://127.0.0.1:")
            address = url.replace("127.0.0.1", "localhost")
            yield address, ssl.create_default_context(cafile=certificate)
            nursery.cancel_scope.cancel()


async def test_answers_streams_and_uploads_pass_through(tmp_path: Path) -> None:
    async with secured(App(), tmp_path) as (url, trust), httpx.AsyncClient(verify=trust) as client:
        for _ in range(3):
            echoed = await client.post(f"{url}/echo", content=PIECE * 4)
            assert echoed.content == PIECE * 4
        pieces = await client.get(f"{url}/pieces")
        assert pieces.content == PIECE * 10


async def test_a_client_that_leaves_is_noticed(tmp_path: Path) -> None:
    app = App()
    async with secured(app, tmp_path) as (url, trust):
        port = int(url.rpartition(":")[2])
        client = await trio.open_ssl_over_tcp_stream(
            "localhost", port, ssl_context=trust, https_compatible=True
        )
        await client.send_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        said = b""
        while b"begun" not in said:
            said += await client.receive_some()
        await client.aclose()
        await app.left.wait()


async def test_plain_text_and_silence_disturb_nobody(tmp_path: Path) -> None:
    async with secured(App(), tmp_path) as (url, trust), httpx.AsyncClient(verify=trust) as client:
        port = int(url.rpartition(":")[2])
        plain = await trio.open_tcp_stream("127.0.0.1", port)
        silent = await trio.open_tcp_stream("127.0.0.1", port)
        await plain.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        said = b""
        try:
            while piece := await plain.receive_some():
                said += piece
        except trio.BrokenResourceError:
            pass
        assert b"HTTP" not in said
        assert (await client.post(f"{url}/echo", content=b"1")).content == b"1"
        await silent.aclose()
        await plain.aclose()


async def test_a_changed_certificate_is_used_from_the_next_connection_on(tmp_path: Path) -> None:
    """A changed certificate is used from the next connection on; one that cannot be read is not
    used.
    """
    async with secured(App(), tmp_path) as (url, trust):
        async with httpx.AsyncClient(verify=trust) as client:
            assert (await client.post(f"{url}/echo", content=b"1")).status_code == 200
        other = tmp_path / "other"
        other.mkdir()
        renewed, _ = certificate_for("localhost", other)
        (tmp_path / "key.pem").write_text("no key")
        async with httpx.AsyncClient(verify=trust) as client:
            assert (await client.post(f"{url}/echo", content=b"1")).status_code == 200
        shutil.copy(other / "key.pem", tmp_path / "key.pem")
        shutil.copy(renewed, tmp_path / "certificate.pem")
        os.utime(tmp_path / "certificate.pem", ns=(1, 1))
        newly = ssl.create_default_context(cafile=renewed)
        async with httpx.AsyncClient(verify=newly) as client:
            assert (await client.post(f"{url}/echo", content=b"1")).status_code == 200


@pytest.mark.parametrize(("days", "is_said"), [(1, False), (3, True)])
def test_a_certificate_that_has_expired_is_said_at_the_start(
    days: int, is_said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The start reports an expired certificate and serves it, because some clients do not check.
    The test's certificate is valid for two days.
    """
    path, _ = certificate_for("localhost", tmp_path)
    clock = time.time() + days * 86_400
    Certificates(str(path), str(tmp_path / "key.pem"), lambda: clock)
    assert ("has expired on" in caplog.text) == is_said


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        certificate_for("localhost", folder)
    with pytest.raises(ConfigError, match="tls_certificate_file, tls_key_file"):
        Certificates(str(first / "certificate.pem"), str(second / "key.pem"))
    with pytest.raises(ConfigError, match="PEM"):
        Certificates(str(first / "missing.pem"), str(second / "key.pem"))
