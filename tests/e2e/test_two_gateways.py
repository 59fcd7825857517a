"""Two gateways, each with its own port, before the same two workers: what clients see."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import httpx
import pytest
import trio

from benchmarks.gateway.words import answer_text
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports

# Of a client that a gateway left in the middle of its answer.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator object ByteStream:"
    "pytest.PytestUnraisableExceptionWarning"
)

BOUND_S: Final = 60.0
NUM_TOKENS: Final = 300
LONG_TOKENS: Final = 4000
"""They run for longer than a busy machine needs to notice anything."""
CONFIG: Final = """
[gateway]
port = {port}
worker_bind = "ipc://{folder}/{name}"

[[models]]
name = "m"

[[workers]]
name = "worker-{name}"
model = "builtin:herma-tiny"
engine = "synthetic"
gateways = ["ipc://{folder}/a", "ipc://{folder}/b"]
step_ms = 5
token_budget = 32
max_seqs = 16
"""
WORDS: Final = "the gate of the old town stands open and the lamps are lit at night "
NUM_BLOCKS: Final = 8
"""At least so many of a prompt of `long_prompt` are cached."""


class Pair:
    """Two hosts of one fleet: each a gateway and a worker that dials both gateways."""

    def __init__(self, hosts: list[HermaProcess]) -> None:
        self.hosts = hosts

    def gateway_pid(self, index: int, *, other_than: int = 0) -> int:
        return self.hosts[index].wait_pid("herma gateway", other_than=other_than)

    def wait_ready(self) -> None:
        for host in self.hosts:
            wait_until(lambda host=host: _has_both(host), "both workers")

    def num_running(self, index: int) -> float:
        """The sequences of all gateways, as the workers report them to this one."""
        samples = self.hosts[index].metrics()
        return sum(v for k, v in samples.items() if k.startswith("herma_engine_running"))

    def wait_idle(self, index: int) -> None:
        wait_until(lambda: self.num_running(index) == 0, "the end of all work")

    def num_blocks(self, index: int) -> float:
        """How many blocks this gateway knows the workers to hold."""
        return self.hosts[index].metrics()["herma_index_blocks"]

    def wait_logged(self, text: str) -> None:
        """Return once a worker has written that."""
        wait_until(lambda: any(text in line for host in self.hosts for line in host.output), text)


def _has_both(host: HermaProcess) -> bool:
    try:
        return host.metrics().get('herma_workers{model="m",state="ready"}') == 2
    except OSError:
        return False


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder, port = tmp_path_factory.mktemp("pair"), free_ports(2)
    with ExitStack() as stack:
        hosts = []
        for number, name in enumerate("ab"):
            config = folder / f"{name}.toml"
            config.write_text(CONFIG.format(folder=folder, name=name, port=port + number))
            hosts.append(stack.enter_context(herma_up(config, port=port + number)))
        pair = Pair(hosts)
        pair.wait_ready()
        yield pair


def body(content: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "m", "messages": messages, "ignore_eos": True, "seed": 1, **fields}


def long_prompt(name: str) -> str:
    return f"{name}: {WORDS * 40}"


def ask(url: str, request: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{url}/chat/completions", json=request, trust_env=False, timeout=BOUND_S)


def test_a_conversation_that_changes_its_gateway_stays_at_its_worker(pair: Pair) -> None:
    """Each gateway knows what every worker holds, also of prompts that the other one sent."""
    for number in range(4):
        other = (number + 1) % 2
        first, second = pair.hosts[1 - other].base_url, pair.hosts[other].base_url
        said, known = long_prompt(f"talk {number}"), pair.num_blocks(other) + NUM_BLOCKS
        before = ask(first, body(said, max_tokens=4))
        # It is a process of its own, which may lag.
        wait_until(lambda: pair.num_blocks(other) >= known, "the prompt at the other gateway")  # noqa: B023
        messages = [
            {"role": "user", "content": said},
            before.json()["choices"][0]["message"],
            {"role": "user", "content": "And then?"},
        ]
        after = ask(second, {"model": "m", "messages": messages, "max_tokens": 4})
        assert after.headers["x-herma-worker"] == before.headers["x-herma-worker"]
        assert int(after.headers["x-herma-cached-tokens"]) >= NUM_BLOCKS * 32


class Read:
    """One stream as its client saw it: `end` is "whole", or the name of the error."""

    def __init__(self, number: int, num_tokens: int = NUM_TOKENS) -> None:
        self.number = number
        self.num_tokens = num_tokens
        self.worker = ""
        self.num_cached = 0
        self.text = ""
        self.end = ""
        self.has_begun = trio.Event()
        self.is_over = trio.Event()

    async def run(self, client: httpx.AsyncClient, url: str) -> None:
        request = body(
            long_prompt(f"stream {self.number}"),
            stream=True,
            max_tokens=self.num_tokens,
            seed=self.number,
        )
        try:
            async with client.stream("POST", f"{url}/chat/completions", json=request) as reply:
                self.worker = reply.headers["x-herma-worker"]
                self.num_cached = int(reply.headers["x-herma-cached-tokens"])
                async for line in reply.aiter_lines():
                    self.text += "".join(re.findall('"content":"([^"]*)"', line))
                    if self.text:
                        self.has_begun.set()
                    if line == "data: [DONE]":
                        self.end = "whole"
        except httpx.TransportError as error:
            self.end = type(error).__name__
        self.has_begun.set()
        self.is_over.set()

    @property
    def is_right(self) -> bool:
        return self.end == "whole" and self.text == answer_text(self.number, self.num_tokens)


async def hurt_amid_streams(
    pair: Pair, victim: int, hurt: Callable[[], None], *, cuts: bool
) -> tuple[list[Read], list[Read]]:
    """Streams through both gateways, with the victim hurt once all have begun. Returns those of the
    victim, which are cut (`cuts`) or left, and those of the other, when they are over.
    """
    mine = [Read(number, LONG_TOKENS) for number in range(4)]
    theirs = [Read(number) for number in range(4, 8)]
    with trio.fail_after(BOUND_S):
        async with (
            httpx.AsyncClient(trust_env=False, timeout=BOUND_S) as client,
            trio.open_nursery() as leaving,
        ):
            async with trio.open_nursery() as nursery:
                for read in mine:
                    leaving.start_soon(read.run, client, pair.hosts[victim].base_url)
                for read in theirs:
                    nursery.start_soon(read.run, client, pair.hosts[1 - victim].base_url)
                for read in (*mine, *theirs):
                    await read.has_begun.wait()
                await trio.to_thread.run_sync(hurt)
            for read in mine if cuts else ():
                await read.is_over.wait()
            leaving.cancel_scope.cancel()
    return mine, theirs


async def send_again(pair: Pair, index: int, reads: list[Read]) -> list[Read]:
    """Send the same requests, whole, through that gateway."""
    again = [Read(read.number) for read in reads]
    with trio.fail_after(BOUND_S):
        async with (
            httpx.AsyncClient(trust_env=False, timeout=BOUND_S) as client,
            trio.open_nursery() as nursery,
        ):
            for read in again:
                nursery.start_soon(read.run, client, pair.hosts[index].base_url)
    return again


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_gateway_costs_the_other_nothing(pair: Pair, victim: int) -> None:
    """The work of a killed gateway is aborted, and a cut stream that is sent again finds its prefix
    where it was.
    """
    killed = pair.gateway_pid(victim)

    def hurt() -> None:
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: pair.num_running(1 - victim) <= 4, "the end of the victim's work")

    mine, theirs = await hurt_amid_streams(pair, victim, hurt, cuts=True)
    assert all(read.is_right for read in theirs), [read.end for read in theirs]
    assert all(read.end not in {"", "whole"} for read in mine), [read.end for read in mine]
    await trio.to_thread.run_sync(pair.wait_idle, 1 - victim)
    again = await send_again(pair, 1 - victim, mine)
    assert all(read.is_right for read in again)
    assert [read.worker for read in again] == [read.worker for read in mine]
    assert all(read.num_cached >= NUM_BLOCKS * 32 for read in again)
    pair.gateway_pid(victim, other_than=killed)
    pair.wait_ready()


async def test_a_stopped_gateway_holds_nothing(pair: Pair) -> None:
    """A stopped gateway holds nothing. On one host no connection ends: its workers see that its
    process is stopped, and the other has all places. When it goes on it has its workers again.
    """
    stopped = pair.gateway_pid(0)

    def hurt() -> None:
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: pair.num_running(1) <= 4, "the end of the victim's work")

    try:
        _, theirs = await hurt_amid_streams(pair, 0, hurt, cuts=False)
        pair.wait_logged("its process is stopped")
        assert all(read.is_right for read in theirs), [read.end for read in theirs]
    finally:
        os.kill(stopped, signal.SIGCONT)
    pair.wait_ready()
    again = await send_again(pair, 0, theirs)
    assert all(read.is_right for read in again)
