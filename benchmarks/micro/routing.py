"""The cost of a routing decision, and the memory of the prefix index.

Owns a fleet of 16 workers, an index of five million distinct blocks (every fourth one on two
workers) and the prompts that are placed on it: 100,000 tokens in blocks of 32, with digests given.
"""

import gc
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.micro.figures import MicroFigure
from config import ModelConfig
from gateway.routing.effects import Assign, RouteRequest
from gateway.routing.fleet_state import FleetState
from protocol.ids import ID_BYTES, BlockDigest, WorkerId
from protocol.messages import (
    PROTOCOL_VERSION,
    BlocksSnapshot,
    BlocksStored,
    EngineFacts,
    Load,
    Register,
)

NUM_WORKERS: Final = 16
NUM_RUNNING: Final = 8
PROMPT_BLOCKS: Final = 3_125
SHARED_BLOCKS: Final = 375
BLOCKS_PER_EVENT: Final = 1_000
BLOCK_SIZE: Final = 32
FILES_DIGEST: Final = bytes(ID_BYTES)
MAX_ASK_US: Final = 150.0
MAX_BYTES_PER_BLOCK: Final = 100.0

PREFIX, SHARED_START, NOTHING, LENGTHS = (
    "all but the last turn on one worker",
    "the start that all share",
    "nothing",
    "another length on each worker",
)
"""What the fleet knows of the prompt."""

Chain = tuple[BlockDigest, ...]


def measure(quick: bool) -> Iterator[MicroFigure]:
    """CPU time of `ask` and `release`, memory per distinct block, time per stored block."""
    num_blocks, repeats = (20_000, 10) if quick else (5_000_000, 200)
    fleet = _Fleet(num_blocks)
    for known in (PREFIX, SHARED_START, NOTHING, LENGTHS):
        ask_us, release_us = fleet.decision_us(known, repeats)
        # No prompt is known in 16 lengths: conversations live on one or two workers.
        yield MicroFigure(known, "ask", ask_us, bar=None if known == LENGTHS else MAX_ASK_US)
        yield MicroFigure(known, "release", release_us)
    index = f"index of {num_blocks:,} blocks"
    bytes_per_block, sizeof_per_block, event_us = fleet.filled
    yield MicroFigure(
        index, "memory of the process", bytes_per_block, "B/block", MAX_BYTES_PER_BLOCK
    )
    yield MicroFigure(index, "sys.getsizeof", sizeof_per_block, "B/block")
    yield MicroFigure(index, "event, per stored block", event_us)


def idle_fleet(model: str, names: Sequence[str]) -> tuple[FleetState, list[WorkerId]]:
    """A dispatcher with workers that are ready and run nothing."""
    dispatch = FleetState((ModelConfig(name=model),), max_queue=8, resume_wait_s=1.0)
    worker_ids = []
    for number, name in enumerate(names, start=1):
        worker_id = WorkerId(bytes([number]) * ID_BYTES)
        dispatch.register(worker_id, _register(name, model), 0.0)
        dispatch.heard(worker_id, BlocksSnapshot(0, b""), 0.0)
        dispatch.heard(worker_id, Load(1, 0, 0, 0, 0, 0, 0, 20.0, 10_000.0), 0.0)
        worker_ids.append(worker_id)
    return dispatch, worker_ids


def _register(name: str, model: str) -> Register:
    engine = EngineFacts(
        kind="native",
        device="none",
        dtype="none",
        context_length=131_072,
        block_size=BLOCK_SIZE,
        kv_tokens=100_000_000,
        max_seqs=64,
        token_budget=8192,
        files_digest=FILES_DIGEST,
    )
    return Register(PROTOCOL_VERSION, name, (model,), "bench", "", 1, engine)


class _Fleet:
    """A loaded fleet: every worker runs a few long prompts already."""

    def __init__(self, num_blocks: int) -> None:
        self._rng = random.Random(8)
        self._dispatch, self._ids = idle_fleet("m", [f"w{n}" for n in range(NUM_WORKERS)])
        self._seqs = dict.fromkeys(self._ids, 0)
        self._num_tickets = 0
        self._shared = self._fresh(SHARED_BLOCKS)
        self.filled = self._fill(num_blocks)
        for _ in range(NUM_WORKERS * NUM_RUNNING):
            request = self._request(self._prompt(SHARED_START, 0))
            self._dispatch.tickets.ask(request, 0.0)
            self._dispatch.tickets.started(request.ticket, 0.0)

    def decision_us(self, known: str, repeats: int) -> tuple[float, float]:
        """The lower deciles of `ask` and of the `release` after it, over fresh prompts.

        An equal decision goes before each, because a gateway decides all the time and making the
        prompts has emptied the CPU's caches; before that a tick frees what earlier ones left.
        """
        asks, releases = [], []
        for number in range(repeats):
            before, request = (self._request(self._prompt(known, number + n)) for n in (0, 1))
            self._dispatch.tick(1.0)
            self._dispatch.tickets.ask(before, 1.0)
            self._dispatch.tickets.release(before.ticket, 1.0, 100)
            began = time.process_time_ns()
            effects = self._dispatch.tickets.ask(request, 1.0)
            asked = time.process_time_ns()
            assert any(isinstance(effect, Assign) for effect in effects), effects
            self._dispatch.tickets.release(request.ticket, 2.0, 100)
            asks.append((asked - began) / 1000)
            releases.append((time.process_time_ns() - asked) / 1000)
        return sorted(asks)[repeats // 10], sorted(releases)[repeats // 10]

    def _prompt(self, known: str, number: int) -> Chain:
        if known == NOTHING:
            return self._fresh(PROMPT_BLOCKS)
        if known == SHARED_START:
            return (*self._shared, *self._fresh(PROMPT_BLOCKS - SHARED_BLOCKS))
        chain = self._fresh(PROMPT_BLOCKS)
        if known == PREFIX:
            self._store(self._ids[number % NUM_WORKERS], chain[:-120])
        else:
            for length, worker_id in enumerate(self._ids, start=1):
                self._store(worker_id, chain[: length * 190])
        return chain

    def _fill(self, num_blocks: int) -> tuple[float, float, float]:
        """Bytes per block by the process and by `sys.getsizeof`, and the time per stored block."""
        gc.collect()
        before_bytes, began, num_stored = _resident_bytes(), time.process_time(), 0
        for number in range(num_blocks // BLOCKS_PER_EVENT):
            digests = self._rng.randbytes(ID_BYTES * BLOCKS_PER_EVENT)
            copies = 1 + (number % 4 == 0)
            for copy in range(copies):
                self._store(self._ids[(number + copy) % NUM_WORKERS], digests)
            num_stored += copies * BLOCKS_PER_EVENT
        cpu_s, grown = time.process_time() - began, _resident_bytes() - before_bytes
        num_bytes = self._dispatch.statistics().index_bytes
        return grown / num_blocks, num_bytes / num_blocks, cpu_s * 1e6 / num_stored

    def _store(self, worker_id: WorkerId, digests: Chain | bytes) -> None:
        self._seqs[worker_id] += 1
        packed = digests if isinstance(digests, bytes) else b"".join(digests)
        self._dispatch.heard(worker_id, BlocksStored(self._seqs[worker_id], packed), 0.0)

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


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * 4096
