"""A gateway that lags does not lose its worker; a link that is lost costs a pause and no token.

The worker is a process with the synthetic engine, whose tokens follow from the seed and the place,
so that every answer tells whether it is whole. The gateway's actors run in the test, which can hold
their loop up.
"""

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.gateway.words import MODEL_DIR, NUM_SEEDS, answer_text
from config import ModelConfig
from tests.fakes.running_gateway import Asked, RunningGateway, open_gateway, wait_until
from tests.fakes.worker_process import WorkerProcess, worker_process

NUM_STREAMS = 40
NUM_TOKENS = 120
STEP_MS = 15
LAG_S = 2.5
"""More than heartbeats may take, and more silence than a worker is granted."""


@asynccontextmanager
async def gateway_and_worker(folder: Path) -> AsyncIterator[tuple[RunningGateway, WorkerProcess]]:
    """A gateway and a worker that are ready."""
    async with open_gateway(models=(ModelConfig(name="echo"),)) as gateway:
        settings = {"model": MODEL_DIR, "max_seqs": 64, "step_ms": STEP_MS, "kv_tokens": 65536}
        with worker_process(folder, gateway.address, **settings) as worker:
            await gateway.wait_state("ready", "echo")
            yield gateway, worker


def start_streams(gateway: RunningGateway) -> list[Asked]:
    """All at once."""
    fields = {"model": "echo", "max_tokens": NUM_TOKENS, "stream": True, "ignore_eos": True}
    return [gateway.start(seed=number % NUM_SEEDS, **fields) for number in range(NUM_STREAMS)]


async def assert_whole(streams: list[Asked]) -> None:
    """Every token of every stream came, in its place."""
    for number, stream in enumerate(streams):
        await stream.over.wait()
        assert stream.error is None
        assert stream.text == answer_text(number % NUM_SEEDS, NUM_TOKENS)
        assert stream.reasons == ["length"]
        assert stream.usage.completion_tokens == NUM_TOKENS


async def test_a_gateway_that_stands_still_for_seconds_loses_nobody(tmp_path: Path) -> None:
    """A gateway whose loop does nothing for seconds loses no worker: tokens come for all streams
    meanwhile, and then it has them all.
    """
    async with gateway_and_worker(tmp_path) as (gateway, _):
        streams = start_streams(gateway)
        for stream in streams:
            await stream.wait_text(20)
        time.sleep(LAG_S)  # noqa: ASYNC251 - the lag itself
        await assert_whole(streams)
        counters = gateway.services.counters
        assert (counters.workers_lost, counters.sequences_resumed) == (0, 0)


async def test_streams_go_on_exactly_where_their_link_was_lost(tmp_path: Path) -> None:
    """The supervisor stands still until it is given up: each stream resumes, to the token. The
    engine begins once it has all of them, so that none is over before another has begun.
    """
    async with gateway_and_worker(tmp_path) as (gateway, worker):
        (engine,) = worker.engine_pids()
        os.kill(engine, signal.SIGSTOP)
        streams = start_streams(gateway)
        statistics = gateway.services.dispatcher.statistics
        await wait_until(lambda: statistics().running == NUM_STREAMS)
        os.kill(engine, signal.SIGCONT)
        for stream in streams:
            await stream.wait_text(20)
        os.kill(worker.pid, signal.SIGSTOP)
        counters = gateway.services.counters
        await wait_until(lambda: counters.workers_lost > 0)
        os.kill(worker.pid, signal.SIGCONT)
        await assert_whole(streams)
        assert counters.sequences_resumed >= NUM_STREAMS


async def test_a_worker_that_is_given_up_comes_back_at_once(tmp_path: Path) -> None:
    """The gateway tells a worker that it has given it up, because the connection lives; the worker
    registers anew and the streams go on.
    """
    async with gateway_and_worker(tmp_path) as (gateway, worker):
        streams = start_streams(gateway)
        for stream in streams:
            await stream.wait_text(20)
        (peer,) = gateway.services.link._peers
        gateway.services.link._lose(peer, "tokens are missing")
        await assert_whole(streams)
        await worker.wait_line("it gave this worker up (tokens are missing)")
