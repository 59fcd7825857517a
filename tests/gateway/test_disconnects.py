"""Clients that leave at random moments, over real sockets: nothing of them stays behind."""

import gc
import os
import random
from urllib.parse import urlsplit

import pytest
import trio
from trio.lowlevel import Task

from gateway.app import edge_of
from gateway.http.routes import edge_app
from tests.fakes.asgi import chat_body
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import RunningGateway, chain_of, open_gateway, wait_until
from tests.fakes.served import served
from tests.fakes.worker import FakeWorker, open_worker

AT_ONCE = 25
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s"
)


def num_tasks() -> int:
    """Every task of this run of trio."""

    def count(task: Task) -> int:
        return 1 + sum(count(child) for n in task.child_nurseries for child in n.child_tasks)

    root = trio.lowlevel.current_root_task()
    assert root is not None
    return count(root)


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number is all that is wanted


async def leave_somewhere(url: str, rng: random.Random) -> None:
    """Ask, whole or streamed, and reset the connection after some time or some bytes."""
    body = chat_body(stream=rng.random() < 0.8, max_tokens=rng.randint(1, 30), x=rng.random())
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    stream = await trio.open_tcp_stream(parts.hostname, parts.port)
    async with stream:
        request = REQUEST % (len(body), body)
        if rng.random() < 0.1:
            await stream.send_all(request[: rng.randint(1, len(request) - 1)])
            return
        await stream.send_all(request)
        if rng.random() < 0.5:
            await trio.sleep(rng.random() * 0.01)
            return
        for _ in range(rng.randint(1, 4)):
            if not await stream.receive_some(64):
                return


async def disconnect_many(count: int) -> None:
    """Half of the clients meet a worker, half a provider; then all is as it was."""
    rng = random.Random(11)
    fake = FakeProvider(words=("a",) * 20, first_delay_s=0.002)
    worker = FakeWorker(max_seqs=8)
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables, disconnect_grace_s=0.05) as gateway,
            open_worker(gateway.address, worker),
            served(edge_app(edge_of(gateway.services)), patience_s=60 + count / 50) as url,
        ):
            await gateway.wait_state("ready")
            for is_local in (True, False):
                await leave_in_rounds(url, rng, AT_ONCE)  # fills pools and caches
                await settled(gateway)
                tasks, descriptors = num_tasks(), num_descriptors()
                await leave_in_rounds(url, rng, count // 2)
                await settled(gateway)
                await wait_until(lambda at_most=tasks: num_tasks() <= at_most)  # type: ignore[misc]
                assert num_descriptors() <= descriptors + 2
                if is_local:
                    worker.fail_engine()
                    await gateway.wait_state("starting")
            assert gateway.services.counters.turns_cancelled > 0
            assert gateway.services.feed.counts["detached"] > 0


async def leave_in_rounds(url: str, rng: random.Random, count: int) -> None:
    for _ in range(count // AT_ONCE):
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(leave_somewhere, url, rng)


async def settled(gateway: RunningGateway) -> None:
    """Return once nothing is under way any more."""
    services = gateway.services

    def is_quiet() -> bool:
        statistics = services.dispatcher.statistics()
        return not (
            services.open_turns.count
            or services.open_turns.num_detached
            or statistics.running
            or statistics.queued
            or services.link._attempts
        )

    await wait_until(is_quiet)
    gc.collect()


async def test_clients_that_leave_leave_nothing_behind() -> None:
    """No task, no place, no file descriptor."""
    await disconnect_many(300)


@pytest.mark.slow
async def test_ten_thousand_clients_that_leave_leave_nothing_behind() -> None:
    """The bar of the issue."""
    await disconnect_many(10_000)
