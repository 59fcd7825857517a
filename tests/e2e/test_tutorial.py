"""docs/tutorial.md, block by block, with stand-ins for vLLM and the cloud.

A block marked `bash run` is run by bash as it stands, but for the two addresses, the ports and the
names that the page leaves open; `background` stays, before `dead` the engine is killed.
"""

import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE
from tempfile import TemporaryDirectory

import trio

from tests.fakes.foreign_process import ForeignProcess, foreign_process
from tests.fakes.ports import free_ports
from tests.fakes.provider import KEY, open_provider

BOUND_S = 240.0
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial.md"
BLOCK = re.compile(r"^```bash run *(?P<how>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class _Reader:
    """Types the blocks, with what a reader puts in for the names."""

    def __init__(self, folder: Path, runtime_dir: str, names: dict[str, str]) -> None:
        self.folder = folder
        self._names = names
        shim = folder / "bin/herma"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m herma "$@"\n')
        shim.chmod(0o755)
        self._environ = {
            **os.environ,
            "PATH": f"{shim.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "HERMA_RUNTIME_DIR": runtime_dir,
            "XDG_STATE_HOME": str(folder / "state"),
            "CLOUD_API_KEY": KEY,
        }

    def command(self, text: str) -> list[str]:
        for name, value in self._names.items():
            text = text.replace(name, value)
        return ["bash", "-euc", text]

    async def run(self, text: str) -> str:
        """What the block prints; it must succeed."""
        done = await trio.run_process(
            self.command(text),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=self.folder,
            env=self._environ,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    @asynccontextmanager
    async def background(self, text: str) -> AsyncIterator[None]:
        """The block runs on, once its first line says `ready`."""
        options = {"check": False, "cwd": self.folder, "env": self._environ}
        run = partial(trio.run_process, stdout=PIPE, stderr=DEVNULL, **options)
        async with trio.open_nursery() as nursery:
            process = await nursery.start(run, self.command(f"exec {text}"))
            said = b""
            while b"\n" not in said:
                part = await process.stdout.receive_some()
                assert part, "it ended before it was ready"
                said += part
            assert said.startswith(b"ready http://127.0.0.1:"), said
            try:
                yield
            finally:
                process.terminate()


async def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    """The tutorial does what it says, from a running engine to the cloud's answer after its
    death.
    """
    blocks = [(found["how"], found["text"]) for found in BLOCK.finditer(PAGE.read_text())]
    assert [how for how, _ in blocks] == ["", "", "", "background", "", "", "dead", ""]
    with trio.fail_after(BOUND_S), TemporaryDirectory(prefix="herma-test-") as runtime_dir:
        async with open_provider() as cloud:
            with foreign_process(kind="vllm") as engine:
                names = {
                    "http://127.0.0.1:8000": engine.url,
                    "https://openrouter.ai/api/v1": cloud.base_url,
                    "127.0.0.1:8080": f"127.0.0.1:{free_ports(1)}",
                    "sk-...": KEY,
                    "MODEL": "there",
                }
                await _read(_Reader(tmp_path, runtime_dir, names), blocks, engine, names)


async def _read(
    reader: _Reader, blocks: list[tuple[str, str]], engine: ForeignProcess, names: dict[str, str]
) -> None:
    look, write, check, start, ask, clients, ask_again, reload = (text for _, text in blocks)
    await _until_up(engine)
    assert '"there"' in await reader.run(look)
    await reader.run(write)
    file = reader.folder / "herma.toml"
    port = names["127.0.0.1:8080"].rpartition(":")[2]
    bind = f'port = {port}\nworker_bind = "ipc://{reader.folder}/workers"'
    file.write_text(file.read_text().replace("port = 8080", bind))
    assert "herma.toml: ok" in await reader.run(check)
    async with reader.background(start):
        assert '"content"' in await reader.run(ask)
        printed = await reader.run(clients)
        assert "model_context_window = 2048" in printed
        assert '"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "2048"' in printed
        engine.kill()
        answer = await reader.run(ask_again)
        assert "x-herma-served-by: cloud:cloud" in answer
        assert "Hello from afar" in answer
        assert "nothing to take" in await reader.run(reload)


async def _until_up(engine: ForeignProcess) -> None:
    port = int(engine.address)
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            await trio.sleep(0.05)
        else:
            await stream.aclose()
            return
