"""What a routing decision costs: `python -m benchmarks.prefix_index [--blocks N] [--json FILE]`.

Owns a fleet of 16 workers, an index of five million distinct blocks (every fourth one on two
workers) and the prompts that are placed on it: 100,000 tokens in blocks of 32, digests given. CPU
time of `Dispatch.ask` and `release` by what the fleet knows of the prompt, and the index's memory
per distinct block, by the process and by `sys.getsizeof`. Exits with 1 when a bar does not hold.
"""

import argparse
import gc
import json
import random
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.hello import BLOCK_SIZE, hello
from benchmarks.machine import describe_machine
from config import ModelConfig
from gateway.routing.dispatch import Dispatch
from gateway.routing.effects import Assign, RouteRequest
from protocol.ids import ID_BYTES, BlockDigest, WorkerId
from protocol.messages import BlocksSnapshot, BlocksStored, Load

NUM_WORKERS: Final = 16
NUM_RUNNING: Final = 8
PROMPT_BLOCKS: Final = 3_125
SHARED_BLOCKS: Final = 375
BLOCKS_PER_EVENT: Final = 1_000
REPEATS: Final = 200

MAX_DECISION_US: Final = 150.0
MAX_BYTES_PER_BLOCK: Final = 100.0

Chain = tuple[BlockDigest, ...]


class _Bench:
    """A fleet under load: every worker runs a few long prompts already."""

    def __init__(self, num_blocks: int) -> None:
        self._rng = random.Random(8)
        self._dispatch = Dispatch((ModelConfig(name="m"),), max_queue=8, resume_wait_s=1.0)
        self._ids = [WorkerId(bytes([n]) * ID_BYTES) for n in range(1, NUM_WORKERS + 1)]
        self._seqs = dict.fromkeys(self._ids, 0)
        self._num_tickets = 0
        self._shared = self._fresh(SHARED_BLOCKS)
        for number, worker_id in enumerate(self._ids):
            self._dispatch.register(worker_id, hello(f"w{number}", "m"), 0.0)
            self._dispatch.heard(worker_id, BlocksSnapshot(0, b""), 0.0)
            self._dispatch.heard(worker_id, _load(), 0.0)
        self.bytes_per_block, self.sizeof_per_block, self.event_us = self._fill(num_blocks)
        for _ in range(NUM_WORKERS * NUM_RUNNING):
            self._place((*self._shared, *self._fresh(PROMPT_BLOCKS - SHARED_BLOCKS)))

    def decision_us(self, kind: str) -> tuple[float, float]:
        """CPU time of `ask`, and of the `release` after it: the lower decile over fresh prompts,
        because what else runs on the machine only ever adds. An equal one goes before each: a
        gateway decides all the time, and making the prompts has emptied the CPU's caches. Before
        that goes a tick: it frees what earlier decisions have left.
        """
        asks, releases = [], []
        for number in range(REPEATS):
            before, request = (self._request(self._prompt(kind, number + n)) for n in (0, 1))
            self._dispatch.tick(1.0)
            self._dispatch.ask(before, 1.0)
            self._dispatch.release(before.ticket, 1.0, 100)
            began = time.process_time_ns()
            effects = self._dispatch.ask(request, 1.0)
            asked = time.process_time_ns()
            assert any(isinstance(effect, Assign) for effect in effects), effects
            self._dispatch.release(request.ticket, 2.0, 100)
            asks.append((asked - began) / 1000)
            releases.append((time.process_time_ns() - asked) / 1000)
        return _decile(asks), _decile(releases)

    def _prompt(self, kind: str, number: int) -> Chain:
        if kind == "new to the fleet":
            return self._fresh(PROMPT_BLOCKS)
        if kind == "shared start, new rest":
            return (*self._shared, *self._fresh(PROMPT_BLOCKS - SHARED_BLOCKS))
        chain = self._fresh(PROMPT_BLOCKS)
        if kind == "all but its last turn on one worker":
            self._store(self._ids[number % NUM_WORKERS], chain[:-120])
        else:  # each worker holds another length of it
            for place, worker_id in enumerate(self._ids, start=1):
                self._store(worker_id, chain[: place * 190])
        return chain

    def _fill(self, num_blocks: int) -> tuple[float, float, float]:
        gc.collect()
        rss, began, num_stored = _rss(), time.process_time(), 0
        for number in range(num_blocks // BLOCKS_PER_EVENT):
            digests = self._rng.randbytes(ID_BYTES * BLOCKS_PER_EVENT)
            copies = 1 + (number % 4 == 0)
            for copy in range(copies):
                self._store(self._ids[(number + copy) % NUM_WORKERS], digests)
            num_stored += copies * BLOCKS_PER_EVENT
        cpu_s, grown = time.process_time() - began, _rss() - rss
        num_bytes = self._dispatch.statistics().index_bytes
        return grown / num_blocks, num_bytes / num_blocks, cpu_s * 1e6 / num_stored

    def _store(self, worker_id: WorkerId, digests: Chain | bytes) -> None:
        self._seqs[worker_id] += 1
        packed = digests if isinstance(digests, bytes) else b"".join(digests)
        self._dispatch.heard(worker_id, BlocksStored(self._seqs[worker_id], packed), 0.0)

    def _place(self, chain: Chain) -> None:
        request = self._request(chain)
        self._dispatch.ask(request, 0.0)
        self._dispatch.started(request.ticket, 0.0)

    def _request(self, chain: Chain) -> RouteRequest:
        self._num_tickets += 1
        return RouteRequest(
            ticket=self._num_tickets,
            model="m",
            key="k",
            weight=1.0,
            session=None,
            digests=chain,
            prompt_tokens=len(chain) * BLOCK_SIZE + 8,
            max_tokens=400,
        )

    def _fresh(self, num_blocks: int) -> Chain:
        packed = self._rng.randbytes(ID_BYTES * num_blocks)
        starts = range(0, len(packed), ID_BYTES)
        return tuple(BlockDigest(packed[start : start + ID_BYTES]) for start in starts)


KINDS: Final = (
    "all but its last turn on one worker",
    "shared start, new rest",
    "new to the fleet",
    "another length on each worker",
)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=5_000_000, help="distinct blocks")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    bench = _Bench(arguments.blocks)
    print(f"{arguments.blocks} distinct blocks on {NUM_WORKERS} workers, {describe_machine()}")
    print(
        f"memory: {bench.bytes_per_block:.0f} bytes per block by the process, "
        f"{bench.sizeof_per_block:.0f} by sys.getsizeof; "
        f"events: {bench.event_us:.2f} us per stored block"
    )
    decisions = {kind: bench.decision_us(kind) for kind in KINDS}
    for kind, (ask_us, release_us) in decisions.items():
        print(f"{kind}: {ask_us:.0f} us to ask, {release_us:.0f} us to release")
    if arguments.json:
        report = {
            "machine": describe_machine(),
            "blocks": arguments.blocks,
            "bytes_per_block": bench.bytes_per_block,
            "sizeof_per_block": bench.sizeof_per_block,
            "event_us": bench.event_us,
            "decisions_us": decisions,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    slowest_us = max(ask_us for ask_us, _ in decisions.values())
    is_small = bench.bytes_per_block <= MAX_BYTES_PER_BLOCK
    return 0 if slowest_us <= MAX_DECISION_US and is_small else 1


def _decile(times_us: list[float]) -> float:
    return sorted(times_us)[len(times_us) // 10]


def _load() -> Load:
    return Load(1, 0, 0, 0, 0, 0, 0, 20.0, 10_000.0)


def _rss() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * 4096


if __name__ == "__main__":
    sys.exit(main())
