"""Two clients at one gateway: one at its worst, the other light.

`python -m tests.e2e.two_clients [LOAD ...]` starts a whole Herma with the built-in model's
synthetic engine, with at most 1.5 GB of address space for the gateway, and prints the light
client's 50th and 99th percentile before and during each kind of load, the ratio of the two, what
the loop and the other threads of the gateway needed of the processor, and the gateway's resident
memory: at rest, at its peak, and 60 s after. It exits with 1 if a bound is broken.

The load comes from a process of its own (`heavy_client.py`) with the lowest priority. Where there
is more than one processor, the gateway has one for itself alone, so that what the light client
waits for is the gateway's doing.
"""

import contextlib
import http.client
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

from config import hash_api_key
from tests.e2e.heavy_client import KEY, LOADS, chat
from tests.fakes.herma_process import descendants, herma_up, rss_bytes

MAX_RATIO: Final = 2.0
MAX_GROWTH: Final = (150 + 64) * 2**20
"""150 MB, and the bodies that are admitted."""
ADDRESS_SPACE: Final = 1536 * 2**20
QUIET_S: Final = 6.0
LOAD_S: Final = 10.0
RETURN_S: Final = 60.0
NEAR_REST: Final = 48 * 2**20
"""What 2,000 connections had in Python's own arenas (25 MiB, which the next ones use again), and
the caches of prompts, which are bounded.
"""

CONFIG: Final = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[keys]]
name = "light"
hash = "{light}"

[[keys]]
name = "much"
hash = "{much}"

[[models]]
name = "m"

[[models]]
name = "slow"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
engine = "synthetic"
step_ms = 2
serves = "m"

[[workers]]
name = "s"
model = "builtin:herma-tiny"
engine = "synthetic"
step_ms = 40
max_seqs = 600
kv_tokens = 2000000
serves = "slow"
"""
"""500 streams of 25 tokens a second are as many as a gateway has; at 2 ms they would be a load of
250,000 tokens a second, which is not what is measured here.
"""


class LightClient:
    """Asks for four tokens, again and again, on one connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        self._headers = {
            "authorization": "Bearer sk-light",
            "content-type": "application/json",
        }
        self._number = 0

    def times(self, seconds: float) -> list[float]:
        """How long its requests take, ascending; every tenth has 4 KB."""
        times: list[float] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._number += 1
            text = f"Request {self._number}. " * (6 if self._number % 10 else 300)
            body = chat(text)
            began = time.monotonic()
            self._connection.request("POST", "/v1/chat/completions", body, self._headers)
            reply = self._connection.getresponse()
            answer = reply.read()
            times.append(time.monotonic() - began)
            assert reply.status == 200, answer
            time.sleep(0.01)
        return sorted(times)


@contextlib.contextmanager
def loaded(name: str, url: str, counts: dict[str, int]) -> Iterator[None]:
    """The load runs during the block; `counts` gets how often each status came."""
    argv = [sys.executable, "-m", "tests.e2e.heavy_client", name, url]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(LOADS[name].starting_s)
            yield
        finally:
            process.terminate()
            counts.update(json.loads(process.stdout.readline() or "{}"))


@dataclass
class Use:
    """What the gateway has used of the processor, in s: its loop, the loop's waits for a processor,
    and all other threads.
    """

    loop: float
    wait: float
    others: float

    @classmethod
    def of(cls, pid: int) -> "Use":
        spent: dict[int, tuple[float, float]] = {}
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                on, off, _ = (task / "schedstat").read_text().split()
                spent[int(task.name)] = int(on) / 1e9, int(off) / 1e9
        loop = spent.pop(pid)
        return cls(*loop, sum(on for on, _ in spent.values()))

    def since(self, before: "Use", seconds: float) -> str:
        """As shares of the time."""
        loop, wait, others = (
            (now - then) / seconds
            for now, then in (
                (self.loop, before.loop),
                (self.wait, before.wait),
                (self.others, before.others),
            )
        )
        return f"loop {loop:.0%}, its wait for a processor {wait:.0%}, other threads {others:.0%}"


class Peak:
    """The most resident memory of a process since `reset`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_over = threading.Event()
        self.num_bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._is_over.wait(0.05):
            self.num_bytes = max(self.num_bytes, rss_bytes(self._pid))

    def stop(self) -> None:
        self._is_over.set()


def percentile(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(share * len(times)))]


def run(url: str, pid: int, names: tuple[str, ...]) -> list[str]:
    """Print the figures; returns the bounds that were broken."""
    broken = []
    light = LightClient(url)
    light.times(3)
    rest, peak = rss_bytes(pid), Peak(pid)
    for name in names:
        peak.num_bytes = 0
        usual = light.times(QUIET_S)
        counts: dict[str, int] = {}
        with loaded(name, url, counts):
            before, began = Use.of(pid), time.monotonic()
            times = light.times(LOAD_S)
            use = Use.of(pid).since(before, time.monotonic() - began)
        ratio = percentile(times, 0.99) / percentile(usual, 0.99)
        growth = peak.num_bytes - rest
        print(
            f"{name} {counts}: light p50 {1000 * percentile(times, 0.5):.0f} ms, p99 "
            f"{1000 * percentile(times, 0.99):.0f} ms of {len(times)}; usual p50 "
            f"{1000 * percentile(usual, 0.5):.0f} ms, p99 {1000 * percentile(usual, 0.99):.0f} ms "
            f"of {len(usual)}; ratio {ratio:.2f}; {use}; peak {growth >> 20} MiB above rest",
            flush=True,
        )
        if ratio > MAX_RATIO:
            broken.append(f"{name}: ratio {ratio:.2f}")
        if growth > MAX_GROWTH:
            broken.append(f"{name}: {growth >> 20} MiB above rest")
    peak.stop()
    broken += _not_returned(pid, rest)
    return broken


def _not_returned(pid: int, rest: int) -> list[str]:
    began = time.monotonic()
    while (left := rss_bytes(pid) - rest) > NEAR_REST and time.monotonic() < began + RETURN_S:
        time.sleep(1)
    seconds = time.monotonic() - began
    print(f"{left >> 20} MiB above the {rest >> 20} MiB at rest {seconds:.0f} s after", flush=True)
    return [f"{left >> 20} MiB are not returned"] if left > NEAR_REST else []


def set_apart(pid: int) -> None:
    """Give the gateway a processor for itself, and all others to the rest of this test."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        return
    gateway = {pid, *descendants(pid)}
    for process in {os.getpid(), *descendants(os.getpid())} - gateway:
        _place(process, set(processors[1:]))
    for process in gateway:
        _place(process, set(processors[:1]))


def _place(pid: int, processors: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), processors)


def measure(names: tuple[str, ...] = tuple(LOADS)) -> list[str]:
    """Start Herma, bound the gateway's address space, and run the loads."""
    with TemporaryDirectory() as folder:
        config = Path(folder) / "herma.toml"
        hashes = {"light": hash_api_key("sk-light"), "much": hash_api_key(KEY)}
        config.write_text(CONFIG.format(folder=folder, **hashes))
        with herma_up(config) as herma:
            pid = herma.wait_pid("herma gateway")
            herma.wait_models_ready({"m": 1, "slow": 1})
            resource.prlimit(pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
            set_apart(pid)
            broken = run(herma.base_url, pid, names)
            assert herma.wait_pid("herma gateway") == pid, "the gateway was restarted"
    return broken


if __name__ == "__main__":
    found = measure(tuple(sys.argv[1:]) or tuple(LOADS))
    print("\n".join(found) or "all bounds hold")
    sys.exit(bool(found))
