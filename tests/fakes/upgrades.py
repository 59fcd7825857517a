"""A fleet that is upgraded while 16 clients read: what they read must be the same to the byte."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import trio

from herma.processes import ask
from protocol.control_messages import AskStatus, WorkerStatus
from protocol.errors import ConfigError
from tests.fakes.checked_http import checked_async_client
from tests.fakes.herma_process import HermaProcess, herma_up
from tests.fakes.provider import FakeProvider, open_provider

BOUND_S = 900.0
STREAMS = 16
TOKENS = 24

GATEWAY = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"
recovery_probes = 1

[[models]]
name = "m"
{fallback}
"""
PROVIDER = """
[providers.cloud]
base_url = "{url}"
"""


@dataclass
class Command:
    """What a command of Herma printed, and its status."""

    status: int
    said: str


@dataclass
class Upgrades:
    """`texts` counts what the clients have read, by the server that wrote it."""

    herma: HermaProcess
    environ: dict[str, str]
    argv: tuple[str, ...]
    provider: FakeProvider | None
    texts: Counter[tuple[str, str]] = field(default_factory=Counter)

    async def run(self, *words: str) -> Command:
        """`herma WORDS` on this host."""
        done = await trio.run_process(
            [*self.argv, *words],
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            env=self.environ,
            cwd="/",
        )
        return Command(done.returncode, done.stdout.decode())

    async def end_once(
        self,
        name: str,
        is_time: Callable[[WorkerStatus], bool],
        *words: str,
        number: int = signal.SIGKILL,
    ) -> int:
        """Run `herma WORDS`, and send it that signal once it is time for a worker; its status."""
        async with trio.open_nursery() as nursery:
            start = partial(trio.run_process, check=False, env=self.environ, cwd="/")
            process = await nursery.start(start, [*self.argv, *words])
            await self.wait(name, is_time)
            process.send_signal(number)
            return int(await process.wait())

    def workers(self) -> dict[str, WorkerStatus]:
        """The workers that answer on this host, by name."""
        found: dict[str, WorkerStatus] = {}
        for path in Path(self.environ["HERMA_RUNTIME_DIR"]).glob("herma-*-control"):
            with suppress(ConfigError):  # it may just have ended
                status = ask(path, AskStatus())
                assert isinstance(status, WorkerStatus)
                found[status.name] = status
        return found

    async def restarted(self, name: str) -> WorkerStatus:
        """Kill a worker's process; the status of the one that its parent starts, once it serves."""
        before = self.workers()[name]
        os.kill(before.pid, signal.SIGKILL)
        return await self.wait(name, lambda now: now.pid != before.pid and now.state == "ready")

    async def wait(self, name: str, is_so: Callable[[WorkerStatus], bool]) -> WorkerStatus:
        """A worker's status, once it is so."""
        while True:
            now = (await trio.to_thread.run_sync(self.workers)).get(name)
            if now is not None and is_so(now):
                return now
            await trio.sleep(0.2)

    def check_texts(self, expected: str) -> None:
        """Each stream was whole: the workers' text, or the provider's."""
        theirs = "" if self.provider is None else "".join(self.provider.words)
        for server, text in self.texts:
            assert text == (expected if server == "worker" else theirs), (server, text)

    @property
    def num_local(self) -> int:
        return sum(count for (server, _), count in self.texts.items() if server == "worker")


async def read_stream(client: httpx.AsyncClient) -> tuple[str, str]:
    """The server that answered, and the whole text."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "seed": 7,
        "ignore_eos": True,
        "stream": True,
    }
    text = ""
    async with client.stream("POST", "/chat/completions", json=body) as reply:
        assert reply.status_code == 200, await reply.aread()
        server = reply.headers["x-herma-served-by"]
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                text += "".join(one["delta"].get("content") or "" for one in event["choices"])
    assert line == "data: [DONE]" or not line
    return server, text


@asynccontextmanager
async def upgrades(
    folder: Path,
    workers: str,
    num_workers: int,
    *,
    has_provider: bool = False,
    argv: tuple[str, ...] = (sys.executable, "-m", "herma"),
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Upgrades]:
    """A fleet under load for the length of the block; `workers` are their tables."""
    with trio.fail_after(BOUND_S), TemporaryDirectory(prefix="herma-test-") as runtime_dir:
        async with open_provider() as provider:
            fallback = 'fallback = [{ provider = "cloud", model = "big" }]' * has_provider
            text = GATEWAY.format(folder=folder, fallback=fallback) + workers
            text += PROVIDER.format(url=provider.base_url) * has_provider
            config = folder / "herma.toml"
            config.write_text(text)
            variables = {
                "HERMA_RUNTIME_DIR": runtime_dir,
                "XDG_STATE_HOME": str(folder / "state"),
                **(environ or {}),
            }
            manager = herma_up(config, argv=argv, **variables)
            herma = await trio.to_thread.run_sync(manager.__enter__)
            try:
                await trio.to_thread.run_sync(herma.wait_models_ready, {"m": num_workers})
                one = Upgrades(
                    herma,
                    {**os.environ, **variables},
                    argv,
                    provider if has_provider else None,
                )
                async with under_load(one):
                    yield one
            except BaseException:
                print("".join(herma.output[-60:]))
                raise
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(manager.__exit__, None, None, None)


@asynccontextmanager
async def under_load(one: Upgrades) -> AsyncIterator[None]:
    """16 clients, each of which reads one answer after another. The first text is read alone."""
    async with checked_async_client(one.herma.base_url, timeout_s=BOUND_S) as client:
        server, expected = await read_stream(client)
        assert server == "worker"
        is_over = False

        async def read_on() -> None:
            while not is_over:
                one.texts[await read_stream(client)] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(STREAMS):
                nursery.start_soon(read_on)
            yield
            is_over = True
    one.check_texts(expected)
    assert one.num_local
