"""Many requests at once, and clients that leave: nothing fails, nothing leaks."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import trio

from tests.fakes.checked_http import checked_async_client
from tests.fakes.herma_process import HermaProcess, herma_up, rss_bytes, wait_until
from tests.fakes.text_models import write_text_model

CONCURRENCY = 32
WARM_REQUESTS = 300
"""Until the allocator of the engine has met nearly every shape of a step: it grew by 5 MB from the
100th request to the 500th, then by -1, 3, -1 and 2 MB in rounds of 400.
"""

ROUNDS = 3
ROUND_REQUESTS = 240
MAX_GROWTH_BYTES = 6 * 2**20
"""The most that a process may grow in the round in which it grew least: a leak shows in each
round.
"""

MAX_TOKENS = 12

CONFIG = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "small"

[[workers]]
name = "local"
model = "{folder}/model"
serves = "small"
kv_tokens = 65536                     # the warm requests and the first round write all of them once
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    """`herma up` with random weights: what is left behind depends on requests, not on answers."""
    folder: Path = tmp_path_factory.mktemp("small")
    write_text_model(folder / "model", num_positions=65_536)
    config = folder / "herma.toml"
    config.write_text(CONFIG.format(folder=folder))
    with herma_up(config) as herma:
        herma.wait_models_ready({"small": 1})
        yield herma


async def test_hundreds_of_requests_leave_nothing_behind(small: HermaProcess) -> None:
    """Rounds of 240 requests, 32 at a time: no error, every block free again, memory flat."""
    numbers = itertools.count()
    async with checked_async_client(small.base_url, timeout_s=120) as client:
        await _ask_all(client, itertools.islice(numbers, WARM_REQUESTS))
        rss = _rss(small)
        least = dict.fromkeys(rss, sys.maxsize)
        for _ in range(ROUNDS):
            await _ask_all(client, itertools.islice(numbers, ROUND_REQUESTS))
            before, rss = rss, _rss(small)
            least = {name: min(least[name], rss[name] - before[name]) for name in rss}
            if max(least.values()) < MAX_GROWTH_BYTES:
                break
    assert max(least.values()) < MAX_GROWTH_BYTES, least
    await trio.to_thread.run_sync(_wait_idle, small)


async def test_a_client_that_leaves_frees_its_blocks(small: HermaProcess) -> None:
    """A stream whose client disconnects ends on the engine long before its tokens are up."""
    body = msgspec.json.encode(_body("leaving", stream=True, max_tokens=50_000, ignore_eos=True))
    address = httpx.URL(small.base_url)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    with trio.fail_after(60):
        async with await trio.open_tcp_stream(address.host, address.port or 80) as stream:
            await stream.send_all(head.encode() + body)
            received = b""
            while received.count(b"data: ") < 10:
                received += await stream.receive_some()
            await trio.to_thread.run_sync(_wait_running, small)
    await trio.to_thread.run_sync(_wait_idle, small)


async def _ask_all(client: httpx.AsyncClient, waiting: Iterator[int]) -> None:
    async def ask_next() -> None:
        for number in waiting:
            streamed = number % 2 == 0
            body = _body(f"request {number}", stream=streamed, max_tokens=MAX_TOKENS)
            reply = await client.post("/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
            assert reply.text.endswith("data: [DONE]\n\n") == streamed
            assert '"error":' not in reply.text

    async with trio.open_nursery() as nursery:
        for _ in range(CONCURRENCY):
            nursery.start_soon(ask_next)


def _body(name: str, **fields: object) -> dict[str, object]:
    message = {"role": "user", "content": f"This is {name}. {'Say something. ' * 20}"}
    return {"model": "small", "messages": [message], **fields}


def _rss(herma: HermaProcess) -> dict[str, int]:
    titles = ("herma gateway", "herma worker", "herma engine")
    return {title: rss_bytes(herma.wait_pid(title)) for title in titles}


def _engine(herma: HermaProcess, name: str) -> float:
    return herma.metrics()[f'herma_engine_{name}{{worker="local"}}']


def _wait_running(herma: HermaProcess) -> None:
    """Return once the engine has reported its sequence."""
    wait_until(lambda: _engine(herma, "running") == 1, "a running sequence")


def _wait_idle(herma: HermaProcess) -> None:
    """Return once the engine's own counters say that it holds nothing."""

    def idle() -> bool:
        names = ("running", "waiting", "free_blocks", "num_blocks")
        running, waiting, free, blocks = (_engine(herma, name) for name in names)
        return running == waiting == 0 and free == blocks

    wait_until(idle, "an idle engine with every block free")
