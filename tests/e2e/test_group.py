"""One engine on two hosts: a real gateway, two real supervisors, a stand-in that needs both ranks.

Where the machine allows it, the second rank is in a network namespace of its own.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from protocol.transport import write_curve_pair
from tests.fakes.checked_http import checked_client
from tests.fakes.foreign_process import stub_argv
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports
from tests.fakes.worker_process import WorkerProcess, worker_process

BOUND_S = 60.0
NAMESPACE = f"herma-{os.getpid()}"

FILE = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "m"

[[workers]]
name = "head"
model = "builtin:herma-tiny"
serves = "m"
engine = "vllm"
url = "http://127.0.0.1:{port}"
probe_context = 64
launch = {{ argv = {argv} }}
group = "pair"
rank = 0
group_address = "tcp://{host}:{group_port}"
{keys}

[[workers]]
name = "other"
model = "builtin:herma-tiny"
serves = "m"
engine = "vllm"
url = "http://127.0.0.1:{other_port}"
probe_context = 64
launch = {{ argv = {other_argv} }}
"""


class Place(NamedTuple):
    """Where rank 1 runs: the head's address for it, and the words that bring a process there."""

    host: str
    prefix: tuple[str, ...]


def _ip(*words: str) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, check=False)
    return done.returncode == 0


@contextmanager
def second_host() -> Iterator[Place]:
    """A network namespace with a link to this one; loopback where that is not allowed."""
    own, theirs = f"hg{os.getpid() % 10**6}a", f"hg{os.getpid() % 10**6}b"
    net = f"10.{os.getpid() // 250 % 250}.{os.getpid() % 250}"
    try:
        is_made = _ip("netns", "add", NAMESPACE)
    except FileNotFoundError:
        is_made = False
    if not is_made:
        yield Place("127.0.0.1", ())
        return
    try:
        steps = (
            ("link", "add", own, "type", "veth", "peer", "name", theirs, "netns", NAMESPACE),
            ("addr", "add", f"{net}.1/24", "dev", own),
            ("link", "set", own, "up"),
            ("-n", NAMESPACE, "addr", "add", f"{net}.2/24", "dev", theirs),
            ("-n", NAMESPACE, "link", "set", theirs, "up"),
            ("-n", NAMESPACE, "link", "set", "lo", "up"),
        )
        if all(_ip(*step) for step in steps):
            yield Place(f"{net}.1", ("ip", "netns", "exec", NAMESPACE))
        else:
            yield Place("127.0.0.1", ())
    finally:
        _ip("netns", "delete", NAMESPACE)


class Pair(NamedTuple):
    """The gateway with the head, and the supervisor of rank 1; `master` is where ranks meet."""

    herma: HermaProcess
    rank: WorkerProcess
    master: str


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A group whose ranks are both ready, and another worker of the model."""
    folder = tmp_path_factory.mktemp("group")
    first = free_ports(4)
    stand_in = [sys.executable, "-m", "tests.fakes.group_engine"]
    with second_host() as place:
        master = f"{place.host}:{first + 2}"
        head_key, rank_key = (str(folder / name) for name in ("head.key", "rank.key"))
        head_public, rank_public = write_curve_pair(head_key), write_curve_pair(rank_key)
        config = folder / "herma.toml"
        text = FILE.format(
            folder=folder,
            port=first,
            argv=json.dumps([*stand_in, "0", master, str(first)]),
            host=place.host,
            group_port=first + 3,
            keys=f'curve_secret_file = "{head_key}"\ngroup_keys = {{ w = "{rank_public}" }}',
            other_port=first + 1,
            other_argv=json.dumps(stub_argv(str(first + 1), token_ms=10)),
        )
        config.write_text(text)
        keys: dict[str, Any] = {
            "engine": "vllm",
            "model": "builtin:herma-tiny",
            "launch": {"argv": [*stand_in, "1", master]},
            "group": "pair",
            "rank": 1,
            "group_address": f"tcp://{place.host}:{first + 3}",
            "curve_secret_file": rank_key,
            "group_server_key": head_public,
        }
        beside = folder / "rank"
        beside.mkdir()
        gateways = ("tcp://127.0.0.1:1",)
        with (
            worker_process(beside, *gateways, prefix=place.prefix, **keys) as rank,
            herma_up(config) as herma,
        ):
            herma.wait_models_ready({"m": 2})
            yield Pair(herma, rank, master)


def _pid_of(pair: Pair, rank: int, *, other_than: int = 0) -> int:
    """The stand-in of a rank, once there is one that is not `other_than`."""
    words = ["tests.fakes.group_engine", str(rank), pair.master]

    def find() -> int | None:
        for path in Path("/proc").iterdir():
            try:
                line = (path / "cmdline").read_bytes().decode().split("\0")
            except (OSError, ValueError):
                continue
            if path.name.isdecimal() and line[2:5] == words and int(path.name) != other_than:
                return int(path.name)
        return None

    return wait_until(find, f"rank {rank}")


class Load:
    """Streams one after another until it is stopped; what went wrong is kept."""

    def __init__(self, base_url: str) -> None:
        self.num_answers = 0
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._base_url = base_url
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        message = {"role": "user", "content": "Tell me a story."}
        body = {"model": "m", "messages": [message], "temperature": 0, "max_tokens": 40}
        with checked_client(self._base_url, timeout_s=BOUND_S) as client:
            while not self._is_over.is_set():
                with client.stream("POST", "/chat/completions", json=body | {"stream": True}) as it:
                    text = "".join(it.iter_text())
                if it.status_code != 200 or '"error"' in text or "[DONE]" not in text:
                    self.errors.append(text[-500:])
                self.num_answers += 1


@pytest.mark.parametrize("victim", [1, 0])
def test_either_rank_killed_brings_both_back(pair: Pair, victim: int) -> None:
    """The other rank hangs, as collectives do, and is ended; no client sees an error."""
    herma = pair.herma
    pids = {rank: _pid_of(pair, rank) for rank in (0, 1)}
    load = Load(herma.base_url)
    try:
        wait_until(lambda: load.num_answers >= 4, "answers")
        os.kill(pids[victim], signal.SIGKILL)
        again = {rank: _pid_of(pair, rank, other_than=pid) for rank, pid in pids.items()}
        herma.wait_models_ready({"m": 2})
        before = load.num_answers
        wait_until(lambda: load.num_answers >= before + 4, "more answers")
    finally:
        load.stop()
    assert load.errors == []
    assert again == {rank: _pid_of(pair, rank) for rank in (0, 1)}
    if victim == 1:
        assert any("rank 1 (w) has ended: exit code 137" in line for line in herma.output)


@pytest.mark.slow
def test_a_lost_supervisor_is_reported_as_such(pair: Pair) -> None:
    """A rank whose supervisor is silent is lost, and named; it comes back by itself."""
    os.kill(pair.rank.pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: any("rank 1 (w) is lost: its " in line for line in pair.herma.output),
            "the report of the loss",
        )
    finally:
        os.kill(pair.rank.pid, signal.SIGCONT)
    time.sleep(0.1)
    pair.herma.wait_models_ready({"m": 2})
