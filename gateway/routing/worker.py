"""One worker as the gateway sees it.

Owns the facts of its engine, the reservations on it, and the schedule of its prefills and loads:
until when it is busy with them. Must not know other workers, models' policies or costs.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.routing.breaker import Breaker
from gateway.routing.chain_tree import ChainTree, common_prefix
from gateway.routing.effects import RouteRequest
from gateway.routing.prefill_rate import PRIOR_TOKENS_PER_S, PrefillRateEstimator
from gateway.routing.trust import Trust
from gateway.routing.worker_view import WorkerState, WorkerView
from protocol.ids import BlockDigest, WorkerId
from protocol.messages import (
    ASLEEP,
    TAKES_TURNS,
    DraftResults,
    EngineFacts,
    Fault,
    FaultKind,
    Load,
    Progress,
    Register,
    ResidencyState,
)

ATTACHING: Final = "attach"
"""The phase of a start in which a worker looks for an engine that it did not launch."""
AUXILIARY_PLACES: Final = 1
"""Places beyond a worker's cap that only auxiliary requests may use."""
STEPS_AHEAD: Final = 2
"""Steps full of prefill that a worker is given in advance: one that it computes, and one to
continue with while messages travel.
"""

LEARN_AFTER_S: Final = 10.0
"""A worker that always has prefill work is measured at this interval. Prefills that have begun and
are not over then make an error of a few percent.
"""

STUCK_AFTER_S: Final = 120.0
STUCK_STEPS: Final = 10
"""A full engine is stuck if it has reported no step for both `STUCK_AFTER_S` and the time of
`STUCK_STEPS` steps. An engine with work reports its steps ten times a second, or each step if it
takes longer. The limit is long because the supervisor, which knows what an engine computes or
compiles, kills a silent one after 3 s: one that lives without steps mostly has a reason, for which
it gets two minutes (`stall_s`).
"""

PRIOR_LOAD_BYTES_PER_S: Final = 20e9
"""The rate until a worker has measured its own: between a card's link (50 GB/s) and a host (5)."""
LEAST_LOAD_BYTES_PER_S: Final = 1e6
_MOST_LOADING: Final = 0.9
"""Prefills of which loads took a larger share teach no rate. With less, loads are a part of them:
simulated fleets of agents did worse where their time was left out."""
_RECENT_PASSES: Final = 500
"""The window, in passes, of the moving average of tokens per pass."""


class PlaceReservation(msgspec.Struct, eq=False):
    """A ticket's place, asked for at `asked_at`; its prefill should be over at `done_at`. Its key
    was charged `charged` in advance, for `expected_output` tokens. `private_tokens` of its KV space
    are not shared with other sequences. `is_beside`: its prefill runs beside a long one's.
    `arrival` orders it if it waits again. `is_proof`: it counted as its worker's success.
    `host_tokens`: to load.
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
    host_tokens: int = 0
    asked_at: float = 0.0


class _Measurement(msgspec.Struct, gc=False):
    """The prefills that a worker has computed `since` a time: the number of tokens, and `depth`,
    the sum of their positions. Their loads from the host took `load_s`, as far as is known.
    """

    since: float
    tokens: int = 0
    depth: float = 0.0
    load_s: float = 0.0


class Worker:
    """The state of one worker; only `FleetState` writes it.

    `num_running` counts the sequences on it: this gateway's and, as of its last `Load`, those of
    other gateways. `breaker` and `trust` outlive this object: the fleet keeps them by the worker's
    name, `trust` as long as its engine.
    `is_absent`: it waits for an attached engine that is not there, see `note_absence`.
    `pass_tokens` is how many tokens of an answer a step makes, more than one if drafts are
    accepted; `load_token_s` the seconds that a token takes from the host to the card. `residency`
    is None unless it takes turns with others; `told` is the last demand that was sent to it.
    `full_since`: the worker has refused a sequence then and not reported free places since;
    `may_try`: it gets one more sequence all the same. `chains` are the prompts that run here; their
    blocks count as held until their tickets are over, whatever block events say. A prompt with at
    most `most_beside` tokens to compute starts beside a long one.

    Prefill is scheduled by estimate: a new prompt starts at `_free_at`, a short one at `_open_at`.
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
        self.is_absent = False
        self.residency: ResidencyState | None = None
        if TAKES_TURNS in message.capabilities:
            self.residency = "asleep" if ASLEEP in message.capabilities else "awake"
        self.due_s = 0.0
        self.sleep_trouble = ""
        self.told: tuple[int, int, float | None] | None = None
        self.draining = False
        self.full_since: float | None = None
        self.may_try = False
        self.load: Load | None = None
        self.pass_tokens = 1.0
        self.load_token_s = 0.0
        self.prefill_rate = PrefillRateEstimator()
        self.breaker = Breaker()
        self.trust = Trust()
        self.num_running = 0
        self._stepped_at = now
        self.reservations: dict[int, PlaceReservation] = {}
        self._prefilling: dict[int, PlaceReservation] = {}
        self.chains = ChainTree()
        self._free_at = now
        self._open_at = now
        self._link_free_at = now
        self.most_beside = _most_beside(message.engine)
        self._measurement = _Measurement(now)
        self._pinned_blocks = 0
        self._private_tokens = 0

    def __repr__(self) -> str:
        return (
            f"<Worker {self.name} epoch {self.epoch} {self.state} {len(self.reservations)} running>"
        )

    @property
    def is_asleep(self) -> bool:
        """Whether it takes no work because it sleeps or is on the way, and has not given up."""
        return self.residency not in (None, "awake") and not self.gave_up

    @property
    def state(self) -> WorkerState:
        if not (self.residency is None or self.residency == "awake" or self.gave_up):
            return self.residency
        if self.engine is not None:
            if self.draining:
                return "draining"
            return "ready" if self.trust.state == "trusted" else "unproven"
        return "down" if self.gave_up else "starting"

    @property
    def ready(self) -> bool:
        """Whether its engine has generated tokens and takes more work."""
        is_there = self.engine is not None and not self.draining and not self.is_asleep
        return is_there and self.trust.state == "trusted"

    @property
    def places(self) -> int:
        """How many sequences it takes at once: as its last `Load` says, at most `max_seqs`."""
        if self.engine is None:
            return 0
        now = self.load.places if self.load is not None else 0
        return min(now or self.engine.max_seqs, self.engine.max_seqs)

    @property
    def num_free_places(self) -> int:
        return max(0, self.places - len(self.reservations))

    @property
    def is_crowded(self) -> bool:
        """Whether a health probe may have to wait there, because sequences of this and other
        gateways have all places or all blocks.
        """
        if self.engine is None:
            return False
        # The engine's `Load` counts the probe too.
        num_others = max(self.num_running - 1, len(self.reservations))
        has_no_block = self.load is not None and self.load.free_blocks == 0 < self.load.num_blocks
        is_full = num_others >= self.places or self.full_since is not None
        return is_full or has_no_block

    @property
    def is_idle(self) -> bool:
        """Whether, as far as is known, no sequence of any client runs there."""
        has_begun = any(one.started for one in self.reservations.values())
        return not has_begun and (self.load is None or not self.load.running)

    def has_stepped_since(self, at: float) -> bool:
        """Whether its engine has reported a step later than `at`."""
        return self._stepped_at > at

    def is_stuck(self, now: float) -> bool:
        """Whether its steps have stopped. Meaningful only if it has work."""
        usual_s = self.load.step_ms / 1e3 if self.load is not None else 0.0
        patience_s = max(STUCK_AFTER_S, STUCK_STEPS * max(usual_s, self.step_s))
        return now - self._stepped_at >= patience_s

    @property
    def kv_reserved_tokens(self) -> int:
        """KV space promised to the tickets; blocks that several share count once."""
        size = self.engine.block_size if self.engine is not None else 0
        return self._pinned_blocks * size + self._private_tokens

    def open_for(self, *, auxiliary: bool) -> bool:
        """Whether it has a free place; auxiliary requests may use one beyond the cap."""
        if self.engine is None or self.draining:
            return False
        if self.full_since is not None and not self.may_try:
            return False
        limit = self.places + (AUXILIARY_PLACES if auxiliary else 0)
        return len(self.reservations) < limit

    def has_room(self, request: RouteRequest, expected_output: int) -> bool:
        """Whether there is a place and KV space for the request. An empty worker takes any prompt,
        because it will never have more room.
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
        """Seconds until the prefill of a prompt with `num_tokens` to compute should begin: when the
        prefills ahead are over. A short one begins beside a long one, in the next step.
        """
        ahead_s = self._free_at - now
        if ahead_s <= 0.0:
            return 0.0
        if self._open_at < self._free_at and num_tokens <= self.most_beside:
            return min(ahead_s, max(0.0, self._open_at - now) + self.step_s)
        return ahead_s

    def has_prefill_headroom(self, now: float, num_tokens: int = 0) -> bool:
        """Whether the prefill ahead of a prompt with `num_tokens` to compute takes no more than
        `STEPS_AHEAD` steps. More would only queue at the worker, where requests cannot be reordered
        or moved.
        """
        if self.engine is None:
            return False
        until = self._open_at if num_tokens <= self.most_beside else self._free_at
        return until <= now or until - now <= STEPS_AHEAD * self.step_s

    def load_s(self, num_tokens: int, now: float) -> float:
        """Seconds until `num_tokens` have come from the host, behind the loads under way."""
        return max(0.0, self._link_free_at - now) + num_tokens * self.load_token_s

    def free_in_s(self, now: float) -> tuple[float, float]:
        """Seconds until the prefills ahead of a long and of a short prompt should be over."""
        free_s = max(0.0, self._free_at - now)
        return free_s, min(free_s, max(0.0, self._open_at - now))

    def coming_depth(self, digests: Sequence[BlockDigest]) -> int:
        """How many leading blocks of the chain belong to prompts that run here, so that a sequence
        can start behind them whatever block events say. In an engine that keeps states only prompts
        in prefill count: it saves a state where another prompt parts from one of these, but from a
        finished prefill only the states that its events name.
        """
        if self.engine is None or self.engine.snapshots is None:
            return self.chains.depth(digests)
        shared = [common_prefix(r.request.digests, digests) for r in self._prefilling.values()]
        return max(shared, default=0)

    def take(self, reservation: PlaceReservation) -> None:
        """Give the ticket its place; its prefill is scheduled after those ahead."""
        request, now = reservation.request, reservation.assigned_at
        self._pinned_blocks += self.chains.enter(request.digests)
        size = self.engine.block_size if self.engine is not None else 0
        tail = max(0, request.prompt_tokens - len(request.digests) * size)
        reservation.private_tokens = tail + reservation.expected_output
        self._private_tokens += reservation.private_tokens
        if not self._prefilling:
            self._measurement = _Measurement(now)
        if reservation.host_tokens:
            self._link_free_at = now + self.load_s(reservation.host_tokens, now)
            self._measurement.load_s += reservation.host_tokens * self.load_token_s
        self._schedule(reservation, now)
        self.reservations[request.ticket] = self._prefilling[request.ticket] = reservation
        self.num_running += 1
        self.may_try = False

    def refused(self, now: float) -> None:
        """The worker had no room for a sequence. At each change there it is tried with a single
        one: of all waiting sequences nearly all would come back.
        """
        self.full_since, self.may_try = now, False

    def started(self, reservation: PlaceReservation, now: float) -> None:
        """The reservation's prefill is over; if that is early, the prefills behind it move up."""
        if reservation.started:
            return
        reservation.started = True
        self.may_try = True  # the queue in the worker may have room now
        del self._prefilling[reservation.request.ticket]
        if not reservation.is_beside:
            self._shift(reservation.done_at, reservation.done_at - now)
        self._learn(reservation, now)

    def drop(self, reservation: PlaceReservation, now: float) -> None:
        """Free the ticket's place and, if its prefill was not over, the time scheduled for it."""
        request = reservation.request
        del self.reservations[request.ticket]
        self.num_running -= 1
        self._pinned_blocks -= self.chains.leave(request.digests)
        self._private_tokens -= reservation.private_tokens
        if not reservation.started:
            del self._prefilling[request.ticket]
            left_s = min(reservation.prefill_s, reservation.done_at - now)
            self._shift(reservation.done_at, left_s)
            # How much of the prefill was computed is unknown, so the measurement starts again.
            self._measure_again(now)
        self.may_try = True

    def report(self, load: Load, now: float) -> None:
        if self.load is None or load.steps != self.load.steps:
            self._stepped_at = now
        if load.drafting is not None:
            self.pass_tokens = _pass_tokens(self.pass_tokens, self.load, load.drafting)
        self.load = load
        self.load_token_s = _load_token_s(self.engine, load)
        self.prefill_rate.report(load.prefill_tokens_per_s, now)
        num_there = load.running + load.waiting
        self.num_running = max(num_there, len(self.reservations))
        self.may_try = True
        if self.engine is not None and num_there < self.places:
            self.full_since = None

    def fail(self, fault: Fault, now: float) -> None:
        """The engine is gone. The caller has dropped its tickets."""
        self.fault, self.fault_kind = fault.cause, fault.kind
        self.gave_up, self.is_absent = fault.is_final, False
        self.engine = self.load = self.progress = self.full_since = None
        self.since, self.prefill_rate, self.pass_tokens = now, PrefillRateEstimator(), 1.0
        self.num_running = len(self.reservations)

    def note_absence(self, now: float, patience_s: float) -> None:
        """Note whether its attached engine is away: at once if it was never found, else after
        `patience_s`, because it may be a restart.
        """
        progress = self.progress
        if progress is None or self.state != "starting" or progress.phase != ATTACHING:
            self.is_absent = False
        else:
            self.is_absent = progress.epoch <= 1 or now - self.since >= patience_s

    def view(self, cached_blocks: int, host_blocks: int = 0) -> WorkerView:
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
            due_s=self.due_s,
            sleep_trouble=self.sleep_trouble,
            host_blocks=host_blocks,
        )

    @property
    def step_s(self) -> float:
        """Estimated seconds of a step full of prefill."""
        budget = self.engine.token_budget if self.engine is not None else 0
        return budget / (self.prefill_rate.tokens_per_s or PRIOR_TOKENS_PER_S)

    def _schedule(self, reservation: PlaceReservation, now: float) -> None:
        """Set when the reservation's prefill is over, and when the next one can start: any prompt
        at `_free_at`, one that fits beside a long prompt at `_open_at`.
        """
        own_s = reservation.prefill_s
        free_at, open_at = max(now, self._free_at), max(now, self._open_at)
        self._free_at = free_at + own_s
        if reservation.fresh_tokens > self.most_beside:
            self._open_at, reservation.done_at = free_at, self._free_at
        elif open_at >= free_at:
            self._open_at = reservation.done_at = self._free_at
        else:
            # Half of each step belongs to the long prompt, which this one delays by `own_s`.
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

    def _learn(self, reservation: PlaceReservation, now: float) -> None:
        """Count a finished prefill. When none is left, all of them together took the time since the
        first was sent, in whichever order they were computed, and the estimator learns that.
        """
        num_tokens = reservation.uncached_tokens
        measured = self._measurement
        measured.tokens += num_tokens
        measured.depth += num_tokens * (reservation.cached_tokens + num_tokens / 2)
        busy_s = now - measured.since
        if not self._prefilling or busy_s > LEARN_AFTER_S:
            if measured.load_s <= _MOST_LOADING * busy_s:
                self.prefill_rate.learn(measured.tokens, measured.depth, busy_s, now)
            if self._prefilling:
                self._measure_again(now)

    def _measure_again(self, now: float) -> None:
        """Begin a measurement among the prefills that are not over."""
        tokens = sum([one.host_tokens for one in self._prefilling.values()])
        self._measurement = _Measurement(now, load_s=tokens * self.load_token_s)


def _most_beside(engine: EngineFacts | None) -> int:
    """The longest prompt, in tokens to compute, that a native engine starts beside a long one: half
    of each step is for prompts that fit into that half (`workers/scheduler/planning.py`). External
    engines finish the prompt that they began: -1.
    """
    if engine is None or engine.kind != "native":
        return -1
    return engine.token_budget // 2


def _load_token_s(engine: EngineFacts | None, load: Load) -> float:
    """The seconds that a token takes from the host to the card; 0 without a host tier."""
    use = load.cache
    if use is None or engine is None or not engine.block_size:
        return 0.0
    rate = max(LEAST_LOAD_BYTES_PER_S, use.load_bytes_per_s or PRIOR_LOAD_BYTES_PER_S)
    return use.block_bytes / engine.block_size / rate


def _pass_tokens(before: float, last: Load | None, now: DraftResults) -> float:
    """The moving average of tokens per pass after the passes since the last report."""
    passes, tokens = now.passes, now.tokens
    if last is not None and last.drafting is not None and last.drafting.passes <= passes:
        passes, tokens = passes - last.drafting.passes, tokens - last.drafting.tokens
    if passes <= 0 or tokens < passes:
        return before
    return before + min(1.0, passes / _RECENT_PASSES) * (tokens / passes - before)
