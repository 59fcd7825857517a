"""One engine process as its supervisor sees it."""

import io
import os
import sys

import trio
from trio.testing import wait_all_tasks_blocked

from config import WorkerConfig
from workers.ipc import Drained, encode_control
from workers.supervisor.engine_life import EngineLife
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.identity import worker_identity
from workers.supervisor.lifecycle import Lifecycle
from workers.supervisor.log import WorkerLog

_CONFIG = WorkerConfig(
    name="w",
    model="m",
    serves="m",
    gateways=(),
    engine="synthetic",
    max_seqs=4,
    token_budget=256,
    max_context=64,
)
_SILENT = (sys.executable, "-c", "import time; time.sleep(600)")


async def test_all_who_wait_for_the_last_sequence_learn_of_it() -> None:
    """A worker that falls asleep waits for it without a bound, and a restart may wait beside it."""
    log = WorkerLog("w", io.StringIO())
    relay = FrameRelay(
        worker_identity(_CONFIG, "test"),
        log,
        Lifecycle(),
        on_work=lambda: None,
        on_drain=lambda _: None,
        on_siblings=lambda _: None,
        on_distrust=lambda _: None,
    )
    life = EngineLife(_CONFIG, relay, log, lambda _: None, command=_SILENT, environ=os.environ)
    life.ready_at = trio.current_time()
    with trio.fail_after(60):
        async with trio.open_nursery() as process:
            process.start_soon(life.process.run)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(life.finish, float("inf"))
                await wait_all_tasks_blocked()
                nursery.start_soon(life.finish, 3600.0)
                await wait_all_tasks_blocked()
                life._control(encode_control(Drained()))
            life.process.kill("the test is over")
        await life.process.reap()
    log.close()
