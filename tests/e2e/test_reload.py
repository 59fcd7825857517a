"""The file changes while 16 clients read: what they read is the same to the byte."""

import getpass
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import trio

from config import hash_api_key
from tests.fakes.checked_http import checked_async_client
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.provider import FakeProvider, open_provider

BOUND_S = 120.0
STREAMS = 16
TOKENS = 100
"""At 10 ms each: some streams are open at each reload."""
KEY = {"authorization": "Bearer sk-test"}

CONFIG = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"
{gateway}

[[models]]
name = "m"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
engine = "synthetic"
serves = "m"
step_ms = 10
max_seqs = 32
{worker}
"""

MORE_MODELS = """
[[models]]
name = "far"
aliases = ["afar"]
fallback = [{{ provider = "cloud", model = "vendor/big" }}]

[providers.cloud]
base_url = "{provider}"
price = {{ input = 1, output = 1 }}
{limits}
"""

KEYS = """
[[keys]]
name = "k"
hash = "{hash}"
"""


class _File:
    """The configuration, and the command that has it taken."""

    def __init__(self, folder: Path, runtime_dir: str) -> None:
        self.path = folder / "herma.toml"
        self.audit = folder / "state/herma/audit.jsonl"
        self._folder = folder
        self._environ = {**os.environ, "HERMA_RUNTIME_DIR": runtime_dir}

    def write(self, more: str = "", *, gateway: str = "", worker: str = "") -> None:
        text = CONFIG.format(folder=self._folder, gateway=gateway, worker=worker)
        self.path.write_text(text + more)

    async def reload(self) -> tuple[int, str]:
        """The exit status and the output of `herma reload`."""
        done = await trio.run_process(
            [sys.executable, "-m", "herma", "reload"],
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            env=self._environ,
        )
        return done.returncode, done.stdout.decode()


@contextmanager
def _runtime_dir() -> Iterator[str]:
    """A short one: the address of a unix socket has 107 bytes at the most."""
    with TemporaryDirectory(prefix="herma-test-") as folder:
        yield folder


async def test_16_streams_outlive_every_reload(tmp_path: Path) -> None:
    """Models, aliases, providers, limits, keys and a worker's keys come and go; a broken file
    changes nothing; what needs a restart is named. No stream notices.
    """
    with _runtime_dir() as runtime_dir:
        file = _File(tmp_path, runtime_dir)
        file.write()
        async with open_provider() as provider:
            state = {"HERMA_RUNTIME_DIR": runtime_dir, "XDG_STATE_HOME": str(tmp_path / "state")}
            manager = herma_up(file.path, **state)
            herma = await trio.to_thread.run_sync(manager.__enter__)
            try:
                with trio.fail_after(BOUND_S):
                    await _stream_and_reload(herma, file, provider)
            finally:
                await trio.to_thread.run_sync(manager.__exit__, None, None, None)
    _check_audit(file.audit)


async def _stream_and_reload(herma: HermaProcess, file: _File, provider: FakeProvider) -> None:
    async with checked_async_client(herma.base_url, timeout_s=BOUND_S) as client:
        texts = [await _read(client)]
        is_over = False

        async def read_on() -> None:
            while not is_over:
                texts.append(await _read(client))

        async with trio.open_nursery() as nursery:
            for _ in range(STREAMS):
                nursery.start_soon(read_on)
            await _reload(client, herma, file, provider)
            is_over = True
        assert texts == texts[:1] * len(texts)
        assert len(texts) > STREAMS


async def _read(client: httpx.AsyncClient) -> str:
    """The text of a stream, and why it ended."""
    body = {**_body("m"), "max_tokens": TOKENS, "seed": 7, "ignore_eos": True, "stream": True}
    text = ""
    async with client.stream("POST", "/chat/completions", json=body, headers=KEY) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                text += choice["delta"].get("content", "") + (choice["finish_reason"] or "")
    return text


def _body(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}]}


async def _ask(client: httpx.AsyncClient, model: str, **headers: str) -> httpx.Response:
    body = {**_body(model), "max_tokens": 4}
    return await client.post("/chat/completions", json=body, headers=headers)


async def _reload(
    client: httpx.AsyncClient, herma: HermaProcess, file: _File, provider: FakeProvider
) -> None:
    assert (await _ask(client, "afar")).status_code == 404
    more = MORE_MODELS.format(provider=provider.base_url, limits="")
    file.write(
        more, gateway='max_queue = 9\nhost = "127.0.0.2"', worker="stall_s = 60\nmax_waiting = 9"
    )
    status, said = await file.reload()
    assert status == 3, said
    assert "taken: [gateway] max_queue, model `far` (new), provider `cloud` (new)" in said
    assert "not taken without a restart: [gateway] host" in said
    assert "taken: stall_s" in said
    assert "not taken without a restart: max_waiting: herma worker restart w" in said
    answer = await _ask(client, "afar")
    assert answer.headers["x-herma-served-by"] == "cloud:cloud"

    file.write(more + "[[models]]\nnam = 3\n")
    status, said = await file.reload()
    assert status == 1
    assert said.count("herma.toml:") == said.count("nothing is reloaded") == 3, said
    assert (await _ask(client, "far")).status_code == 200

    limits = "limits = { daily = 0 }\n"
    keys = KEYS.format(hash=hash_api_key("sk-test"))
    file.write(MORE_MODELS.format(provider=provider.base_url, limits=limits) + keys)
    _hang_up(herma)
    await trio.to_thread.run_sync(_wait_reloaded, file.audit)
    assert (await _ask(client, "far")).status_code == 401
    refused = await _ask(client, "far", **KEY)
    assert refused.status_code == 429, refused.text
    assert refused.json()["error"]["code"] == "spending_limit_reached"


def _check_audit(path: Path) -> None:
    """Each reload and the end, of both processes: the sender, and how it ended."""
    assert path.stat().st_mode & 0o777 == 0o600
    acts = [json.loads(line) for line in path.read_text().splitlines()]
    for process in ("gateway", "worker w"):
        own = [one for one in acts if one["process"] == process]
        assert [one["act"] for one in own] == ["reload", "reload", "reload", "drain"]
        assert [one["who"].split(" (pid ")[0] for one in own] == [
            *[f"user {getpass.getuser()}"] * 2, "SIGHUP", "SIGTERM or SIGINT"
        ]  # fmt: skip
        assert own[0]["result"].startswith("taken: ")
        assert own[1]["result"].startswith("refused: ")
    assert "key `k` (new)" in next(
        one["result"] for one in acts if one["who"] == "SIGHUP" and one["process"] == "gateway"
    )


def _hang_up(herma: HermaProcess) -> None:
    """What systemd and operators send; `herma up` passes it on."""
    herma.process.send_signal(signal.SIGHUP)


def _wait_reloaded(audit: Path) -> None:
    """Return once both processes have read the file at the signal: SIGTERM may follow then."""
    wait_until(lambda: audit.read_text().count('"SIGHUP"') == 2, "both reloads")


ANOTHER = """
[[workers]]
name = "w2"
model = "builtin:herma-tiny"
engine = "synthetic"
serves = "m"
"""


async def test_a_new_worker_starts_and_one_that_is_gone_drains(tmp_path: Path) -> None:
    """The command and SIGHUP both start a new worker and drain one that is gone; a worker that this
    host cannot run changes nothing.
    """
    with _runtime_dir() as runtime_dir:
        file = _File(tmp_path, runtime_dir)
        file.write()
        state = {"HERMA_RUNTIME_DIR": runtime_dir, "XDG_STATE_HOME": str(tmp_path / "state")}
        manager = herma_up(file.path, **state)
        herma = await trio.to_thread.run_sync(manager.__enter__)
        try:
            with trio.fail_after(BOUND_S):
                await _change_workers(herma, file)
        finally:
            await trio.to_thread.run_sync(manager.__exit__, None, None, None)


async def _change_workers(herma: HermaProcess, file: _File) -> None:
    async def wait_ready(count: int) -> None:
        await trio.to_thread.run_sync(herma.wait_models_ready, {"m": count})

    await wait_ready(1)
    file.write(ANOTHER.replace("builtin:herma-tiny", "/nowhere"))
    status, said = await file.reload()
    assert status == 1
    assert "worker `w2`" in said
    file.write(ANOTHER)
    status, said = await file.reload()
    assert status == 0, said
    assert "taken: worker `w2` (new): it starts" in said
    await wait_ready(2)
    status, said = await file.reload()
    assert status == 0, said
    assert "up (pid" in said
    assert "taken" not in said

    file.write()
    status, said = await file.reload()
    assert status == 0, said
    assert "taken: worker `w2` (gone): it drains" in said
    await trio.to_thread.run_sync(_wait_alone, herma)
    file.write(ANOTHER)
    _hang_up(herma)
    await wait_ready(2)
    file.write()
    _hang_up(herma)
    await trio.to_thread.run_sync(_wait_alone, herma)
    assert "herma: worker w2 is gone from the file: it drains and ends\n" in herma.output


def _wait_alone(herma: HermaProcess) -> None:
    wait_until(lambda: not herma.pids("herma worker w2"), "the end of w2")
