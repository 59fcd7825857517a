"""The engine process of a rank without an API: it starts its part of an engine and waits.

Owns the launch and its end. The head's answers alone show whether the rank works, so this process
asks nothing. Must not know HTTP.
"""

import os
from functools import partial
from typing import Final

import trio

from config import WorkerConfig
from protocol.errors import WireError
from workers.bridge.launched import launch, pass_on
from workers.bridge.readiness import Report, StartReports
from workers.ipc import SUPERVISOR, Shutdown, decode_to_engine
from workers.loop import Channel

_END_S: Final = 1.5


def serve_rank(config: WorkerConfig, channel: Channel, report: Report) -> None:
    """Run the rank's part until `Shutdown`. This process ends with the launched one, and with its
    exit code. Raises `ConfigError`.
    """
    trio.run(_serve, config, channel, StartReports(report))


async def _serve(config: WorkerConfig, channel: Channel, reports: StartReports) -> None:
    assert config.launch is not None
    engine = await launch(config.launch, os.environ, partial(pass_on, reports.line))
    reports.say("launch", 0.0, f"pid {engine.pid}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.end_process, "rank")
        nursery.start_soon(reports.watch_cpu)
        await _wait_shutdown(channel)
        await engine.end(_END_S)
        nursery.cancel_scope.cancel()


async def _wait_shutdown(channel: Channel) -> None:
    take = partial(channel.take, None)
    while True:
        for link, payload in await trio.to_thread.run_sync(take, abandon_on_cancel=True):
            try:
                if link == SUPERVISOR and isinstance(decode_to_engine(payload), Shutdown):
                    return
            except WireError as error:
                print(f"bad frame for a rank: {error}")
