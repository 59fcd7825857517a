"""One worker as the gateway knows it.

Owns its engine's facts, the places given away on it and the clock of its prefill work. Must not
know other workers, models' policies or costs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from gateway.core.breaker import Breaker
from gateway.core.chain_tree import ChainTree
from gateway.core.effects import RouteRequest
from protocol.ids import BlockDigest, WorkerId
from protocol.messages import EngineFacts, Fault, FaultKind, Load, Progress, Register

PRIOR_PREFILL_TOKENS_PER_S: Final = 2000.0
LEAST_PREFILL_TOKENS_PER_S: Final = 1.0
"""Slower ones count as this: what a broken worker reports must not make a cost infinite."""

AUXILIARY_PLACES: Final = 1
STEPS_AHEAD: Final = 2
"""Steps full of prefill that a worker is given beforehand: one to compute, one to go on with while
its news travel."""


class Reservation(msgspec.Struct, eq=False):
    """A ticket's place. `done_at` is when its prefill should be over; `charged` is what its key
    paid in advance, of which `expected_output` tokens are an estimate; `private_tokens` is the KV
    space that it shares with nobody.
    """

    request: RouteRequest
    session: str
    worker: "Worker"
    cached_tokens: int
    uncached_tokens: int
    expected_output: int
    charged: int
    assigned_at: float
    prefill_s: float
    done_at: float = 0.0
    private_tokens: int = 0
    started: bool = False


WorkerState = Literal["ready", "draining", "starting", "down"]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker for metrics and the debug page. `running` counts our tickets only; `fault_kind` is
    None while no fault stands.
    """

    worker_id: WorkerId
    name: str
    models: tuple[str, ...]
    state: WorkerState
    epoch: int
    engine: EngineFacts | None
    load: Load | None
    running: int
    kv_reserved_tokens: int
    cached_blocks: int
    fault: str
    fault_kind: FaultKind | None


class Worker:
    """Mutable; written by `Dispatch` only. `num_running`: sequences on it, ours and, as of its last
    `Load`, those of other gateways. `breaker` outlives it: the fleet keeps it by the worker's name.
    """

    def __init__(self, worker_id: WorkerId, message: Register, now: float) -> None:
        self.worker_id = worker_id
        self.name = message.worker
        self.models = message.models
        self.epoch = message.epoch
        self.engine: EngineFacts | None = message.engine
        self.since = now
        self.progress: Progress | None = None
        self.fault = ""
        self.fault_kind: FaultKind | None = None
        self.gave_up = False
        self.draining = False
        self.full_since: float | None = None
        self.load: Load | None = None
        self.prefill_tokens_per_s = 0.0
        self.breaker = Breaker()
        self.num_running = 0
        self.reservations: dict[int, Reservation] = {}
        self._prefilling: dict[int, Reservation] = {}
        self._chains = ChainTree()
        self.expected_blocks: Final[Callable[[Sequence[BlockDigest]], int]] = self._chains.depth
        """How many leading blocks of the chain running prompts have here or are about to compute:
        what was routed counts as held until its ticket is over, whatever events say by then."""
        self._free_at = now
        self._pinned_blocks = 0
        self._private_tokens = 0

    def __repr__(self) -> str:
        return (
            f"<Worker {self.name} epoch {self.epoch} {self.state} {len(self.reservations)} running>"
        )

    @property
    def state(self) -> WorkerState:
        """In one word: ready, draining, starting or down."""
        if self.engine is not None:
            return "draining" if self.draining else "ready"
        return "down" if self.gave_up else "starting"

    @property
    def ready(self) -> bool:
        """It has generated tokens and takes more work."""
        return self.engine is not None and not self.draining

    @property
    def num_free_places(self) -> int:
        """Sequences that it could take besides ours."""
        return max(0, self.engine.max_seqs - len(self.reservations)) if self.engine else 0

    @property
    def kv_reserved_tokens(self) -> int:
        """KV space promised to the tickets; blocks that several share count once."""
        size = self.engine.block_size if self.engine is not None else 0
        return self._pinned_blocks * size + self._private_tokens

    def open_for(self, *, auxiliary: bool) -> bool:
        """Whether it has a sequence place; auxiliary requests may use one beyond the cap."""
        if self.engine is None or self.draining or self.full_since is not None:
            return False
        limit = self.engine.max_seqs + (AUXILIARY_PLACES if auxiliary else 0)
        return len(self.reservations) < limit

    def has_room(self, request: RouteRequest, expected_output: int) -> bool:
        """Whether the ticket fits below both caps. An empty worker takes any prompt: it could
        never have more room.
        """
        engine = self.engine
        if engine is None or not self.open_for(auxiliary=request.auxiliary):
            return False
        if not self.reservations:
            return True
        num_blocks, block_size = len(request.digests), engine.block_size
        tail = request.prompt_tokens - num_blocks * block_size
        private = max(0, tail) + expected_output
        taken = self._pinned_blocks * block_size + self._private_tokens
        free = engine.kv_tokens - taken - private
        if num_blocks * block_size <= free:
            return True
        return (num_blocks - self._chains.depth(request.digests)) * block_size <= free

    def wait_s(self, now: float) -> float:
        """How long until the prefills ahead should be over."""
        ahead_s = self._free_at - now
        return max(0.0, ahead_s)

    def is_hungry(self, now: float) -> bool:
        """Whether less prefill is ahead of it than a few steps compute. More would only queue up
        there, where nobody can be let past and nothing can be moved.
        """
        if self.engine is None:
            return False
        rate = self.prefill_tokens_per_s or PRIOR_PREFILL_TOKENS_PER_S
        return (self._free_at - now) * rate <= STEPS_AHEAD * self.engine.token_budget

    def take(self, reservation: Reservation) -> None:
        """Give the ticket its place, behind the prefills already ahead."""
        request, now = reservation.request, reservation.assigned_at
        self._pinned_blocks += self._chains.enter(request.digests)
        reservation.private_tokens = self._private(request, reservation.expected_output)
        self._private_tokens += reservation.private_tokens
        reservation.done_at = self._free_at = max(now, self._free_at) + reservation.prefill_s
        self.reservations[request.ticket] = self._prefilling[request.ticket] = reservation
        self.num_running += 1

    def started(self, reservation: Reservation, now: float) -> None:
        """Its prefill is over; whoever is behind moves up by what was estimated too much."""
        if not reservation.started:
            reservation.started = True
            del self._prefilling[reservation.request.ticket]
            self._shift(reservation.done_at, reservation.done_at - now)

    def drop(self, reservation: Reservation, now: float) -> None:
        """Free the ticket's place and, if its prefill was not over, the time it would take."""
        request = reservation.request
        del self.reservations[request.ticket]
        self.num_running -= 1
        self._pinned_blocks -= self._chains.leave(request.digests)
        self._private_tokens -= reservation.private_tokens
        if not reservation.started:
            del self._prefilling[request.ticket]
            left_s = min(reservation.prefill_s, reservation.done_at - now)
            self._shift(reservation.done_at, left_s)
        self.full_since = None

    def report(self, load: Load) -> None:
        """Take in the engine's own counters."""
        self.load = load
        rate = load.prefill_tokens_per_s
        self.prefill_tokens_per_s = max(LEAST_PREFILL_TOKENS_PER_S, rate) if rate else 0.0
        self.num_running = max(load.running + load.waiting, len(self.reservations))
        self.full_since = None

    def fail(self, fault: Fault, now: float) -> None:
        """The engine is gone; its tickets were dropped before."""
        self.fault, self.fault_kind = fault.cause, fault.kind
        self.gave_up = fault.is_final
        self.engine = self.load = self.progress = self.full_since = None
        self.since, self.prefill_tokens_per_s = now, 0.0
        self.num_running = len(self.reservations)

    def view(self, cached_blocks: int) -> WorkerView:
        """This worker, frozen."""
        return WorkerView(
            worker_id=self.worker_id,
            name=self.name,
            models=self.models,
            state=self.state,
            epoch=self.epoch,
            engine=self.engine,
            load=self.load,
            running=len(self.reservations),
            kv_reserved_tokens=self.kv_reserved_tokens,
            cached_blocks=cached_blocks,
            fault=self.fault,
            fault_kind=self.fault_kind,
        )

    def _shift(self, after: float, early_s: float) -> None:
        if early_s <= 0:
            return
        self._free_at -= early_s
        for other in self._prefilling.values():
            if other.done_at > after:
                other.done_at -= early_s

    def _private(self, request: RouteRequest, expected_output: int) -> int:
        """Tokens outside full prompt blocks: the prompt's tail and what will be generated."""
        size = self.engine.block_size if self.engine is not None else 0
        tail = request.prompt_tokens - len(request.digests) * size
        return max(0, tail) + expected_output
