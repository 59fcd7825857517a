"""One simulated worker: an engine's scheduler in virtual time.

Owns the running and waiting sequences of one engine. Steps follow `workers/scheduler/planning.py`
and `prompt_shares.py`: one token for each decode; half of the rest for the oldest prompt, the other
half for shorter ones; a turn waits for another that computes its prefix; the latest started is
preempted when blocks run out. A step that prefills is
simulated by itself; decode steps between two events are one stretch, summed in closed form. With
blocks of the engine's size every first and last token, hit and preemption falls on the same step as
in the engine's scheduler (a test compares them). Must not know policies or other workers.

A model with states keeps them where the engine does, by the engine's own rules.

Four simplifications: a block is that of the trace (512 tokens, the engine's are 32), so the
reserve of one small block per running sequence is rounded up to whole large ones; a step that is
planned while another is computed (the engine's lookahead) is not modelled; what decodes may wait
(`max_gap_ms`) does not bound a step; no state is saved within an answer, because the prompts of a
trace name an answer's blocks anew: no turn finds them, with states or without.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Final, NamedTuple

from benchmarks.routing.cache import Cache
from benchmarks.routing.cost_model import CostModel
from benchmarks.routing.trace import TracedTurn, block_name
from protocol.ids import BlockDigest
from protocol.messages import BlockEvent, Load
from workers.scheduler.block_table import BlockTable
from workers.scheduler.meters import StepMeter

ENGINE_BLOCK: Final = 32
_ROOT: Final = block_name(b"")
_STEP_MEMORY: Final = 0.9
"""The weight of the average step time that each step keeps: the engine's meter in closed form."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The engine's limits: a pool of `kv_tokens`, in blocks of the trace, and the number of states
    of prefixes, None for a model without states.
    """

    cost: CostModel
    kv_tokens: int
    max_seqs: int
    token_budget: int
    num_states: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's report after a step. `started` have their first token, `finished` their last;
    `admitted` pairs newly running turns with their cached prompt tokens.
    """

    worker: int
    at_s: float
    events: tuple[BlockEvent, ...]
    admitted: tuple[tuple[int, int], ...]
    started: tuple[int, ...]
    finished: tuple[int, ...]
    load: Load


class SimulatedSequence:
    """One sequence on a worker. `num_tokens`: prompt and answer so far. `table` and `saves` are the
    engine's records of its states.
    """

    __slots__ = (
        "arrival",
        "awaits",
        "computed",
        "due_at",
        "is_new",
        "joined_at",
        "num_awaited",
        "num_blocks",
        "num_tokens",
        "ready_at",
        "saves",
        "stored",
        "table",
        "turn",
    )

    def __init__(self, turn: TracedTurn, arrival: int) -> None:
        self.turn = turn
        self.arrival = arrival
        self.num_tokens = turn.prompt_tokens
        self.computed = 0
        self.num_blocks = 0
        self.num_awaited = 0
        self.awaits: BlockDigest | None = None
        self.stored: list[BlockDigest] = []
        self.table = BlockTable(_ROOT)
        self.saves: list[int] = []
        self.is_new = True
        self.ready_at = 0.0
        self.joined_at = 0
        self.due_at = -1

    @property
    def num_left(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.num_tokens - self.computed

    @property
    def num_outputs_left(self) -> int:
        """Tokens of the answer that are not sampled yet."""
        return self.turn.prompt_tokens + self.turn.output_tokens - self.num_tokens

    def digest(self, index: int) -> BlockDigest:
        """The name of a full block; a block with a part of the answer has a unique one."""
        if index < len(self.turn.digests):
            return self.turn.digests[index]
        return block_name(b"%d/%d" % (self.turn.number, index))


class _Candidate(NamedTuple):
    """A turn that may start: names of the blocks that it hits, and what it needs beside them."""

    sequence: SimulatedSequence
    names: Sequence[BlockDigest]
    num_new: int
    num_left: int


class SimWorker:
    """One simulated worker. `next_at` is the end of its step or stretch, None while it is idle."""

    def __init__(self, number: int, spec: WorkerSpec, cache: Cache, block_size: int) -> None:
        self.number = number
        self.spec = spec
        self.cache = cache
        self.block_size = block_size
        self.num_blocks = spec.kv_tokens // block_size
        self.next_at: float | None = None
        self.busy_s = 0.0
        self.num_preemptions = 0
        self.waiting: deque[SimulatedSequence] = deque()
        self.planned: dict[BlockDigest, SimulatedSequence] = {}
        self.prefilling: list[SimulatedSequence] = []
        self.decoding: dict[int, SimulatedSequence] = {}
        self._due: list[tuple[int, int, SimulatedSequence]] = []
        self._num_steps = 0
        self._num_arrivals = 0
        self._context = 0
        self._began_at = 0.0
        self._chunks: list[tuple[SimulatedSequence, int]] = []
        self._slots: list[tuple[tuple[int, int], ...]] = []
        self._pins: list[int] = []
        self._num_single = 0
        self._ended: list[SimulatedSequence] = []
        self._stretch = 0
        self._budget = 0
        self._may_start = False
        self._next: _Candidate | None = None
        self._meter = StepMeter()
        self._step_ms = 0.0
        self._admitted: list[tuple[int, int]] = []
        self._started: list[int] = []
        self._finished: list[int] = []

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self.prefilling) + len(self.decoding)

    def uncached_ahead_s(self) -> float:
        """The prefill work of admitted and waiting turns, with the present cache."""
        cost, size = self.spec.cost, self.block_size
        ahead_s = sum(cost.chunk_s(one.computed, one.num_left) for one in self.prefilling)
        for one in self.waiting:
            cached = self._match(_reusable(one, size))[0] * size
            ahead_s += cost.chunk_s(cached, one.num_tokens - cached)
        return ahead_s

    def remaining(self) -> list[tuple[int, int]]:
        """Steps to the end and blocks held, of each decoding sequence, the shortest first."""
        return sorted(
            (one.num_outputs_left - (self._num_steps - one.joined_at), one.num_blocks)
            for one in self.decoding.values()
        )

    def submit(self, turn: TracedTurn, now: float) -> None:
        """Add a turn, which joins at the end of the current step."""
        self.cache.now = now
        sequence = SimulatedSequence(turn, self._num_arrivals)
        sequence.ready_at = self.cache.fetch(_reusable(sequence, self.block_size), now)
        self.waiting.append(sequence)
        self._num_arrivals += 1
        if self.next_at is None or not (self._chunks or self.decoding):
            self._begin(now)
        elif self._stretch > 1 and len(self.waiting) == 1:
            self._cut(now)  # A turn that waits longer could not start, and only an end makes room.

    def step(self, now: float) -> WorkerReport:
        """End the step or stretch: return its report and begin the next one."""
        self.cache.now = now
        duration_s = now - self._began_at
        self.busy_s += duration_s
        self._measure(duration_s, now)
        num_steps = self._stretch or 1
        self._num_steps += num_steps
        # Before the chunks: a prompt completed in this step did not decode in it.
        self._context += num_steps * len(self.decoding)
        for (sequence, length), saves in zip(self._chunks, self._slots, strict=True):
            self._computed(sequence, length)
            self._settle(sequence, saves)
        self._let_go()
        self._end_those_due()
        self._release_ended()
        self._chunks, self._slots, self._stretch = [], [], 0
        self._begin(now)
        return self._report(now)

    def _let_go(self) -> None:
        """Release the states with which the turns of this step have begun."""
        if self.cache.states is not None:
            for slot in self._pins:
                self.cache.states.pool.unpin(slot)
            self._pins.clear()

    def _settle(self, sequence: SimulatedSequence, saves: tuple[tuple[int, int], ...]) -> None:
        """Save the states that lie within a chunk of the step."""
        if saves and self.cache.states is not None:
            sequence.table.num_stored = len(sequence.stored)
            self.cache.states.keep(saves, sequence.table)

    def _begin(self, now: float) -> None:
        """Plan and start the next step or stretch."""
        num_preempted = self._grow_those_due()
        self.num_preemptions += num_preempted
        # A sequence that needs one token gets it, as a decode does; the others share the rest.
        self._chunks = [(one, 1) for one in self.prefilling if one.num_left == 1]
        self._num_single = len(self._chunks)
        self._slots = [()] * self._num_single
        longer = [one for one in self.prefilling if one.num_left > 1]
        self._budget = self.spec.token_budget - len(self.decoding) - len(self._chunks)
        self._may_start, self._next = num_preempted == 0, None
        if longer:
            self._share_with_oldest(longer)
        while self._budget > 0 and (candidate := self._candidate()) is not None:
            self._start(candidate, min(candidate.num_left, self._budget))
        self._began_at = now
        self._set_end()

    def _set_end(self) -> None:
        cost, num_decoding = self.spec.cost, len(self.decoding)
        if self._chunks:
            chunks_s = sum(cost.chunk_s(one.computed, length) for one, length in self._chunks)
            self.next_at = self._began_at + cost.decode_s(num_decoding, self._context) + chunks_s
        elif num_decoding:
            self._stretch = max(1, self._next_due() - self._num_steps)
            stretch_s = cost.stretch_s(num_decoding, self._context, self._stretch)
            self.next_at = self._began_at + stretch_s
            if self._next_load_at() < self.next_at:
                self._cut(self._next_load_at())
        else:
            # Blocks on their way from the host may be all that the waiting turns wait for.
            self.next_at = load_at if (load_at := self._next_load_at()) < inf else None

    def _next_load_at(self) -> float:
        """When the next waiting turn has its blocks from the host."""
        coming = [one.ready_at for one in self.waiting if one.ready_at > self._began_at]
        return min(coming, default=inf)

    def _cut(self, now: float) -> None:
        """End the stretch with the step that is being computed."""
        cost, num_decoding = self.spec.cost, len(self.decoding)
        span_s = now - self._began_at
        self._stretch = min(self._stretch, cost.steps_within(num_decoding, self._context, span_s))
        stretch_s = cost.stretch_s(num_decoding, self._context, self._stretch)
        self.next_at = self._began_at + stretch_s

    def _share_with_oldest(self, longer: list[SimulatedSequence]) -> None:
        """Give half of the budget to the oldest turn, the other half to the shortest ones first."""
        num_left = longer[0].num_left
        reserved = min(num_left, self._budget - self._budget // 2)
        self._budget -= reserved
        shorter = [one for one in longer[1:] if self._num_urgent(one) < num_left]
        in_progress = deque(sorted(shorter, key=self._num_urgent))
        while self._budget > 0 and (candidate := self._candidate()) is not None:
            while in_progress and self._num_urgent(in_progress[0]) <= candidate.num_left:
                self._go_on(in_progress.popleft())
            length = min(candidate.num_left, self._budget)
            if length == 0 or length < candidate.num_left >= num_left:
                break
            self._start(candidate, length)
        for sequence in in_progress:
            self._go_on(sequence)
        self._budget += reserved
        for sequence in longer:
            if sequence not in shorter:
                self._go_on(sequence)

    def _num_urgent(self, sequence: SimulatedSequence) -> int:
        """The tokens left of a sequence, or the tokens that another turn waits for."""
        awaited = sequence.num_awaited * self.block_size - sequence.computed
        return min(sequence.num_left, awaited) if awaited > 0 else sequence.num_left

    def _go_on(self, sequence: SimulatedSequence) -> None:
        if (length := min(sequence.num_left, self._budget)) > 0:
            self._compute(sequence, length)

    def _compute(self, sequence: SimulatedSequence, length: int) -> None:
        """Compute a chunk, some of whose states may be saved."""
        self._chunks.append((sequence, length))
        self._budget -= length
        saves: tuple[tuple[int, int], ...] = ()
        if (states := self.cache.states) is not None:
            start = sequence.computed
            end, num_prompt = start + length, sequence.turn.prompt_tokens
            saves = states.reserve(sequence.table, sequence.saves, start, end, num_prompt)
        self._slots.append(saves)

    def _candidate(self) -> _Candidate | None:
        """The next turn to start in this plan: searched once, until it starts."""
        if self._next is None:
            self._next = self._find()
        return self._next

    def _find(self) -> _Candidate | None:
        """The first waiting turn that memory has room for."""
        if not self.waiting or not self._may_start or self.num_running >= self.spec.max_seqs:
            return None
        size, cache = self.block_size, self.cache
        reserve = -(-self.num_running * ENGINE_BLOCK // size)
        if cache.num_free <= reserve:
            return None
        # Turns behind them are in the engine's intake queue: a turn that waits for a block holds a
        # place.
        num_places = self.spec.max_seqs - self.num_running
        for sequence in islice(self.waiting, num_places):
            if sequence.awaits in self.planned or sequence.ready_at > cache.now:
                continue
            names = _reusable(sequence, size)
            num_hits, num_idle, num_matched = self._match(names)
            if not self._waits(sequence, names, num_hits, num_matched):
                break
        else:
            return None
        num_new = -(-sequence.num_tokens // size) - num_hits
        if num_new + num_idle + reserve > cache.num_free:
            return None
        num_left = sequence.num_tokens - num_hits * size
        if (states := cache.states) is not None:
            # The names of all full blocks: a state may also be saved after the last token.
            rest = range(len(names), sequence.num_tokens // size)
            sequence.table.digests = [*names, *map(sequence.digest, rest)]
            if (found := states.pool.hit(names[:num_hits])) is not None:
                self._pins.append(found.slot)
            cached, table = num_hits * size, sequence.table
            sequence.saves = states.positions(
                table, sequence.num_tokens, cached, num_matched * size
            )
        return _Candidate(sequence, names[:num_hits], num_new, num_left)

    def _match(self, names: Sequence[BlockDigest]) -> tuple[int, int, int]:
        """The number of leading blocks that are hit, of those that no sequence holds, and of blocks
        that are cached, with or without a state.
        """
        num_matched, num_idle = self.cache.match(names)
        if self.cache.states is None:
            return num_matched, num_idle, num_matched
        num_hits = self.cache.states.depth(names[:num_matched])
        return num_hits, self.cache.match(names[:num_hits])[1], num_matched

    def _waits(
        self,
        sequence: SimulatedSequence,
        names: Sequence[BlockDigest],
        num_hits: int,
        num_matched: int,
    ) -> bool:
        """Whether another turn computes a good part of this one, as in
        `workers/scheduler/plan_starts.py`.
        """
        if not sequence.is_new:
            return False
        end, states = num_matched, self.cache.states
        while end < len(names) and names[end] in self.planned:
            end += 1
        while end > num_hits and names[end - 1] not in self.planned:
            end -= 1
        if states is not None:
            end = states.num_usable(end)
        num_spared = (end - num_hits) * self.block_size
        num_left = sequence.num_tokens - num_hits * self.block_size
        if num_spared <= 0 or 4 * num_spared < num_left or names[end - 1] not in self.planned:
            return False
        owner = self.planned[names[end - 1]]
        owner.num_awaited = max(owner.num_awaited, end)
        if states is not None:
            owner.table.awaited_states.add(end)
        sequence.awaits = names[end - 1]
        return True

    def _start(self, candidate: _Candidate, length: int) -> None:
        """Admit a turn, which takes its blocks and computes its first chunk."""
        sequence, names, num_new, *_ = candidate
        self._next = None
        self.waiting.remove(sequence)
        for name in _reusable(sequence, self.block_size)[len(names) : len(sequence.turn.digests)]:
            self.planned.setdefault(name, sequence)
        sequence.stored = list(names)
        self.cache.hold(sequence.stored)
        self.cache.allocate(num_new)
        sequence.num_blocks = len(names) + num_new
        sequence.computed = len(names) * self.block_size
        if sequence.is_new:
            sequence.is_new = False
            # The order is by starts from now on.
            sequence.arrival = self._num_arrivals
            self._num_arrivals += 1
            self._admitted.append((sequence.turn.number, sequence.computed))
        self.prefilling.append(sequence)
        self._compute(sequence, length)

    def _computed(self, sequence: SimulatedSequence, length: int) -> None:
        sequence.computed += length
        self._store(sequence, sequence.computed)
        if sequence.num_left:
            return
        if sequence.num_tokens == sequence.turn.prompt_tokens:
            self._started.append(sequence.turn.number)
        sequence.num_tokens += 1
        self.prefilling.remove(sequence)
        if sequence.num_outputs_left == 0:
            self._ended.append(sequence)
            return
        self.decoding[sequence.arrival] = sequence
        self._context += sequence.num_tokens
        sequence.joined_at = self._num_steps
        self._expect(sequence)

    def _expect(self, sequence: SimulatedSequence) -> None:
        """Compute the time of the sequence's next event: its end, or a step for which it lacks a
        block.
        """
        num_fit = sequence.num_blocks * self.block_size - sequence.num_tokens + 1
        sequence.due_at = sequence.joined_at + min(sequence.num_outputs_left, max(0, num_fit))
        heappush(self._due, (sequence.due_at, sequence.arrival, sequence))

    def _next_due(self) -> int:
        while True:
            due_at, arrival, sequence = self._due[0]
            if self.decoding.get(arrival) is sequence and sequence.due_at == due_at:
                return due_at
            heappop(self._due)

    def _take_due(self) -> list[SimulatedSequence]:
        taken: list[SimulatedSequence] = []
        while self._due and self._due[0][0] <= self._num_steps:
            due_at, arrival, sequence = heappop(self._due)
            if self.decoding.get(arrival) is sequence and sequence.due_at == due_at:
                taken.append(sequence)
        return taken

    def _catch_up(self, sequence: SimulatedSequence) -> None:
        """Update its counters to the present."""
        sequence.num_tokens += self._num_steps - sequence.joined_at
        sequence.joined_at = self._num_steps
        sequence.computed = sequence.num_tokens - 1

    def _end_those_due(self) -> None:
        for sequence in self._take_due():
            self._catch_up(sequence)
            self._store(sequence, sequence.computed)
            if sequence.num_outputs_left == 0:
                del self.decoding[sequence.arrival]
                self._context -= sequence.num_tokens
                self._ended.append(sequence)
            else:
                self._expect(sequence)

    def _grow_those_due(self) -> int:
        """Give a block to each decode whose next token needs one, the oldest first. Returns the
        number of sequences preempted for it.
        """
        num_preempted = 0
        for sequence in sorted(self._take_due(), key=lambda one: one.arrival):
            if self.decoding.get(sequence.arrival) is not sequence:
                continue  # preempted for an older one
            while self.cache.num_free < 1 and self.decoding.get(sequence.arrival) is sequence:
                self._preempt_latest()
                num_preempted += 1
            if self.decoding.get(sequence.arrival) is sequence:
                self.cache.allocate(1)
                sequence.num_blocks += 1
                self._expect(sequence)
        return num_preempted

    def _preempt_latest(self) -> None:
        latest = max((*self.prefilling, *self.decoding.values()), key=lambda one: one.arrival)
        if latest.arrival in self.decoding:
            self._catch_up(latest)
            self._store(latest, latest.computed)
            del self.decoding[latest.arrival]
            self._context -= latest.num_tokens
        else:
            self.prefilling.remove(latest)
        self._release(latest)
        latest.computed = 0
        self.waiting.appendleft(latest)

    def _store(self, sequence: SimulatedSequence, num_computed: int) -> None:
        for index in range(len(sequence.stored), num_computed // self.block_size):
            digest = sequence.digest(index)
            self.cache.store(digest, sequence.stored[-1] if sequence.stored else None)
            self.planned.pop(digest, None)
            sequence.stored.append(digest)

    def _release_ended(self) -> None:
        """Release ended sequences in the order of the engine's rows: sequences of one token by
        their starts, then the others. The blocks that are released first are evicted first.
        """
        others = enumerate(self._chunks[self._num_single :], 1)
        places = {sequence.turn.number: place for place, (sequence, _) in others}
        self._ended.sort(key=lambda one: (places.get(one.turn.number, 0), one.arrival))
        for sequence in self._ended:
            self._release(sequence, sequence.turn.number)
            self._finished.append(sequence.turn.number)
        self._ended.clear()

    def _release(self, sequence: SimulatedSequence, label: object = None) -> None:
        for name in sequence.turn.digests[len(sequence.stored) :]:
            if self.planned.get(name) is sequence:
                del self.planned[name]
        sequence.num_awaited = 0
        sequence.table.awaited_states.clear()
        self.cache.release(sequence.stored, sequence.num_blocks - len(sequence.stored), label)
        sequence.stored = []
        sequence.num_blocks = 0

    def _measure(self, duration_s: float, now: float) -> None:
        num_prefill = sum(length for _, length in self._chunks)
        if num_prefill:
            self._meter.add(duration_s, num_prefill + len(self.decoding), num_prefill, now)
        num_steps = self._stretch or 1
        each_ms = 1e3 * duration_s / num_steps
        old_ms = self._step_ms or each_ms
        self._step_ms = each_ms + (old_ms - each_ms) * _STEP_MEMORY**num_steps

    def _report(self, now: float) -> WorkerReport:
        report = WorkerReport(
            worker=self.number,
            at_s=now,
            events=self.cache.take_events(),
            admitted=tuple(self._admitted),
            started=tuple(self._started),
            finished=tuple(self._finished),
            load=self.load(),
        )
        self._admitted, self._started, self._finished = [], [], []
        return report

    def load(self) -> Load:
        """The engine's own counters."""
        return Load(
            1,
            running=self.num_running,
            waiting=len(self.waiting),
            free_blocks=self.cache.num_free,
            num_blocks=self.num_blocks,
            steps=self._num_steps,
            preemptions=self.num_preemptions,
            step_ms=self._step_ms,
            prefill_tokens_per_s=self._meter.prefill_tokens_per_s,
            cache=self.cache.use,
        )


def _reusable(sequence: SimulatedSequence, block_size: int) -> Sequence[BlockDigest]:
    """The names of the blocks that a hit may cover: at least one token must be computed."""
    num_blocks = (sequence.num_tokens - 1) // block_size
    if num_blocks <= len(sequence.turn.digests):
        return sequence.turn.digests[:num_blocks]
    return [sequence.digest(index) for index in range(num_blocks)]
