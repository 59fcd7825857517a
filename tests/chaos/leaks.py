"""Clients that leave at any moment, and what must not stay behind.

Owns the two floods (upstream streams that are cancelled, clients that disconnect) and the counts
before and after. Must not know faults of workers.
"""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import trio

from config import ProviderConfig
from gateway.upstream import Provider, ProviderCut, ProviderUnavailable
from protocol.transport import HttpClient
from tests.chaos.fleet import Fleet, open_fleet, until
from tests.fakes.herma_process import descendants, title_of
from tests.fakes.provider import FakeProvider, open_provider

CONCURRENCY: Final = 32
LEAVE_WITHIN_S: Final = 0.3
"""From before the request is read to the middle of an answer."""

FIRST_BYTE_S: Final = 2.0
GRACE_S: Final = 1.0
NUM_SLOTS: Final = 8
SPARE_FILES: Final = 4
"""The connection of a scrape, or one kept alive; a leak grows with the clients."""

PACE_S: Final = 0.05
"""An answer that nobody aborts takes longer than we wait for an idle engine."""

FALLBACK: Final = """
[[models]]
name = "far"
fallback = [{{ provider = "far", model = "big" }}]

[providers.far]
base_url = "{url}"
"""


@dataclass(slots=True)
class Flood:
    """How many were begun, how many of them had something of the answer, how many were cut off, and
    what was wrong afterwards.
    """

    num_begun: int = 0
    num_answered: int = 0
    num_cut: int = 0
    problems: list[str] = field(default_factory=list)


async def cancel_upstream_streams(count: int, seed: int) -> Flood:
    """Open streams of one provider, and cancel each at a random moment: of dialling, of waiting, of
    reading. No slot of its pool may be lost.
    """
    flood, rng = Flood(), random.Random(seed)
    fake = FakeProvider(words=("word",) * 20, delay_s=0.01, first_delay_s=0.01)
    numbers = iter(range(count))
    async with open_provider(fake):
        provider = Provider("far", ProviderConfig(base_url=fake.base_url), None)
        # Fewer slots than requests: some are given to a request in the moment in which it leaves.
        provider._client = HttpClient(fake.base_url, max_connections=NUM_SLOTS, max_idle=NUM_SLOTS)

        async def cancel_some() -> None:
            for _ in numbers:
                flood.num_begun += 1
                with trio.move_on_after(rng.uniform(0.0, LEAVE_WITHIN_S)) as scope:
                    await _one_stream(provider, flood)
                flood.num_cut += scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            for _ in range(CONCURRENCY):
                nursery.start_soon(cancel_some)
        _look_at_pool(provider, flood)
        with trio.fail_after(30):
            await _one_stream(provider, flood)
        await provider.aclose()
    return flood


async def _one_stream(provider: Provider, flood: Flood) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    has_begun = False

    def begin(_events: bytes) -> None:
        nonlocal has_begun
        flood.num_answered += not has_begun
        has_begun = True

    try:
        await provider.stream(body, "big", begin)
    except (ProviderUnavailable, ProviderCut) as error:
        flood.problems.append(f"a stream failed: {error}")


def _look_at_pool(provider: Provider, flood: Flood) -> None:
    client = provider._client
    assert isinstance(client, HttpClient)
    if client.num_busy:
        flood.problems.append(f"{client.num_busy} slots are lost")


async def disconnect_clients(folder: Path, count: int, seed: int) -> Flood:
    """Clients leave a real gateway at random moments, one of four in an orderly way, one of four
    from a provider's answer. Afterwards nothing of theirs is left in any process.
    """
    flood, rng = Flood(), random.Random(seed)
    provider = FakeProvider(words=("word",) * 20, first_delay_s=0.02)
    async with open_provider(provider):
        tables = FALLBACK.format(url=provider.base_url)
        async with open_fleet(folder, 1, providers=tables, disconnect_grace_s=GRACE_S) as fleet:
            fleet.order("w1", pace_s=PACE_S)
            await _leave(fleet, 100, rng, Flood())
            await _wait_idle(fleet, flood)
            before = _open_files(fleet)
            await _leave(fleet, count, rng, flood)
            await _wait_idle(fleet, flood)
            _compare(before, _open_files(fleet), flood)
            await _ask_once(fleet, flood)
    return flood


async def _leave(fleet: Fleet, count: int, rng: random.Random, flood: Flood) -> None:
    numbers = iter(range(count))
    address = httpx.URL(fleet.herma.base_url)

    async def leave_some() -> None:
        for number in numbers:
            flood.num_begun += 1
            stream = await trio.open_tcp_stream(address.host, address.port or 80)
            data = _request("far" if number % 4 == 3 else "m", number)
            # One of eight waits for its answer's beginning, so that some leave in the middle.
            patience_s = FIRST_BYTE_S if number % 8 == 0 else 0.0
            with trio.move_on_after(patience_s + rng.uniform(0.0, LEAVE_WITHIN_S)) as scope:
                await stream.send_all(data)
                if await stream.receive_some(65_536):
                    flood.num_answered += 1
                    scope.deadline -= patience_s
                while await stream.receive_some(65_536):
                    pass
            flood.num_cut += scope.cancelled_caught
            if number % 4:
                stream.setsockopt(*_RESET)
            await stream.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(CONCURRENCY):
            nursery.start_soon(leave_some)


_RESET: Final = (
    trio.socket.SOL_SOCKET,
    trio.socket.SO_LINGER,
    (1).to_bytes(4, "little") + bytes(4),
)


def _request(model: str, number: int) -> bytes:
    content = f"Client {number} will not wait. {'Say something. ' * (number % 40)}"
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 900,
        "ignore_eos": True,
        "stream": number % 3 > 0,
    }
    if model == "far":
        del body["ignore_eos"]
    data = msgspec.json.encode(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def _wait_idle(fleet: Fleet, flood: Flood) -> None:
    """Until the gateway holds no request and the engine no block; half a minute at the most."""
    found: dict[str, float] = {}

    def is_idle() -> bool:
        metrics = fleet.herma.metrics()
        engine = {
            name: metrics.get(f'herma_engine_{name}{{worker="w1"}}', -1.0)
            for name in ("running", "waiting", "free_blocks", "num_blocks")
        }
        found.clear()
        found["requests"] = metrics["herma_requests_in_flight"]
        found["sequences"] = metrics["herma_sequences_running"]
        found["queued"] = metrics['herma_queue_length{model="m"}']
        found["running"], found["waiting"] = engine["running"], engine["waiting"]
        found["blocks"] = engine["num_blocks"] - engine["free_blocks"]
        return not any(found.values())

    try:
        await until(is_idle, "an idle fleet", timeout_s=30.0)
    except AssertionError:
        flood.problems.append(f"left behind: { ({k: v for k, v in found.items() if v}) }")


def _open_files(fleet: Fleet) -> dict[str, int]:
    """Open descriptors of each process, by its title."""
    return {
        title: len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - a number is all that is wanted
        for pid in descendants(fleet.herma.process.pid)
        if (title := title_of(pid)).startswith("herma ")
    }


def _compare(before: dict[str, int], after: dict[str, int], flood: Flood) -> None:
    for what, count in after.items():
        if count > before.get(what, 0) + SPARE_FILES:
            flood.problems.append(f"files of {what}: {before.get(what)} before, {count} after")


async def _ask_once(fleet: Fleet, flood: Flood) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Still there?"}]}
    async with httpx.AsyncClient(timeout=30, base_url=fleet.herma.base_url) as client:
        try:
            reply = await client.post("/chat/completions", json={**body, "max_tokens": 4})
        except httpx.HTTPError as error:
            flood.problems.append(f"afterwards: {type(error).__name__}")
            return
    if reply.status_code != 200:
        flood.problems.append(f"afterwards: {reply.status_code} {reply.text[:200]}")
