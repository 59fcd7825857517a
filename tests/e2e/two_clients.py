"""Two clients at one gateway: one at its worst, the other light.

`python -m tests.e2e.two_clients` starts a whole Herma with the built-in model's synthetic engine,
with at most 1.5 GB of address space for the gateway, and prints the light client's 50th and 99th
percentile before and during each kind of load, the ratio of the two, and the gateway's resident
memory: at rest, at its peak, and 60 s after. It exits with 1 if a bound is broken.
"""

import asyncio
import contextlib
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx

from config import hash_api_key
from tests.fakes.herma_process import herma_up, rss_bytes

MAX_RATIO: Final = 2.0
MAX_GROWTH: Final = (150 + 64) * 2**20
"""150 MB, and the bodies that are admitted."""
ADDRESS_SPACE: Final = 1536 * 2**20
QUIET_S: Final = 5.0
LOAD_S: Final = 8.0
RETURN_S: Final = 60.0
NEAR_REST: Final = 40 * 2**20

CONFIG: Final = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[keys]]
name = "light"
hash = "{light}"

[[keys]]
name = "much"
hash = "{much}"

[[models]]
name = "m"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
engine = "synthetic"
step_ms = 2
serves = "m"
"""
LIGHT: Final = {"authorization": "Bearer sk-light"}
MUCH: Final = {"authorization": "Bearer sk-much"}
WORDS: Final = "word " * 5_600_000


def chat(content: str, **fields: object) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 4, **fields}).encode()


@dataclass
class Load:
    """One kind of load: what one of its tasks does, again and again."""

    name: str
    num_tasks: int
    act: Callable[[httpx.AsyncClient, str], Awaitable[None]]


def posts(body: bytes) -> Callable[[httpx.AsyncClient, str], Awaitable[None]]:
    async def act(client: httpx.AsyncClient, url: str) -> None:
        reply = await client.post(f"{url}/chat/completions", content=body, headers=MUCH)
        if reply.status_code in (429, 503):
            await asyncio.sleep(0.5)

    return act


async def leave(client: httpx.AsyncClient, url: str) -> None:
    with contextlib.suppress(httpx.TimeoutException):
        body = chat("Hello? " * 500, stream=True, max_tokens=500, ignore_eos=True)
        await client.post(f"{url}/chat/completions", content=body, headers=MUCH, timeout=0.05)


async def stay_idle(client: httpx.AsyncClient, url: str) -> None:
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 28000000\r\n")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    writer.close()


async def read_nothing(client: httpx.AsyncClient, url: str) -> None:
    body = chat("Hello?", stream=True, max_tokens=2000, ignore_eos=True)
    async with client.stream(
        "POST", f"{url}/chat/completions", content=body, headers=MUCH, timeout=3600
    ):
        await asyncio.sleep(3600)


LOADS: Final = (
    Load("6 prompts of 7 MB", 6, posts(chat(WORDS[:7_000_000]))),
    Load("20 prompts of 28 MB", 20, posts(chat(WORDS))),
    Load("monstrous bodies", 4, posts(chat("Hi", tools=[{"type": "function"}] * 100_000))),
    Load("a flood of cancels", 20, leave),
    Load("2,000 idle connections", 2000, stay_idle),
    Load("500 slow readers", 500, read_nothing),
)


@contextlib.asynccontextmanager
async def loaded(load: Load | None, url: str) -> AsyncIterator[None]:
    async def again(client: httpx.AsyncClient) -> None:
        while True:
            try:
                await load.act(client, url)  # type: ignore[union-attr]
            except httpx.HTTPError:
                await asyncio.sleep(0.2)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        tasks = [asyncio.create_task(again(client)) for _ in range(load.num_tasks if load else 0)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def light_times(url: str, seconds: float) -> list[float]:
    """How long the light client's requests take, one after the other, of 100 KB now and then."""
    times: list[float] = []
    until = time.monotonic() + seconds
    async with httpx.AsyncClient(timeout=120, headers=LIGHT) as client:
        while time.monotonic() < until:
            began = time.monotonic()
            text = f"Request {len(times)}. " * (6 if len(times) % 10 else 300)
            reply = await client.post(f"{url}/chat/completions", content=chat(text))
            reply.raise_for_status()
            times.append(time.monotonic() - began)
            await asyncio.sleep(0.02)
    return sorted(times)


def percentile(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(share * len(times)))]


async def run(url: str, pid: int, loads: tuple[Load, ...] = LOADS) -> list[str]:
    """Print the figures; returns the bounds that were broken."""
    broken = []
    await light_times(url, 3)
    rest, peak = rss_bytes(pid), 0

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, rss_bytes(pid))
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    for load in loads:
        peak = 0
        usual = percentile(await light_times(url, QUIET_S), 0.99)
        async with loaded(load, url):
            await asyncio.sleep(1)
            times = await light_times(url, LOAD_S)
        ratio = percentile(times, 0.99) / usual
        growth = peak - rest
        print(
            f"{load.name}: light p50 {1000 * percentile(times, 0.5):.0f} ms, p99 "
            f"{1000 * percentile(times, 0.99):.0f} ms of {len(times)}, usual p99 "
            f"{1000 * usual:.0f} ms, ratio {ratio:.2f}; peak {growth >> 20} MiB above rest",
            flush=True,
        )
        if ratio > MAX_RATIO:
            broken.append(f"{load.name}: ratio {ratio:.2f}")
        if growth > MAX_GROWTH:
            broken.append(f"{load.name}: {growth >> 20} MiB above rest")
    watching.cancel()
    until = time.monotonic() + RETURN_S
    while time.monotonic() < until and rss_bytes(pid) - rest > NEAR_REST:  # noqa: ASYNC110
        await asyncio.sleep(1)
    left = rss_bytes(pid) - rest
    print(f"afterwards: {left >> 20} MiB above the {rest >> 20} MiB at rest", flush=True)
    if left > NEAR_REST:
        broken.append(f"{left >> 20} MiB are not returned")
    return broken


def measure(loads: tuple[Load, ...] = LOADS) -> list[str]:
    """Start Herma, bound the gateway's address space, and run the loads."""
    with TemporaryDirectory() as folder:
        config = Path(folder) / "herma.toml"
        hashes = {"light": hash_api_key("sk-light"), "much": hash_api_key("sk-much")}
        config.write_text(CONFIG.format(folder=folder, **hashes))
        with herma_up(config) as herma:
            pid = herma.wait_pid("herma gateway")
            resource.prlimit(pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
            broken = asyncio.run(run(herma.base_url, pid, loads))
            assert herma.wait_pid("herma gateway") == pid, "the gateway was restarted"
    return broken


if __name__ == "__main__":
    found = measure()
    print("\n".join(found) or "all bounds hold")
    sys.exit(bool(found))
