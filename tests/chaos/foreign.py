"""Somebody else's engines under load: killed, stopped, slow to start, refusing, out of memory, cut.

Owns the fleet of two stubs behind real workers, its faults, and what a client may see: at token
level nothing, at text level one clear error behind the first byte. Must not know how workers watch
their engines.
"""

import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import httpx
import trio

from tests.fakes.checked_http import checked_async_client
from tests.fakes.foreign_process import ForeignProcess, change, pids_of, stub_argv, told
from tests.fakes.herma_process import HermaProcess, herma_up
from tests.fakes.ports import free_ports
from tests.fakes.text_engine import answer_to

Level = Literal["tokens", "text"]

NUM_CLIENTS: Final = 8
NUM_TOKENS: Final = 60
TOKEN_MS: Final = 8
STALL_S: Final = 3.0
START_S: Final = 1.0
LOST: Final = "upstream connection lost"

GATEWAY = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "m"
"""
WORKER = """
[[workers]]
name = "{name}"
serves = "m"
engine = "{kind}"
model = "{model}"
url = "http://127.0.0.1:{port}"
probe_context = 64
stall_s = {stall_s}
"""


@dataclass(slots=True)
class Seen:
    """What clients saw. `problems` must be empty; `num_cut` are answers with an error behind their
    first byte, which only the text level may have.
    """

    num_answers: int = 0
    num_cut: int = 0
    num_faults: int = 0
    problems: list[str] = field(default_factory=list)


class ForeignFleet:
    """`w0` is launched by its worker, and slow to start; `w1` is there already."""

    def __init__(self, herma: HermaProcess, ports: list[str], attached: ForeignProcess) -> None:
        self.herma = herma
        self.ports = ports
        self.attached = attached

    def url(self, index: int) -> str:
        return f"http://127.0.0.1:{self.ports[index]}"

    def hit(self, index: int, number: int) -> None:
        """Send its process a signal."""
        for pid in pids_of(self.ports[index]):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def wait_ready(self) -> None:
        """Return once both serve."""
        await trio.to_thread.run_sync(self.herma.wait_models_ready, {"m": 2})

    async def until_busy(self, index: int) -> None:
        """Return once it has work."""
        with trio.move_on_after(5):
            while not (await told(self.url(index)))["running"]:  # noqa: ASYNC110
                await trio.sleep(0.02)


async def _until_gone(fleet: ForeignFleet, pids: list[int]) -> None:
    """Two faults at a time would leave no engine that is well."""
    with trio.fail_after(60):
        while {*pids} & {*pids_of(fleet.ports[0])}:  # noqa: ASYNC110
            await trio.sleep(0.05)


async def kill(fleet: ForeignFleet) -> None:
    """The launched one dies, and needs its time to start."""
    pids = pids_of(fleet.ports[0])
    fleet.hit(0, signal.SIGKILL)
    await _until_gone(fleet, pids)


async def stop(fleet: ForeignFleet) -> None:
    """Stop the engine: it hangs, and its worker kills it for its silence."""
    pids = pids_of(fleet.ports[0])
    fleet.hit(0, signal.SIGSTOP)
    await _until_gone(fleet, pids)


async def refuse(fleet: ForeignFleet) -> None:
    """Nothing listens where the attached one was, for a while."""
    await trio.to_thread.run_sync(fleet.attached.kill)
    await trio.sleep(START_S)
    fleet.attached.restart()


async def fail(fleet: ForeignFleet) -> None:
    """Every request is answered with 500 and an error about memory, for a while."""
    await change(fleet.url(1), fails=True)
    await trio.sleep(0.3)
    await change(fleet.url(1), fails=False)


async def run_out(fleet: ForeignFleet) -> None:
    """The next prompt is more than it has memory for."""
    pids = pids_of(fleet.ports[0])
    await change(fleet.url(0), die_at=1)
    await _until_gone(fleet, pids)


async def cut(fleet: ForeignFleet) -> None:
    """Streams end within an event, for a while."""
    await change(fleet.url(1), half_after=12)
    await trio.sleep(0.5)
    await change(fleet.url(1), half_after=None)


FAULTS: Final[dict[str, tuple[int, Callable[[ForeignFleet], Awaitable[None]]]]] = {
    "kill": (0, kill),
    "stop": (0, stop),
    "refused-port": (1, refuse),
    "errors": (1, fail),
    "out-of-memory": (0, run_out),
    "half-event": (1, cut),
}


@asynccontextmanager
async def open_foreign(folder: Path, level: Level) -> AsyncIterator[ForeignFleet]:
    """`herma up` in front of two engines of different kinds, or of two that take text."""
    await trio.Path(folder).mkdir(parents=True, exist_ok=True)
    first = free_ports(2)
    ports = [str(first), str(first + 1)]
    kinds = ["vllm", "llama-cpp"] if level == "tokens" else ["openai", "openai"]
    model = "builtin:herma-tiny" if level == "tokens" else "there"
    text = GATEWAY.format(folder=folder)
    for index, (kind, port) in enumerate(zip(kinds, ports, strict=True)):
        text += WORKER.format(name=f"w{index}", kind=kind, model=model, port=port, stall_s=STALL_S)
        if index == 0:
            argv = stub_argv(port, kind=kind, token_ms=TOKEN_MS, start_s=START_S)
            text += f"launch = {{ argv = {json.dumps(argv)} }}\n"
    config = folder / "herma.toml"
    config.write_text(text)
    attached = ForeignProcess(ports[1], {"kind": kinds[1], "token_ms": TOKEN_MS})
    manager = herma_up(config)
    try:
        herma = await trio.to_thread.run_sync(manager.__enter__)
        fleet = ForeignFleet(herma, ports, attached)
        try:
            await fleet.wait_ready()
            yield fleet
        finally:
            fleet.hit(0, signal.SIGCONT)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(manager.__exit__, None, None, None)
    finally:
        attached.kill()


async def run_foreign(
    folder: Path, level: Level, injections: int, names: tuple[str, ...] = tuple(FAULTS)
) -> Seen:
    """Each fault so many times, while clients stream; what they saw."""
    seen = Seen()
    async with open_foreign(folder, level) as fleet:
        clients = _Clients(fleet.herma.base_url, level, seen)
        async with trio.open_nursery() as nursery:
            for number in range(NUM_CLIENTS):
                nursery.start_soon(clients.ask_on_and_on, number)
            for name in names * injections:
                index, inject = FAULTS[name]
                await fleet.until_busy(index)
                await inject(fleet)
                seen.num_faults += 1
                await trio.sleep(0.5)
                await fleet.wait_ready()
            clients.is_stopping = True
    return seen


class _Clients:
    def __init__(self, base_url: str, level: Level, seen: Seen) -> None:
        self._base_url = base_url
        self._level = level
        self._seen = seen
        self._expected: dict[str, str] = {}
        self.is_stopping = False

    async def ask_on_and_on(self, number: int) -> None:
        async with checked_async_client(self._base_url, timeout_s=60) as client:
            turn = 0
            while not self.is_stopping:
                turn += 1
                # The same few prompts, so that an answer has been seen whole before.
                await self._ask(client, f"prompt {(number + turn) % 12}")

    async def _ask(self, client: httpx.AsyncClient, prompt: str) -> None:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "stream": True,
        }
        text, events, status = "", list[dict[str, Any]](), 0
        is_done = False
        async with client.stream("POST", "/chat/completions", json=body) as reply:
            status = reply.status_code
            async for line in reply.aiter_lines():
                if status != 200:
                    events.append({"error": {"message": line}})
                is_done = is_done or line == "data: [DONE]"
                if line.startswith("data: {"):
                    events.append(json.loads(line[6:]))
        errors = [event["error"] for event in events if "error" in event]
        for event in events:
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
        self._judge(prompt, status, text, errors, is_done=is_done)

    def _judge(
        self, prompt: str, status: int, text: str, errors: list[Any], *, is_done: bool
    ) -> None:
        seen = self._seen
        seen.num_answers += 1
        if self._level == "text":
            expected = answer_to(prompt, NUM_TOKENS)
        else:
            expected = self._expected.setdefault(prompt, text)
        if status == 200 and not errors and is_done and text == expected:
            return
        is_clear = len(errors) == 1 and errors[0]["message"] == LOST and not is_done
        if self._level == "text" and status == 200 and is_clear and text:
            seen.num_cut += 1
            if not expected.startswith(text):
                seen.problems.append(f"{prompt}: WRONG BYTES {text[-20:]!r}")
            return
        what = errors or ("no [DONE]" if not is_done else f"{len(text)} of {len(expected)}")
        seen.problems.append(f"{prompt}: status {status}, {what}")
