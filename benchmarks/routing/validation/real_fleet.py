"""Real workers: `herma up` with the built-in model on this machine's CPU.

Owns the processes and the requests. Our policy is one gateway with two workers; a published policy
is two gateways with one worker each, and the caller's router between them. Must not know which
policy is better.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
import msgspec

MODEL: Final = "tiny"
STOP_S: Final = 40
ANSWER_S: Final = 600
READY_S: Final = 120

_GATEWAY: Final = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "tiny"
"""
_WORKER: Final = """
[[workers]]
name = "worker-{number}"
model = "builtin:herma-tiny"
serves = "tiny"
gateways = ["ipc://{folder}/workers"]
device = "cpu"
threads = 1
max_seqs = {max_seqs}
token_budget = {token_budget}
kv_tokens = {kv_tokens}
"""


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """The limits of each worker."""

    kv_tokens: int
    max_seqs: int
    token_budget: int


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """A client's view of one answer, in seconds since its request."""

    first_token_s: float
    finished_s: float
    cached_tokens: int


@contextmanager
def gateways(num_workers: Sequence[int], limits: FleetLimits) -> Iterator[list[str]]:
    """The base URLs of gateways with that many workers each, all ready."""
    with ExitStack() as stack:
        urls = [stack.enter_context(_herma_up(number, limits)) for number in num_workers]
        for url, number in zip(urls, num_workers, strict=True):
            _wait_for_workers(url, number)
        yield urls


async def ask(
    client: httpx.AsyncClient, url: str, prompt: Sequence[int], session: str, num_tokens: int
) -> AnswerTimes:
    """Stream one completion. Raises `httpx.HTTPError` or `RuntimeError`."""
    body = {
        "model": MODEL,
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    asked_at, first_at, cached = time.monotonic(), 0.0, 0
    headers = {"x-session-id": session}
    async with client.stream("POST", f"{url}/completions", json=body, headers=headers) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            first_at = first_at or time.monotonic()
            event = msgspec.json.decode(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(f"{url} failed: {event['error']}")
            if usage := event.get("usage"):
                cached = usage["prompt_tokens_details"]["cached_tokens"]
    return AnswerTimes(first_at - asked_at, time.monotonic() - asked_at, cached)


@contextmanager
def _herma_up(num_workers: int, limits: FleetLimits) -> Iterator[str]:
    with TemporaryDirectory(prefix="herma-validate-") as folder:
        path = Path(folder) / "herma.toml"
        tables = [
            _WORKER.format(
                number=number,
                folder=folder,
                max_seqs=limits.max_seqs,
                token_budget=limits.token_budget,
                kv_tokens=limits.kv_tokens,
            )
            for number in range(num_workers)
        ]
        path.write_text(_GATEWAY.format(folder=folder) + "".join(tables), encoding="utf-8")
        runtime = Path(folder) / "run"
        runtime.mkdir(mode=0o700)
        process = subprocess.Popen(
            [sys.executable, "-m", "herma", "up", "--config", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": folder, "HERMA_RUNTIME_DIR": str(runtime)},
        )
        try:
            yield _ready_url(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=STOP_S)


def _ready_url(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready "):
            return line.split()[1]
    raise RuntimeError(f"`herma up` ended with {process.wait()} before it was ready")


def _wait_for_workers(url: str, num_workers: int) -> None:
    """`ready` is printed for one worker; wait for the others."""
    wanted = f'herma_workers{{model="{MODEL}",state="ready"}} {float(num_workers)}'
    deadline = time.monotonic() + READY_S
    while wanted not in httpx.get(f"{url.removesuffix('/v1')}/metrics").text:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{url} has no {num_workers} ready workers after {READY_S} s")
        time.sleep(0.2)
