"""Memory is given back to the kernel, whatever else the process lacks."""

import os
import resource
from contextlib import ExitStack

import trio

from gateway.runtime.memory import return_memory


async def test_no_descriptor_is_needed(autojump_clock: trio.abc.Clock) -> None:
    """Clients may have taken all of them, and the gateway goes on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(return_memory)
        await trio.sleep(1)
        with ExitStack() as opened:
            opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            next_one = os.dup(0)
            opened.callback(os.close, next_one)
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, hard))
            await trio.sleep(120)
        nursery.cancel_scope.cancel()
