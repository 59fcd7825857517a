"""Every way in which a provider fails, and what a client may see of it.

Owns the failing providers, and the rule: the next of the chain answers, or one clear error comes
within the deadline; no address and no key in anything that a client or a log shows. Must not know
workers: there are none.
"""

import functools
import json
import os
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import trio

from tests.chaos.fleet import free_port
from tests.fakes.herma_process import HermaProcess, herma_up
from tests.fakes.provider import FakeProvider

FIRST_TOKEN_S: Final = 1.0
DEADLINE_S: Final = FIRST_TOKEN_S + 1.0
"""The provider's own, and a second of a loaded machine."""

KEY: Final = "sk-chaos-secret-of-{name}"
CUT: Final = "upstream connection lost"

PROVIDER = """
[providers.{name}]
base_url = "{url}"
api_key_env = "{variable}"
connect_s = 1.0
first_token_s = {first_token_s}
answer_s = {first_token_s}
"""
MODEL = """
[[models]]
name = "{name}"
fallback = [{chain}]
"""


class Mumbling(FakeProvider):
    """Says 200 and then no JSON."""

    def events(self, _model: str, _usage: dict[str, Any] | None = None) -> list[bytes]:
        """See `FakeProvider`."""
        return [b"data: {nonsense\n\n", b"data: [DONE]\n\n"]

    def whole(self, _model: str) -> bytes:
        """See `FakeProvider`."""
        return b"<html>Bad gateway</html>"


@dataclass(frozen=True, slots=True)
class Cloud:
    """A way to fail. `cuts`: text was out already, so a stream cannot go elsewhere. `streams`: only
    those fail. `pause_s` is the pause that a request waits out for want of another cloud.
    """

    name: str
    provider: FakeProvider | None
    cuts: bool = False
    streams: bool = False
    is_tls: bool = False
    pause_s: float = 0.0


def telling(status: int, **headers: str) -> FakeProvider:
    """A refusal whose text tells what nobody must know."""
    text = f"upstream http://10.1.2.3:8000/internal refused {KEY.format(name='internal')}"
    body = json.dumps({"error": {"message": text, "type": "x", "param": None, "code": "y"}})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return FakeProvider(status=status, error_body=body.encode(), headers=named)


def clouds() -> list[Cloud]:
    """All of them, fresh."""
    return [
        Cloud("down", None),
        Cloud("slow", FakeProvider(delay_s=30.0)),
        Cloud("stalled", FakeProvider(first_delay_s=30.0), streams=True),
        # Longer than a request waits for the end of a pause, and shorter.
        Cloud("busy", telling(429, retry_after="30")),
        Cloud("paused", telling(429, retry_after="3"), pause_s=3.0),
        Cloud("broken", telling(500)),
        Cloud("refusing", telling(401)),
        Cloud("cut", FakeProvider(cut_after=2), cuts=True),
        Cloud("mumbling", Mumbling()),
        Cloud("impostor", FakeProvider(), is_tls=True),
    ]


@dataclass(slots=True)
class Bed:
    """A gateway with two models for each cloud: `NAME-chain` has a good one behind it."""

    herma: HermaProcess
    secrets: list[str]


def certificate(name: str, folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate that signs itself, for `name` only, and a server's context that shows it."""
    shown, key = folder / "certificate.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    argv += ["-nodes", "-days", "2", "-subj", f"/CN={name}"]
    argv += ["-addext", f"subjectAltName=DNS:{name}", "-out", str(shown), "-keyout", str(key)]
    subprocess.run(argv, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(shown, key)
    return shown, context


@asynccontextmanager
async def open_bed(folder: Path) -> AsyncIterator[tuple[Bed, list[Cloud]]]:
    """All clouds, and the gateway before them, for the length of the block."""
    os.makedirs(folder)  # noqa: PTH103 - one call, before anything runs
    trusted, tls = await trio.to_thread.run_sync(certificate, "elsewhere.example", folder)
    found = clouds()
    async with trio.open_nursery() as nursery:
        urls = {"good": await nursery.start(FakeProvider().serve)}
        for cloud in found:
            if cloud.provider is None:
                urls[cloud.name] = f"http://127.0.0.1:{free_port()}/v1"
                continue
            serve = cloud.provider.serve
            start = functools.partial(serve, tls=tls) if cloud.is_tls else serve
            urls[cloud.name] = await nursery.start(start)
        keys = {f"KEY_{name.upper()}": KEY.format(name=name) for name in urls}
        (folder / "herma.toml").write_text(_config(folder, urls))
        manager = herma_up(folder / "herma.toml", SSL_CERT_FILE=str(trusted), **keys)
        herma = await trio.to_thread.run_sync(manager.__enter__)
        try:
            yield Bed(herma, _secrets(urls, keys)), found
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(manager.__exit__, None, None, None)
            nursery.cancel_scope.cancel()


def _config(folder: Path, urls: dict[str, str]) -> str:
    parts = [f'[gateway]\nport = 0\nworker_bind = "ipc://{folder}/workers"\n']
    for name, url in urls.items():
        variable = f"KEY_{name.upper()}"
        table = {"name": name, "url": url, "variable": variable, "first_token_s": FIRST_TOKEN_S}
        parts.append(PROVIDER.format(**table))
        bad, good = (f'{{ provider = "{one}", model = "big" }}' for one in (name, "good"))
        parts += [
            MODEL.format(name=f"{name}-chain", chain=f"{bad}, {good}" if name != "good" else bad),
            MODEL.format(name=f"{name}-only", chain=bad),
        ]
    return "".join(parts)


def _secrets(urls: dict[str, str], keys: dict[str, str]) -> list[str]:
    """What must stand nowhere: addresses of providers, keys, what providers said of their own."""
    hosts = [url.split("/")[2] for url in urls.values()]
    return [*hosts, *keys.values(), KEY.format(name="internal"), "10.1.2.3"]


async def run_bad_clouds(folder: Path) -> tuple[int, list[str]]:
    """Every cloud, streamed and whole, with and without another behind it. Returns how many
    answers were judged, and what was wrong with them.
    """
    problems: list[str] = []
    shown: list[str] = []
    async with open_bed(folder) as (bed, found):
        url = bed.herma.base_url
        async with httpx.AsyncClient(timeout=60, base_url=url, trust_env=False) as client:
            for cloud in found:
                for kind in ("chain", "only"):
                    for stream in (True, False)[: 2 - cloud.streams]:
                        problems += await _try(client, cloud, kind, stream=stream, shown=shown)
        log = "".join(bed.herma.output)
        for secret in bed.secrets:
            problems += [f"{secret} in an answer: {t[:200]}" for t in shown if secret in t]
            problems += [f"{secret} in the log"] if secret in log else []
    return len(shown), problems


async def _try(
    client: httpx.AsyncClient, cloud: Cloud, kind: str, *, stream: bool, shown: list[str]
) -> list[str]:
    body = {
        "model": f"{cloud.name}-{kind}",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": stream,
    }
    asked_at = time.monotonic()
    reply = await client.post("/chat/completions", json=body)
    took_s = time.monotonic() - asked_at
    shown.append(f"{dict(reply.headers)} {reply.text}")
    label = f"{cloud.name}-{kind}, {'streamed' if stream else 'whole'}"
    problems = []
    if took_s > DEADLINE_S + cloud.pause_s:
        problems.append(f"{label}: took {took_s:.1f} s")
    wrong = _wrong(reply, cloud, kind, stream=stream)
    if wrong:
        problems.append(f"{label}: {wrong}: {reply.status_code} {reply.text[:160]!r}")
    return problems


def _wrong(reply: httpx.Response, cloud: Cloud, kind: str, *, stream: bool) -> str:
    """What is wrong with the answer, or nothing."""
    is_done = "data: [DONE]" in reply.text
    if stream and cloud.cuts:
        is_cut = reply.status_code == 200 and reply.text.count('"error":') == 1
        return "" if is_cut and CUT in reply.text and not is_done else "is not one clear cut"
    if kind == "chain":
        is_good = reply.status_code == 200 and "afar" in reply.text and is_done == stream
        return "" if is_good and '"error"' not in reply.text else "is not the next one's answer"
    if reply.status_code < 400 or set(reply.json()) != {"error"}:
        return "is not one clear error"
    if cloud.name in {"busy", "paused"} and "retry-after" not in reply.headers:
        return "has no Retry-After"
    return ""
