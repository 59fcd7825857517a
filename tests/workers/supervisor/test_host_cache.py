"""The supervisor's region of host memory: engines die, and what they cached does not."""

import os
import signal
import sys
from pathlib import Path

import pytest
import trio

from protocol.messages import Finished, Load
from tests.fakes.gateway_end import GatewayEnd, open_gateway_end, submission
from tests.fakes.worker_process import worker_process
from workers.host_cache import FD_VARIABLE, taken_fd
from workers.supervisor.host_cache import HostCache

PROMPT = 200
PAGE = 2**18
"""Bytes of 32 tokens of the built-in model."""

NATIVE = {
    "engine": "native",
    "device": "cpu",
    "model": "builtin:herma-tiny",
    "kv_tokens": 4096,
    "token_budget": 512,
    "cache": {"host": "64MiB"},
}


async def _ask(gateway: GatewayEnd, number: int) -> tuple[int, list[int]]:
    """The tokens that were found, and the answer."""
    request_id = number.to_bytes(16, "little")
    gateway.send(submission(request_id, prompt=PROMPT))
    finished = await gateway.wait(Finished, lambda m: m.request_id == request_id)
    return finished.cached_tokens, gateway.ids_of(request_id)


async def test_a_killed_engines_cache_is_warm(tmp_path: Path) -> None:
    """The cache of an engine killed with SIGKILL is warm: the next engine answers the same
    from it.
    """
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address, **NATIVE) as worker:
            await gateway.wait_ready()
            cold, answer = await _ask(gateway, 1)
            assert cold == 0
            await gateway.wait(Load, lambda m: m.cache and m.cache.stored_bytes >= 6 * PAGE)
            assert (await _ask(gateway, 2))[1] == answer
            os.kill(worker.engine_pids()[0], signal.SIGKILL)
            await gateway.wait_ready(epoch=2)
            warm, again = await _ask(gateway, 3)
            assert again == answer
            assert warm == (PROMPT - 1) // 32 * 32
            load = await gateway.wait(Load, lambda m: m.epoch == 2 and m.cache.loaded_tokens)
            assert load.cache is not None
            assert (load.cache.recovered, load.cache.loaded_tokens) == (6, warm)
            status, said = await worker.command("status")
            assert (status, "host cache: " in said) == (0, True)
            cleared = await trio.run_process(
                [sys.executable, "-m", "herma", "cache", "clear", "w"],
                env={**os.environ, "HERMA_RUNTIME_DIR": worker.runtime_dir},
                capture_stdout=True,
            )
            assert b"w: its cached prefixes are forgotten" in cleared.stdout
            await worker.wait_line("forgot")
            assert (await _ask(gateway, 4))[0] == 0


def test_the_next_program_of_a_process_takes_the_region_over() -> None:
    first = HostCache.take({})
    assert first is not None
    os.ftruncate(first.fd, 5 * 2**20)
    os.pwrite(first.fd, b"kept", 2**20)
    first.hand_over()
    assert os.get_inheritable(first.fd)
    environ = {"OTHER": "1", **first.variable()}
    second = HostCache.take(environ)
    assert second is not None
    assert environ == {"OTHER": "1"}
    assert second.fd == first.fd
    assert not os.get_inheritable(second.fd)
    assert os.pread(second.fd, 4, 2**20) == b"kept"
    assert second.num_bytes == 5 * 2**20
    assert 0 < second.num_resident < 2**20
    second.clear()
    assert (second.num_bytes, second.num_resident) == (0, 0)
    os.close(second.fd)


@pytest.mark.parametrize("text", ["", "x", "-1", "99999", "0"])
def test_a_descriptor_of_something_else_is_not_taken(text: str) -> None:
    """A process may inherit the variable and not the descriptor."""
    assert taken_fd({FD_VARIABLE: text}) is None
    assert taken_fd({}) is None
