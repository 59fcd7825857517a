"""Hermes Agent, headless: one process per turn, with a home that is thrown away.

Owns its environment and its configuration, which is the block that `herma hermes` prints. It
reaches nothing but loopback. Must not know what it is asked.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

TURN_S: Final = 600.0
NOWHERE: Final = "http://127.0.0.1:9"
"""A proxy that nobody serves: what is not on loopback cannot be reached."""


@dataclass(frozen=True)
class Turn:
    """What one run of the agent said and counted. Its exit status is 0 whatever happened."""

    text: str
    usage: dict[str, Any]

    @property
    def went_well(self) -> bool:
        return bool(self.usage["completed"]) and not self.usage["failed"]


class HermesAgent:
    """One home folder, in which sessions are kept, and a project folder in it."""

    def __init__(self, home: Path, config: str, **environ: str) -> None:
        self._bin = Path(os.environ["CLIENTS_DIR"]) / "hermes/bin"
        self._home = home
        self._project = home / "project"
        self._project.mkdir(parents=True)
        (home / ".hermes").mkdir()
        (home / ".hermes/config.yaml").write_text(config)
        self._environ = {
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "HOME": str(home),
            "HERMES_HOME": str(home / ".hermes"),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "HTTP_PROXY": NOWHERE,
            "HTTPS_PROXY": NOWHERE,
            "NO_PROXY": "127.0.0.1,localhost",
            **environ,
        }

    async def one_shot(self, prompt: str) -> Turn:
        """`hermes -z`: a turn of a new session; tools run unasked."""
        usage = self._home / "usage.json"
        usage.unlink(missing_ok=True)
        text = await self._run("-z", prompt, "--usage-file", str(usage))
        return Turn(text.strip(), json.loads(usage.read_text()))

    async def chat(self, prompt: str, *, resume: str | None = None) -> tuple[str, str]:
        """`hermes chat -q`: a turn and its session's id, of a new session or a resumed one."""
        text = await self._run("chat", "-q", prompt, *(["--resume", resume] if resume else []))
        found = re.search(r"\b(\d{8}_\d{6}_[0-9a-f]+)\b", text)
        assert found is not None, text
        return text, found[1]

    async def _run(self, *words: str) -> str:
        with trio.fail_after(TURN_S):
            done: subprocess.CompletedProcess[bytes] = await trio.run_process(
                [str(self._bin / "hermes"), *words],
                stdin=b"",
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                cwd=self._project,
                env=self._environ,
            )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout.decode()


async def printed_config(url: str, model: str) -> str:
    """What `herma hermes` prints for the gateway at `url`."""
    argv = [sys.executable, "-m", "herma", "hermes", "--url", url, "--model", model]
    run = partial(subprocess.run, argv, capture_output=True, text=True, check=True, timeout=60)
    done: subprocess.CompletedProcess[str] = await trio.to_thread.run_sync(run)
    return done.stdout
