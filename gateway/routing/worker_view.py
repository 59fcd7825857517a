"""One worker as the gateway sees it.

Owns its engine's facts, the reservations on it, and the estimates of its prefill: how fast it is
and until when it is busy. Must not know other workers, models' policies or costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from gateway.routing.breaker import Breaker
from gateway.routing.chain_tree import ChainTree, common_prefix
from gateway.routing.effects import RouteRequest
from protocol.ids import BlockDigest, WorkerId
from protocol.messages import Drafting, EngineFacts, Fault, FaultKind, Load, Progress, Register

AUXILIARY_PLACES: Final = 1
STEPS_AHEAD: Final = 2
"""Steps full of prefill that a worker is given in advance: one to compute, and one to go on with
while its messages travel."""

LEARN_AFTER_S: Final = 10.0
"""How often a worker that always has prefill work is learned from: prefills that have begun and are
not over make an error of a few percent."""


STUCK_AFTER_S: Final = 120.0
STUCK_STEPS: Final = 10
"""An engine with work reports its steps ten times a second, or each one if they take longer: one
that is full and has reported none for so long, nor for so many of its steps, is stuck. Its
supervisor knows what it computes or compiles, and kills it after 3 s if that is nothing long: an
engine that lives on without a step mostly has a reason, for which it gets two minutes
(`stall_s`)."""


PRIOR_TOKENS_PER_S: Final = 2000.0
LEAST_TOKENS_PER_S: Final = 1.0
MOST_TOKENS_PER_S: Final = 1e9
"""Rates beyond count as these: no report of a broken worker may make a cost infinite or NaN."""

_MEMORY_S: Final = 30.0
"""About so much of the latest prefill time counts, older time less."""

_PRIOR_S: Final = 0.3
_PRIOR_DEPTH: Final = 10_000
"""The prior of the fit: the worker computed for so long at the rate that it reports, with so many
tokens before each. Prompts that all have one length say nothing of `context_s`."""

_RECENT_PASSES: Final = 500
"""Of sequences: about so many of the latest say how many tokens a pass makes."""

_HALF_TRUST_S: Final = 20.0
"""A worker that was slow once gets no work while its peers have time, and so could never show that
it is not slow any more. A rate this old counts half, one twice as old a seventeenth: against what
peers measured, and against what the worker itself measures when it is asked again.

To ask a worker of a tenth of the others' speed costs ten times as much as one of their speed, so
against theirs a rate fades the more slowly the slower it is: a worker seen at 80 % is their equal
again (`placement_cost.TIE_RATIO`) after 40 s, at 30 % after three minutes, at 10 % after nine."""

_LEAST_SHARE: Final = 0.1
"""At least this share of the time is the tokens' own: noise must not charge all to the context."""


class PrefillRateEstimator:
    """How long one worker's prefills take, learned from those that it computed.

    A token of a prompt costs `token_s`, and `context_s` for each token before it: attention makes
    the end of a long prompt dearer than its beginning, so that one rate would give a long prompt
    half of the time that it takes. `tokens_per_s` is the average, 0 while nothing is known.
    """

    __slots__ = (
        "_deep_s",
        "_depth",
        "_reported",
        "_seconds",
        "_spread",
        "_tokens",
        "context_s",
        "learned_at",
        "token_s",
        "tokens_per_s",
    )

    def __init__(self) -> None:
        self.tokens_per_s = 0.0
        self.token_s = 0.0
        self.context_s = 0.0
        self.learned_at = 0.0
        self._reported = PRIOR_TOKENS_PER_S
        self._tokens = self._depth = self._spread = self._seconds = self._deep_s = 0.0

    def report(self, tokens_per_s: float, now: float) -> None:
        """The rate that the worker measured itself: used alone until the first sample."""
        if not tokens_per_s:
            return
        self._reported = min(MOST_TOKENS_PER_S, max(LEAST_TOKENS_PER_S, tokens_per_s))
        if not self._tokens:
            self.tokens_per_s, self.token_s = self._reported, 1 / self._reported
            self.learned_at = now

    def trust(self, now: float, slower: float = 1.0) -> float:
        """From 1, just measured, towards 0: how much it still counts; against peers that take a
        part of the time, 1 in `slower`.
        """
        age = (now - self.learned_at) / (_HALF_TRUST_S * max(1.0, slower))
        return 1 / (1 + age**4)

    def learn(self, num_tokens: int, depth: float, seconds: float, now: float) -> None:
        """That many prompt tokens took so long, until now. `depth`: the tokens before each, summed.

        Least squares over the samples so far; an error counts by the prompt's own length.
        """
        if num_tokens <= 0 or seconds <= 0:
            return
        # Otherwise a worker with little work would count as slow for hours after it was slow once.
        kept = (1 - seconds / _MEMORY_S) * self.trust(now) if seconds < _MEMORY_S else 0.0
        self.learned_at = now
        mean_depth = depth / num_tokens
        self._tokens = kept * self._tokens + num_tokens
        self._depth = kept * self._depth + depth
        self._spread = kept * self._spread + depth * mean_depth
        self._seconds = kept * self._seconds + seconds
        self._deep_s = kept * self._deep_s + seconds * mean_depth
        prior_tokens = _PRIOR_S * self._reported
        tokens = self._tokens + prior_tokens
        seconds = self._seconds + _PRIOR_S
        spread = self._spread + prior_tokens * _PRIOR_DEPTH**2
        slope = tokens * self._deep_s - self._depth * seconds
        context_s = slope / (tokens * spread - self._depth**2) if slope > 0 else 0.0
        most_s = (1 - _LEAST_SHARE) * seconds
        if context_s * self._depth > most_s:
            context_s = most_s / self._depth
        self.context_s = context_s
        self.token_s = (seconds - context_s * self._depth) / tokens
        self.tokens_per_s = tokens / seconds

    def seconds(self, num_cached: int, num_tokens: int) -> float:
        """The time of a prefill of so many tokens after those cached."""
        return num_tokens * (self.token_s + self.context_s * (num_cached + num_tokens / 2))


class Reservation(msgspec.Struct, eq=False):
    """A ticket's place. `done_at` is when its prefill should be over; `charged` is what its key
    paid in advance, of which `expected_output` tokens are an estimate; `private_tokens` is the KV
    space that it shares with no other; `is_beside`: its prefill began beside a long one's;
    `arrival` is its place among those that waited; `is_proof`: it has cleared its worker.
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
    fresh_tokens: int = 0
    done_at: float = 0.0
    private_tokens: int = 0
    started: bool = False
    is_beside: bool = False
    arrival: int = 0
    is_proof: bool = False


WorkerState = Literal["ready", "draining", "starting", "down"]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker for metrics and the dashboard. `running` counts this gateway's tickets only;
    `fault_kind` is None unless its engine has failed and no new one is ready. `progress` is that of
    its start; `is_open`: its breaker asks it last; `places`: what it takes at once.
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
    progress: Progress | None = None
    is_open: bool = False
    places: int = 0


class _Measurement(msgspec.Struct, gc=False):
    """The prefills that a worker has computed `since` a time: their tokens, and the sum of each
    token's position (`depth`).
    """

    since: float
    tokens: int = 0
    depth: float = 0.0


class Worker:
    """Mutable; written by `Dispatch` only. `num_running`: sequences on it, ours and, as of its last
    `Load`, those of other gateways. `breaker` outlives it: the fleet keeps it by the worker's name.
    `pass_tokens`: how many tokens of an answer a step makes, more than one where drafts are
    accepted. `full_since`: it refused one of ours and has not reported free places since;
    `may_try`: it gets one more all the same. `chains`: the prompts that run here; their blocks
    count as held until their tickets are over, whatever block events say. A prompt with at most
    `most_beside` tokens to compute begins beside a long one.
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
        self.may_try = False
        self.load: Load | None = None
        self.pass_tokens = 1.0
        self.prefill_rate = PrefillRateEstimator()
        self.breaker = Breaker()
        self.num_running = 0
        self._stepped_at = now
        self.reservations: dict[int, Reservation] = {}
        self._prefilling: dict[int, Reservation] = {}
        self.chains = ChainTree()
        self._free_at = now
        self._open_at = now
        self.most_beside = _most_beside(message.engine)
        self._measurement = _Measurement(now)
        self._pinned_blocks = 0
        self._private_tokens = 0

    def __repr__(self) -> str:
        return (
            f"<Worker {self.name} epoch {self.epoch} {self.state} {len(self.reservations)} running>"
        )

    @property
    def state(self) -> WorkerState:
        if self.engine is not None:
            return "draining" if self.draining else "ready"
        return "down" if self.gave_up else "starting"

    @property
    def ready(self) -> bool:
        """It has generated tokens and takes more work."""
        return self.engine is not None and not self.draining

    @property
    def places(self) -> int:
        """How many sequences it takes at once: what its engine said last, at most its cap."""
        if self.engine is None:
            return 0
        now = self.load.places if self.load is not None else 0
        return min(now or self.engine.max_seqs, self.engine.max_seqs)

    @property
    def num_free_places(self) -> int:
        return max(0, self.places - len(self.reservations))

    @property
    def is_crowded(self) -> bool:
        """Whether a health probe there may have to wait: our tickets and those of other gateways
        have all places, or all blocks.
        """
        if self.engine is None:
            return False
        # The engine's `Load` counts the probe too.
        num_others = max(self.num_running - 1, len(self.reservations))
        has_no_block = self.load is not None and self.load.free_blocks == 0 < self.load.num_blocks
        is_full = num_others >= self.places or self.full_since is not None
        return is_full or has_no_block

    def is_stuck(self, now: float) -> bool:
        """Whether its steps have stopped, if it has work."""
        usual_s = self.load.step_ms / 1e3 if self.load is not None else 0.0
        patience_s = max(STUCK_AFTER_S, STUCK_STEPS * max(usual_s, self.step_s))
        return now - self._stepped_at >= patience_s

    @property
    def kv_reserved_tokens(self) -> int:
        """KV space promised to the tickets; blocks that several share count once."""
        size = self.engine.block_size if self.engine is not None else 0
        return self._pinned_blocks * size + self._private_tokens

    def open_for(self, *, auxiliary: bool) -> bool:
        """Whether it has a sequence place; auxiliary requests may use one beyond the cap."""
        if self.engine is None or self.draining:
            return False
        if self.full_since is not None and not self.may_try:
            return False
        limit = self.places + (AUXILIARY_PLACES if auxiliary else 0)
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
        return (num_blocks - self.chains.depth(request.digests)) * block_size <= free

    def wait_s(self, now: float, num_tokens: int = 0) -> float:
        """Seconds until the prefill of a prompt with so many tokens to compute begins: when those
        ahead should be over. A short one begins beside a long one, in the step after this one.
        """
        ahead_s = self._free_at - now
        if ahead_s <= 0.0:
            return 0.0
        if self._open_at < self._free_at and num_tokens <= self.most_beside:
            return min(ahead_s, max(0.0, self._open_at - now) + self.step_s)
        return ahead_s

    def has_prefill_headroom(self, now: float, num_tokens: int = 0) -> bool:
        """Whether less prefill is ahead of a prompt with so many tokens to compute than a few steps
        take. More would only queue up at the worker, where requests cannot be reordered or moved.
        """
        if self.engine is None:
            return False
        until = self._open_at if num_tokens <= self.most_beside else self._free_at
        return until <= now or until - now <= STEPS_AHEAD * self.step_s

    def free_in_s(self, now: float) -> tuple[float, float]:
        """Seconds until the prefills ahead of a long and of a short prompt should be over."""
        free_s = max(0.0, self._free_at - now)
        return free_s, min(free_s, max(0.0, self._open_at - now))

    def coming_depth(self, digests: Sequence[BlockDigest]) -> int:
        """How many leading blocks of the chain are those of prompts that run here, whatever events
        say. An engine that keeps states saves one where a prompt parts from one in progress; of one
        that is computed, those that its events name are all.
        """
        if self.engine is None or self.engine.snapshots is None:
            return self.chains.depth(digests)
        shared = [common_prefix(r.request.digests, digests) for r in self._prefilling.values()]
        return max(shared, default=0)

    def take(self, reservation: Reservation) -> None:
        """Give the ticket its place, behind the prefills already ahead."""
        request, now = reservation.request, reservation.assigned_at
        self._pinned_blocks += self.chains.enter(request.digests)
        size = self.engine.block_size if self.engine is not None else 0
        tail = max(0, request.prompt_tokens - len(request.digests) * size)
        reservation.private_tokens = tail + reservation.expected_output
        self._private_tokens += reservation.private_tokens
        if not self._prefilling:
            self._measurement = _Measurement(now)
        self._schedule(reservation, now)
        self.reservations[request.ticket] = self._prefilling[request.ticket] = reservation
        self.num_running += 1
        self.may_try = False

    def refused(self, now: float) -> None:
        """It had no room for one of ours. At each change there it is tried with one: if all that
        wait were sent, nearly all would come back each time.
        """
        self.full_since, self.may_try = now, False

    def started(self, reservation: Reservation, now: float) -> None:
        """Its prefill is over; those behind move up by what was estimated too much."""
        if reservation.started:
            return
        reservation.started = True
        self.may_try = True  # another may take its place in the worker's own queue
        del self._prefilling[reservation.request.ticket]
        if not reservation.is_beside:
            self._shift(reservation.done_at, reservation.done_at - now)
        self._learn(reservation, now)

    def drop(self, reservation: Reservation, now: float) -> None:
        """Free the ticket's place and, if its prefill was not over, the time it would take."""
        request = reservation.request
        del self.reservations[request.ticket]
        self.num_running -= 1
        self._pinned_blocks -= self.chains.leave(request.digests)
        self._private_tokens -= reservation.private_tokens
        if not reservation.started:
            del self._prefilling[request.ticket]
            left_s = min(reservation.prefill_s, reservation.done_at - now)
            self._shift(reservation.done_at, left_s)
            self._measurement = _Measurement(now)  # how much of it was computed is not known
        self.may_try = True

    def report(self, load: Load, now: float) -> None:
        if self.load is None or load.steps != self.load.steps:
            self._stepped_at = now
        if load.drafting is not None:
            self.pass_tokens = _pass_tokens(self.pass_tokens, self.load, load.drafting)
        self.load = load
        self.prefill_rate.report(load.prefill_tokens_per_s, now)
        num_there = load.running + load.waiting
        self.num_running = max(num_there, len(self.reservations))
        self.may_try = True
        if self.engine is not None and num_there < self.places:
            self.full_since = None

    def fail(self, fault: Fault, now: float) -> None:
        """The engine is gone; its tickets were dropped before."""
        self.fault, self.fault_kind = fault.cause, fault.kind
        self.gave_up = fault.is_final
        self.engine = self.load = self.progress = self.full_since = None
        self.since, self.prefill_rate, self.pass_tokens = now, PrefillRateEstimator(), 1.0
        self.num_running = len(self.reservations)

    def view(self, cached_blocks: int) -> WorkerView:
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
            progress=self.progress,
            is_open=self.breaker.is_open,
            places=self.places,
        )

    @property
    def step_s(self) -> float:
        """How long a step full of prefill takes."""
        budget = self.engine.token_budget if self.engine is not None else 0
        return budget / (self.prefill_rate.tokens_per_s or PRIOR_TOKENS_PER_S)

    def _schedule(self, reservation: Reservation, now: float) -> None:
        """When its prefill is over, and from when on the next ones can begin: any prompt from
        `_free_at`, one that fits beside long ones from `_open_at`.
        """
        own_s = reservation.prefill_s
        free_at, open_at = max(now, self._free_at), max(now, self._open_at)
        self._free_at = free_at + own_s
        if reservation.fresh_tokens > self.most_beside:
            self._open_at, reservation.done_at = free_at, self._free_at
        elif open_at >= free_at:
            self._open_at = reservation.done_at = self._free_at
        else:
            # Half of each step belongs to the long one, which this delays by its own length.
            reservation.is_beside = True
            self._open_at = reservation.done_at = min(open_at + 2 * own_s, self._free_at)
            for other in self._prefilling.values():
                if other.done_at > reservation.done_at:
                    other.done_at += own_s

    def _shift(self, after: float, early_s: float) -> None:
        if early_s <= 0:
            return
        self._free_at -= early_s
        if self._open_at >= after:
            self._open_at -= early_s
        self._open_at = min(self._open_at, self._free_at)
        for other in self._prefilling.values():
            if other.done_at > after:
                other.done_at -= early_s

    def _learn(self, reservation: Reservation, now: float) -> None:
        """A prefill is over. When none is left, all of them together took the time since the first
        was sent, in whichever order they were computed.
        """
        num_tokens = reservation.uncached_tokens
        measured = self._measurement
        measured.tokens += num_tokens
        measured.depth += num_tokens * (reservation.cached_tokens + num_tokens / 2)
        busy_s = now - measured.since
        if not self._prefilling or busy_s > LEARN_AFTER_S:
            self.prefill_rate.learn(measured.tokens, measured.depth, busy_s, now)
            if self._prefilling:
                self._measurement = _Measurement(now)


def _most_beside(engine: EngineFacts | None) -> int:
    """How many tokens of a prompt our engine computes beside a long one: half of each step is for
    those that fit into it (`workers/scheduler/planning.py`). External engines finish what they
    began.
    """
    if engine is None or engine.kind != "native":
        return -1
    return engine.token_budget // 2


def _pass_tokens(before: float, last: Load | None, now: Drafting) -> float:
    """The moving average of tokens a pass, which counts those since the last report."""
    passes, tokens = now.passes, now.tokens
    if last is not None and last.drafting is not None and last.drafting.passes <= passes:
        passes, tokens = passes - last.drafting.passes, tokens - last.drafting.tokens
    if passes <= 0 or tokens < passes:
        return before
    return before + min(1.0, passes / _RECENT_PASSES) * (tokens / passes - before)
