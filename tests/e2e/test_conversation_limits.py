"""The limits of a conversation hold while a gateway of two is killed under its requests."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio

from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports

BOUND_S: Final = 60.0
TURNS: Final = 40
NUM_REQUESTS: Final = 64
CONFIG: Final = """
[gateway]
processes = 2

[limits.conversation]
turns = {turns}

[ledger]
path = "{folder}/ledger.sqlite"

[[models]]
name = "m"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
engine = "synthetic"
step_ms = 5
max_seqs = 64
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HermaProcess]:
    config = tmp_path / "herma.toml"
    config.write_text(CONFIG.format(turns=TURNS, folder=tmp_path))
    with herma_up(config, port=free_ports(1)) as running:
        yield running


def _body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "say it"}]
    return {"model": "m", "messages": messages, "session_id": "talk", "ignore_eos": True, **fields}


class Crowd:
    """Streams of one conversation, each over its own connection. `statuses` are those that came."""

    def __init__(self, url: str) -> None:
        self.statuses: Counter[int] = Counter()
        self.half_begun = trio.Event()
        self._url = f"{url}/chat/completions"

    async def ask(self) -> None:
        """One stream; a gateway that dies before or in its answer ends it."""
        client = httpx.AsyncClient(trust_env=False, timeout=BOUND_S)
        body = _body(stream=True, max_tokens=400)
        try:
            async with client, client.stream("POST", self._url, json=body) as reply:
                self.statuses[reply.status_code] += 1
                if self.statuses[200] >= TURNS // 2:
                    self.half_begun.set()
                async for _ in reply.aiter_raw():
                    pass
        except httpx.TransportError:
            pass


async def test_turns_hold_when_a_gateway_is_killed(host: HermaProcess) -> None:
    """No more streams begin than the limit has turns, and in the end the limit is reached."""
    crowd = Crowd(host.base_url)
    victim = host.wait_pid("herma gateway [1/2]")
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            for _ in range(NUM_REQUESTS):
                nursery.start_soon(crowd.ask)
            await crowd.half_begun.wait()
            os.kill(victim, signal.SIGKILL)
    begun = crowd.statuses[200]
    assert TURNS // 2 <= begun <= TURNS
    assert set(crowd.statuses) <= {200, 422, 429}

    def ask() -> httpx.Response:
        url = f"{host.base_url}/chat/completions"
        return httpx.post(url, json=_body(max_tokens=1), trust_env=False, timeout=BOUND_S)

    def reached() -> bool:
        nonlocal begun
        try:
            reply = ask()
        except httpx.TransportError:
            return False  # the dead process's socket is still being replaced
        begun += reply.status_code == 200
        return reply.status_code == 422

    await trio.to_thread.run_sync(wait_until, reached, "the limit")
    assert begun <= TURNS
    assert ask().json()["error"]["code"] == "conversation_limit_reached"
