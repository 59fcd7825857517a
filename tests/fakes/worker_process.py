"""A real worker process with a synthetic engine, for tests."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trio

BOUND_S = 120.0


def write_model_dir(folder: Path) -> Path:
    """The text files of a model with 256 one-byte tokens and one special token."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {chr(256 + i): i for i in range(256)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": 256, "content": "<end>", "special": True, "single_word": False}
            | dict.fromkeys(("lstrip", "rstrip", "normalized"), False)
        ],
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    config = {"vocab_size": 257, "max_position_embeddings": 4096, "eos_token_id": 256}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class WorkerProcess:
    """`python -m workers` as a child; `lines` are what it wrote so far. Its control socket lies in
    a folder of its own, so that no other worker of the machine is met.
    """

    def __init__(self, config: Path, prefix: Sequence[str] = (), **environ: str) -> None:
        self.lines: list[str] = []
        self._config = config
        # Short, because the address of a unix socket has 107 bytes at the most.
        self.runtime_dir = tempfile.mkdtemp(prefix="herma-test-")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "workers", "--config", str(config), "--name", "w"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "HERMA_RUNTIME_DIR": self.runtime_dir,
                "XDG_STATE_HOME": f"{self.runtime_dir}/state",
                **environ,
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def engine_pids(self) -> list[int]:
        """The engines that it has started, in order."""
        found = (re.search(r"engine start \d+ \(pid (\d+)\)", line) for line in list(self.lines))
        return [int(match[1]) for match in found if match]

    async def wait_line(self, text: str) -> str:
        with trio.fail_after(BOUND_S):
            while True:
                for line in list(self.lines):
                    if text in line:
                        return line
                await trio.sleep(0.01)

    async def command(self, *words: str) -> tuple[int, str]:
        """`herma worker WORDS` on this worker's host: exit status and output."""
        return await self.command_that_says(None, trio.lowlevel.checkpoint, *words)

    async def command_that_says(
        self, text: str | None, act: Callable[[], Awaitable[object]], *words: str
    ) -> tuple[int, str]:
        """As `command`; once it has said `text`, `act` is called."""
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "herma", "worker", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HERMA_RUNTIME_DIR": self.runtime_dir, "PYTHONUNBUFFERED": "1"},
        )
        said = b""
        assert process.stdout is not None
        async with process.stdout as output:
            async for data in output:
                said += data
                if text is not None and text.encode() in said:
                    text = None
                    await act()
        return await process.wait(), said.decode()

    def reload(self, **settings: object) -> None:
        """Add these keys to its table, which is the last one of the file, and have it read."""
        with self._config.open("a") as file:
            file.writelines(f"\n{key} = {_toml(value)}" for key, value in settings.items())
        self.process.send_signal(signal.SIGHUP)

    async def wait_exit(self) -> int:
        return await trio.to_thread.run_sync(partial(self.process.wait, timeout=BOUND_S))

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for pid in self.engine_pids():
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self._reader.join(BOUND_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        shutil.rmtree(self.runtime_dir)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))


@contextmanager
def worker_process(
    folder: Path,
    *gateways: str,
    environ: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    **settings: object,
) -> Iterator[WorkerProcess]:
    """A worker named `w` that serves `echo`; `settings` are keys of its table, `environ` is added
    to its environment, `prefix` are words before its command line.
    """
    model = settings.pop("model", None) or str(write_model_dir(folder / "model"))
    table = {
        "name": "w",
        "model": model,
        "serves": "echo",
        "gateways": list(gateways),
        "insecure_local": "curve_server_key" not in settings,
        "engine": "synthetic",
        "max_seqs": 8,
        "token_budget": 256,
        **settings,
    }
    lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
    config = folder / "herma.toml"
    config.write_text("\n".join(["[[models]]", 'name = "echo"', "[[workers]]", *lines]))
    worker = WorkerProcess(config, prefix, **(environ or {}))
    try:
        yield worker
    finally:
        worker.close()


def _toml(value: object) -> str:
    """A value as TOML writes it: as JSON, but for tables."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items())
        return "{ " + ", ".join(pairs) + " }"
    return json.dumps(value)


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


async def wait_dead(pid: int) -> None:
    """Return once the process is gone; fails after a bound."""
    with trio.fail_after(BOUND_S):
        while is_alive(pid):  # noqa: ASYNC110 (a process that is not our child tells nobody)
            await trio.sleep(0.01)
