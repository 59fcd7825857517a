"""Several gateway processes on one port, before one synthetic worker: what clients see."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio
from openai import OpenAI

from tests.fakes.herma_process import HermaProcess, descendants, herma_up, title_of, wait_until
from tests.fakes.ports import free_ports

# Of a client that a process left in the middle of its request.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator object ByteStream:"
    "pytest.PytestUnraisableExceptionWarning"
)

PROCESSES: Final = 3
BOUND_S: Final = 60.0
MAX_TOKENS: Final = 8
HANG: Final = """
import signal
def spin(*_):
    while True: pass
signal.signal(signal.SIGUSR1, spin)
"""
"""At the start of every process: SIGUSR1 makes its main thread run for ever."""
CONFIG: Final = """
[gateway]
processes = {processes}
hang_s = 5
process_port = {process_port}
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "m"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
engine = "synthetic"
step_ms = 2
max_seqs = 2
max_waiting = 1
"""
BODY: Final = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": MAX_TOKENS,
    "ignore_eos": True,
    "stream": True,
}

LONG: Final = {**BODY, "max_tokens": 600}


class Fleet:
    """The port for all, and the one of each process."""

    def __init__(self, herma: HermaProcess, process_port: int) -> None:
        self.herma = herma
        self.urls = [f"http://127.0.0.1:{process_port + i}/v1" for i in range(PROCESSES)]

    def pid(self, index: int, *, other_than: int = 0) -> int:
        return self.herma.wait_pid(f"herma gateway [{index}/{PROCESSES}]", other_than=other_than)

    def knows_worker(self, index: int) -> bool:
        """Whether that process has the worker."""
        try:
            return self._sample(index, "herma_workers", 'model="m",', ',state="ready"') == 1
        except httpx.HTTPError:
            return False

    def num_refused(self, index: int) -> float:
        """How often the worker was too busy for that process."""
        return self._sample(index, "herma_busy_requeued_total")

    def num_replaced(self, index: int) -> float:
        """How many processes had its place before."""
        return self._sample(index, "herma_processes_replaced_total")

    @contextmanager
    def stopped_engine(self) -> Iterator[None]:
        """No token comes meanwhile, so no answer ends."""
        (pid,) = self.herma.pids("herma engine")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def busy(self) -> list[int]:
        """The processes that have requests."""
        running = "herma_sequences_running"
        return [index for index in range(PROCESSES) if self._sample(index, running)]

    def _sample(self, index: int, name: str, before: str = "", after: str = "") -> float:
        url = self.urls[index].replace("/v1", "/metrics")
        text = httpx.get(url, trust_env=False, timeout=BOUND_S).text
        (line,) = [
            line
            for line in text.splitlines()
            if line.startswith(f'{name}{{{before}process="{index}"{after}}} ')
        ]
        return float(line.rpartition(" ")[2])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three processes, ready."""
    folder, process_port = tmp_path_factory.mktemp("fleet"), free_ports(PROCESSES)
    config = folder / "herma.toml"
    config.write_text(CONFIG.format(folder=folder, processes=PROCESSES, process_port=process_port))
    (folder / "sitecustomize.py").write_text(HANG)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    with herma_up(config, PYTHONPATH=path) as herma:
        yield Fleet(herma, process_port)


def _client() -> httpx.AsyncClient:
    """A connection per request, so that the kernel chooses a process for each."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(trust_env=False, timeout=BOUND_S, limits=limits)


async def _ask(client: httpx.AsyncClient, url: str) -> str:
    """`whole` for an answer from its first token to the last; what else there was, in a word."""
    try:
        reply = await client.post(f"{url}/chat/completions", json=BODY)
    except httpx.ConnectError:
        return "refused"
    except httpx.TransportError:
        return "cut"
    num_deltas = len(re.findall(r'"content":"[^"]', reply.text))
    is_whole = reply.text.endswith("data: [DONE]\n\n") and num_deltas > 0
    return "whole" if reply.status_code == 200 and is_whole else f"{reply.status_code} {reply.text}"


def test_it_says_ready_once(fleet: Fleet) -> None:
    """`ready` is printed once, when all processes are ready and all have the worker, though it was
    given one address only.
    """
    assert [line[:6] for line in fleet.herma.output].count("ready ") == 1
    assert all(fleet.knows_worker(index) for index in range(PROCESSES))


def test_the_dashboard_of_each_process_shows_the_requests_of_all(fleet: Fleet) -> None:
    """Whichever the kernel chose for the page: rows, sums, and where each request went."""
    body = {**BODY, "stream": False}
    with httpx.Client(trust_env=False, timeout=BOUND_S) as client:
        names = {
            client.post(f"{url}/chat/completions", json=body).json()["id"] for url in fleet.urls
        }
        assert len(names) == PROCESSES
        for url in fleet.urls:
            root = url.removesuffix("/v1")

            def shows_all() -> Any:
                """A process that takes a second to answer is left out."""
                told = client.get(f"{root}/dashboard/state").json()["overview"]  # noqa: B023
                return told["processes"] == PROCESSES and told

            told = wait_until(shows_all, "the data of all processes")
            assert {row["id"] for row in told["recent"]} >= names
            assert told["totals"]["ended"] >= PROCESSES
            for name in names:

                def explained() -> Any:
                    reply = client.get(f"{root}/dashboard/requests/{name}")  # noqa: B023
                    return reply.status_code == 200 and reply.json()

                assert wait_until(explained, "its explanation")["request"]["id"] == name
            assert client.get(f"{root}/dashboard/requests/nothing").status_code == 404


def test_every_process_has_its_share_of_a_worker_that_is_full(fleet: Fleet) -> None:
    """Eight clients of each process want a worker with two places and one to wait in: it refuses
    much of what it is sent. Nothing is lost, and all processes get the same, counted from when each
    has had an answer.
    """
    num_answers, num_clients = 150, 8
    answered: set[int] = set()
    shares: Counter[int] = Counter()

    async def keep_asking(client: httpx.AsyncClient, index: int) -> None:
        while shares.total() < num_answers:
            assert await _ask(client, fleet.urls[index]) == "whole"
            answered.add(index)
            if len(answered) == PROCESSES and shares.total() < num_answers:
                shares[index] += 1

    async def ask_all() -> None:
        with trio.fail_after(BOUND_S):
            async with _client() as client, trio.open_nursery() as nursery:
                for index in range(PROCESSES):
                    for _ in range(num_clients):
                        nursery.start_soon(keep_asking, client, index)

    trio.run(ask_all)
    assert sum(map(fleet.num_refused, range(PROCESSES))) > 0
    # What is missing is for a process that gets no processor for a while, which no order makes up.
    assert min(shares[index] for index in range(PROCESSES)) >= 0.75 * num_answers / PROCESSES


def test_the_death_of_one_process_is_felt_by_its_own_clients_only(fleet: Fleet) -> None:
    """kill -9 amid traffic: the port is never closed, who was connected elsewhere notices nothing,
    and the process comes back with its worker.
    """
    victim, num_clients = fleet.pid(1), 12
    ends: Counter[str] = Counter()

    async def keep_asking(client: httpx.AsyncClient, back: trio.Event) -> None:
        num_after = 0
        while num_after < 3:
            ends[await _ask(client, fleet.herma.base_url)] += 1
            num_after += back.is_set()

    def kill_and_wait() -> None:
        os.kill(victim, signal.SIGKILL)
        fleet.pid(1, other_than=victim)
        wait_until(lambda: fleet.knows_worker(1), "the worker at the new process")

    async def ask_all() -> None:
        back = trio.Event()
        with trio.fail_after(BOUND_S):
            async with _client() as client, trio.open_nursery() as nursery:
                for _ in range(num_clients):
                    nursery.start_soon(keep_asking, client, back)
                await _until(lambda: ends["whole"] >= num_clients)
                await trio.to_thread.run_sync(kill_and_wait)
                back.set()

    trio.run(ask_all)
    # The kernel refuses a connection that it had given to the dead process and not yet made.
    assert set(ends) <= {"whole", "cut", "refused"}, ends
    assert ends["cut"] + ends["refused"] <= num_clients, "a client was cut twice by one death"
    told = fleet.herma.output  # a thread writes it
    wait_until(
        lambda: any("gateway 1/3 ended: SIGKILL" in line for line in told),
        f"the line of {victim}'s death",
    )


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGKILL, "SIGKILL"),
        (signal.SIGSTOP, "it was stopped (SIGSTOP), and clients waited for it"),
        (signal.SIGUSR1, "it hung: its event loop did not turn for 5 s"),
    ],
)
def test_the_official_client_has_its_answers_when_a_process_dies(
    fleet: Fleet, number: signal.Signals, why: str
) -> None:
    """The head of an answer in one piece is withheld to its end: the client asks again by itself,
    and another process answers. A process that is stopped or hangs is ended, as it would get
    connections for ever. The one that takes its place says so.
    """
    wait_until(lambda: all(map(fleet.knows_worker, range(PROCESSES))), "the worker everywhere")

    num_asked, num_tokens = 8, 300

    def ask(_number: int) -> int:
        reply = client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=num_tokens,
            extra_body={"ignore_eos": True},
        )
        return reply.usage.completion_tokens if reply.usage is not None else 0

    with (
        OpenAI(base_url=fleet.herma.base_url, api_key="unused", max_retries=4) as client,
        ThreadPoolExecutor(num_asked) as threads,
    ):
        with fleet.stopped_engine():
            answers = threads.map(ask, range(num_asked))
            (victim,) = wait_until(lambda: fleet.busy()[:1], "requests in flight")
            pid = fleet.pid(victim)
            os.kill(pid, number)
        assert list(answers) == [num_tokens] * num_asked
    fleet.pid(victim, other_than=pid)
    wait_until(lambda: all(map(fleet.knows_worker, range(PROCESSES))), "the worker everywhere")
    ends = [line for line in fleet.herma.output if f"gateway {victim}/3 ended: " in line]
    assert f"ended: {why}; again in " in ends[-1]
    events = [json.loads(line) for line in fleet.herma.output if "process replaced" in line]
    named = [event for event in events if event["process"] == str(victim)]
    assert (named[-1]["why"], named[-1]["times"]) == (why, len(ends))
    assert fleet.num_replaced(victim) == len(ends)
    if number == signal.SIGUSR1:
        assert any("in spin" in line for line in fleet.herma.output), "where it hung"
    root = fleet.urls[victim].removesuffix("/v1")
    state = httpx.get(f"{root}/dashboard/state", trust_env=False).json()
    assert state["overview"]["replaced"] >= len(ends)


def test_all_drain_together(fleet: Fleet) -> None:
    """What is open at Ctrl-C, which a terminal sends to all of them, is answered to its end by
    every process, though its parent asks it to stop too; then none is left.
    """
    lengths: list[int] = []
    engine = ExitStack()

    async def read(client: httpx.AsyncClient, url: str, begun: list[None]) -> None:
        async with client.stream("POST", f"{url}/chat/completions", json=LONG) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            begun.append(None)
            if len(begun) == 2:
                engine.enter_context(fleet.stopped_engine())
            rest = [line async for line in lines if line.startswith("data: ")]
            assert rest[-1] == "data: [DONE]", rest[-1]
            lengths.append(len(rest))

    async def stop_amid() -> None:
        begun: list[None] = []
        with trio.fail_after(BOUND_S):
            async with _client() as client, trio.open_nursery() as nursery:
                for url in fleet.urls[:2]:
                    nursery.start_soon(read, client, url, begun)
                await _until(lambda: len(begun) == 2)
                with engine:
                    assert len(lengths) < 2
                    for pid in at_terminal:
                        os.kill(pid, signal.SIGINT)

    family = descendants(fleet.herma.process.pid)
    at_terminal = [fleet.herma.process.pid]
    at_terminal += fleet.herma.pids("herma gateway") + fleet.herma.pids("herma worker")
    trio.run(stop_amid)
    assert fleet.herma.stop() == 0
    assert len(lengths) == 2
    assert len(family) > PROCESSES + 2
    assert not [pid for pid in family if "herma" in title_of(pid)]


def test_they_do_not_outlive_their_parent(tmp_path: Path) -> None:
    """kill -9 of the parent lets nobody hold the port."""
    bind = f"ipc://{tmp_path}/workers"
    words = ["gateway", "--processes", "2", "--port", "0", "--worker-bind", bind]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-m", "herma", *words], env=env) as parent:

        def gateways() -> list[int]:
            return [pid for pid in descendants(parent.pid) if "gateway [" in title_of(pid)]

        wait_until(lambda: len(gateways()) == 2, "two gateways")
        family = gateways()
        parent.kill()
    wait_until(lambda: not any(map(title_of, family)), "their end")


async def _until(is_so: Callable[[], bool]) -> None:
    """Return once it is; what other processes do cannot be waited for otherwise."""
    while not is_so():  # noqa: ASYNC110
        await trio.sleep(0.01)
