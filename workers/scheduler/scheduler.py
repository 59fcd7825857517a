"""The engine's scheduler: submissions in, plans out; results in, messages out.

Owns every live sequence and the order of calls: plans are committed in the order in which they were
made, and at most `lookahead` plans are made before the one before them is committed; submissions,
aborts and deadlines may come at any time between. Must not know tensors, sockets or clocks: a
decision is a return value, `now` is an argument.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import final

from protocol.messages import (
    BlocksSnapshot,
    Embed,
    Load,
    Rejected,
    Retain,
    Score,
    SequenceAlive,
    Submit,
)
from workers.ipc import BROADCAST, SUPERVISOR
from workers.scheduler.admission import Refusal, SchedulerLimits, SubmissionReader, largest_id
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.committing import Outgoing, apply
from workers.scheduler.concurrency import USUAL_OUTPUTS, Concurrency, peak_growth
from workers.scheduler.drafting import DraftPlans, NoDraftPlans, Proposer
from workers.scheduler.intake_queue import IntakeQueue
from workers.scheduler.integrity import require
from workers.scheduler.loading import HostLoads, NoHostLoads
from workers.scheduler.plan import StepPlan, StepResult
from workers.scheduler.planning import choose
from workers.scheduler.prompt_pace import PromptPace
from workers.scheduler.queues import Queues
from workers.scheduler.retention import ReturnExpectation
from workers.scheduler.sequence import Key, Sequence, SequenceEnd
from workers.scheduler.step_cost import StepCost
from workers.scheduler.tier import HostTier, Transfer, Transferred
from workers.scheduler.windows import WindowPool


@final
class Scheduler:
    """Schedules sequences over the blocks of one engine. `models` are its public names; `largest`
    is for `SubmissionReader`; `usual_outputs` is the assumed number of tokens of an answer before
    one has ended. Tests clear `expects_growth`: then sequences start without room for their
    answers, so that blocks run out. `blocks` has the prefix cache, which the caller may clear and
    shrink between steps.

    With a `lookahead` of 1 a step is planned while the one before is computed. A sequence that ends
    in the earlier step may then have a chunk in the later one too, which is computed for nothing.

    The engine loop writes measured steps to `step_cost`, which says what prompts may take beside
    decodes. A `proposer` gives decodes drafts. While a step with drafts is in flight, only a step
    of decodes with drafts is planned ahead of its result.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: BlockManager,
        models: tuple[str, ...],
        eos_ids: frozenset[int],
        *,
        lookahead: int = 0,
        largest: Callable[[array[int]], int] = largest_id,
        usual_outputs: int = USUAL_OUTPUTS,
        proposer: Proposer | None = None,
    ) -> None:
        if lookahead not in {0, 1}:
            raise ValueError(f"a lookahead of {lookahead} steps; 0 and 1 are possible")
        self.lookahead = lookahead
        self.step_cost = StepCost()
        self._pace = PromptPace(self.step_cost, limits.max_gap_s)
        self.expects_growth = True
        self._limits = limits
        self.blocks = blocks
        pool_tokens = blocks.num_blocks * blocks.block_size
        self._reader = SubmissionReader(limits, pool_tokens, models, eos_ids, largest)
        self._queues = queues = Queues()
        self._drafts = (
            NoDraftPlans()
            if proposer is None
            else DraftPlans(proposer, queues, blocks, limits.token_budget)
        )
        tier = blocks.tier
        self._loads = HostLoads(blocks, tier) if isinstance(tier, HostTier) else NoHostLoads()
        self._concurrency = Concurrency(limits.max_seqs, usual_outputs)
        self._intake_queue = IntakeQueue(limits.max_waiting)
        # These have a place but no blocks yet.
        self._compiling: dict[Key, Sequence] = {}
        self._next_seq = count(1)
        self._deadlines: list[tuple[float, Key]] = []
        self._ended: list[int] = []
        self._in_flight: deque[StepPlan] = deque()
        self._num_steps = 0
        self._num_preemptions = 0
        self._num_hit = self._num_hit_on_host = self._num_prompt = 0

    def __repr__(self) -> str:
        return f"<Scheduler {self._queues!r} {self._intake_queue!r} {self.blocks!r}>"

    @property
    def num_compiling(self) -> int:
        """Sequences with a place that only wait for `compiled`."""
        return len(self._compiling)

    @property
    def has_work(self) -> bool:
        """Whether a sequence lives that does not wait for its grammar. Then `plan` returns a plan,
        unless a step is in flight, or all of them wait for loads from the host.
        """
        return self._queues.num_live > 0  # the intake queue is empty while a place is free

    def submit(
        self, link: int, message: Submit | Embed | Score, now: float
    ) -> tuple[Outgoing, ...]:
        """Take a sequence. Answers only if it is refused, or if earlier attempts completed it."""
        self.blocks.now = now
        try:
            sequence = self._take(link, message, now)
        except Refusal as refusal:
            return (Outgoing(link, refusal.answer(message)),)
        if sequence.num_outputs >= sequence.max_outputs:
            return (Outgoing(link, sequence.finished(SequenceEnd("length"))),)
        if self._is_full:
            self._intake_queue.add(sequence)
        else:
            self._give_place(sequence)
        if sequence.deadline_at is not None:
            heappush(self._deadlines, (sequence.deadline_at, sequence.key))
        return ()

    def compiled(self, key: Key, grammar: object | None, error: str) -> tuple[Outgoing, ...]:
        """Take the compiled grammar of a sequence, which may start now. `grammar` None refuses the
        sequence with `error`. Does nothing if the sequence has ended meanwhile.
        """
        sequence = self._find(key)
        if sequence is None or not sequence.is_compiling:
            return ()
        if grammar is None:
            self._remove(sequence)
            refusal = Rejected(sequence.request_id, sequence.attempt, "grammar", error)
            return (Outgoing(sequence.link, refusal),)
        sequence.grammar = grammar
        sequence.is_compiling = False
        if self._compiling.pop(key, None) is not None:
            self._enter(sequence)
        return ()

    def abort(self, link: int, request_id: bytes, attempt: int) -> tuple[Outgoing, ...]:
        """End a sequence and free its blocks. An unknown one is ignored."""
        sequence = self._find((link, request_id, attempt))
        return () if sequence is None else (self._end(sequence, SequenceEnd("abort")),)

    def retain(self, link: int, message: Retain, now: float) -> None:
        """Take what is expected of a conversation. It counts from the end of its sequence."""
        self.blocks.now = now
        key = link, message.request_id, message.attempt
        expected = ReturnExpectation(message.chance, message.within_s)
        sequence = self._find(key)
        if sequence is not None:
            sequence.expected = message.conversation, expected
        else:
            self.blocks.retain(key, message.conversation, expected)

    def drop_link(self, link: int) -> None:
        """End all sequences of a link that is gone, without messages."""
        # Sequences in the intake queue end first, or they would be admitted to the places of the
        # others.
        compiling = [sequence for key, sequence in self._compiling.items() if key[0] == link]
        waiting = self._intake_queue.of_link(link)
        for sequence in waiting + compiling + self._queues.of_link(link):
            self._end(sequence, SequenceEnd("abort"))
        self._intake_queue.forget(link)

    def expire(self, now: float) -> tuple[Outgoing, ...]:
        """End the sequences whose deadline has come."""
        self.blocks.now = now
        messages: list[Outgoing] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline_at, key = heappop(self._deadlines)
            sequence = self._find(key)
            if sequence is not None and sequence.deadline_at == deadline_at:
                messages.append(self._end(sequence, SequenceEnd("abort", detail="deadline passed")))
        return tuple(messages)

    def plan(self) -> StepPlan | None:
        """The next step; None if no sequence lives, or if none can go on before the step in flight
        is committed. Raises `RuntimeError` if too many steps are in flight.

        While no step is in flight every plan advances the oldest sequence, so every sequence ends.
        """
        in_flight = self._in_flight
        if len(in_flight) > self.lookahead:
            raise RuntimeError(f"step {in_flight[0].step} is not committed yet")
        drafts = self._drafts.of_step(in_flight[-1] if in_flight else None)
        if drafts is None:
            return None
        self._expect_growth()
        choice = choose(self._queues, self.blocks, self._limits, self._pace, drafts, self._loads)
        self._num_preemptions += choice.num_preempted
        if choice.started:
            begun = [self._queues.running[start.seq] for start in choice.started]
            self._num_hit += sum([one.num_cached for one in begun])
            self._num_hit_on_host += sum([one.num_cached_on_host for one in begun])
            self._num_prompt += sum([len(one.token_ids) for one in begun])
        if choice.num_preempted:
            self._concurrency.preempted()
        self._concurrency.started(*self.blocks.take_admitted())
        if not choice.chunks:
            return None
        ended, self._ended = self._ended, []
        self._num_steps += 1
        chunks, takes_in = self._drafts.take_in(choice.started, choice.chunks)
        plan = StepPlan(
            self._num_steps,
            tuple(choice.started),
            tuple(chunks),
            tuple(ended),
            self.blocks.swap.take_moves(),
            takes_in,
        )
        in_flight.append(plan)
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> tuple[Outgoing, ...]:
        """Take the result of `plan`. Returns acceptances, one `Tokens` per link, endings and block
        events, in this order.

        Raises `ValueError` if it is not the answer to the oldest plan in flight.
        """
        oldest = self._in_flight[0] if self._in_flight else None
        if plan is not oldest or result.step != plan.step:
            raise ValueError(f"result of step {result.step} does not answer {oldest}")
        self._in_flight.popleft()
        self._drafts.learn(plan, result)
        outcome = apply(plan, result, self._queues, self.blocks)
        endings = [self._end(sequence, ending) for sequence, ending in outcome.ended]
        return (*outcome.messages, *endings, *self.take_events())

    @property
    def is_copying(self) -> bool:
        """Whether copies from or to the host are under way, or can begin."""
        tier = self.blocks.tier
        return tier.is_copying or tier.has_to_store

    def transfers(self) -> list[Transfer]:
        """The copies from and to the host that begin now; call it when the steps that are planned
        are launched, and before the next is planned.
        """
        return self.blocks.tier.transfers(self.blocks.now)

    def transferred(self, over: Iterable[Transferred], now: float) -> None:
        """Take copies that are over at the time `now`, in seconds."""
        self.blocks.now = now
        for transfer in over:
            self.blocks.tier.over(transfer, self.blocks.now)

    def took(self, plan: StepPlan, result: StepResult, seconds: float, *, is_ahead: bool) -> None:
        """Tell the proposer how long a committed step took; see `Proposer.took`."""
        self._drafts.took(plan, result, seconds, is_ahead=is_ahead)

    def take_events(self) -> tuple[Outgoing, ...]:
        """Block events not handed out yet. `commit` hands out all, also those that plans caused."""
        return tuple(Outgoing(BROADCAST, event) for event in self.blocks.take_events())

    def snapshot(self) -> BlocksSnapshot:
        """All digests of the prefix cache. Send what `take_events` returns before it."""
        return self.blocks.snapshot()

    def revise_places(self) -> None:
        """Estimate again how many sequences have a place, and admit waiting ones to new places."""
        spare = self.blocks.num_free - peak_growth(self._growths())
        num_running, size = len(self._queues.running), self.blocks.block_size
        self._concurrency.revise(num_running, spare, size, self._most_in_windows(num_running))
        self._admit_followers()

    def load(self, epoch: int, step_ms: float, prefill_tokens_per_s: float) -> Load:
        """The counters, with what only the caller can measure."""
        return Load(
            epoch,
            running=len(self._queues.running),
            waiting=self._queues.num_waiting + len(self._compiling) + len(self._intake_queue),
            free_blocks=self.blocks.num_free,
            num_blocks=self.blocks.num_blocks,
            steps=self._num_steps,
            preemptions=self._num_preemptions,
            step_ms=step_ms,
            prefill_tokens_per_s=prefill_tokens_per_s,
            places=self._concurrency.places,
            drafting=self._drafts.summary(),
            cache=self.blocks.tier.use(self._num_hit, self._num_hit_on_host, self._num_prompt),
            evicted_blocks=self.blocks.evictions.num_evicted,
            recomputed_tokens=self.blocks.evictions.num_again * self.blocks.block_size,
        )

    def signs_of_life(self) -> tuple[Outgoing, ...]:
        """A message for each sequence that has begun and gets no token now: it was preempted, or
        its tokens are computed again.
        """
        begun = [one for one in self._queues.waiting.values() if one.turn]
        begun += [
            one for one in self._queues.running.values() if one.num_planned < len(one.token_ids) - 1
        ]
        return tuple(Outgoing(one.link, SequenceAlive(*one.key[1:])) for one in begun)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if the books contradict each other. O(blocks), for idle times."""
        running = self._queues.running
        require(len(running) <= self._limits.max_running, f"too many run: {self!r}")
        self._queues.check_integrity()
        require(self._is_full or not len(self._intake_queue), f"a place is free: {self!r}")
        pending = Counter(
            chunk.seq for plan in self._in_flight for chunk in plan.chunks if chunk.samples
        )
        self._queues.check_progress(pending)
        tables = [one.table for one in running.values()]
        self.blocks.check_integrity([*tables, *self._loads.tables])
        self._loads.check_integrity()
        self.blocks.swap.check_integrity(self._queues.waiting.values())

    def _take(self, link: int, message: Submit | Embed | Score, now: float) -> Sequence:
        if self._find((link, message.request_id, message.attempt)) is not None:
            raise Refusal("invalid", "this attempt of this request runs already")
        sequence = self._reader.sequence(next(self._next_seq), link, message, now)
        if self._is_full and not self._intake_queue.has_room(link, self._queues.num_by_link):
            raise Refusal("busy", f"{len(self._intake_queue)} sequences wait already")
        return sequence

    @property
    def _is_full(self) -> bool:
        # Places that are free now count, because the next plan fills them.
        return self._queues.num_live + len(self._compiling) >= self._concurrency.places

    def _expect_growth(self) -> None:
        """Before a plan that may start sequences, tell the block manager how many blocks the
        running ones will still need.
        """
        head = next(iter(self._queues.waiting.values()), None)
        is_full = len(self._queues.running) >= self._limits.max_running
        if head is None or is_full or not self.expects_growth:
            return
        left = self._concurrency.tokens_left(head.num_outputs, head.max_outputs)
        each = self.blocks.num_needed(left)
        self.blocks.expect(peak_growth([*self._growths(), (0, each)]), each)
        if isinstance(self.blocks.windows, WindowPool):
            self.blocks.windows.expected = self._window_growth(
                (*self._queues.running.values(), head), self.blocks.windows
            )

    def _growths(self) -> Iterator[tuple[int, int]]:
        """For `peak_growth`, of each running sequence: the blocks that it returns when it ends, and
        those that it takes until then. Blocks that it found in the cache are not counted as
        returned, because others may hold them too.
        """
        tokens_left, size = self._concurrency.tokens_left, self.blocks.block_size
        for sequence in self._queues.running.values():
            num_tokens = sequence.num_prompt + sequence.num_outputs
            num_tokens += tokens_left(sequence.num_outputs, sequence.max_outputs)
            num_held = len(sequence.table.block_ids)
            own = num_held - sequence.num_cached // size
            yield max(0, own), max(0, -(-num_tokens // size) - num_held)

    def _most_in_windows(self, num_running: int) -> int:
        """How many sequences like the running ones have room in the windows' pool."""
        windows = self.blocks.windows
        if not isinstance(windows, WindowPool) or not num_running:
            return self._limits.max_seqs
        num_needed = windows.num_held + self._window_growth(self._queues.running.values(), windows)
        return max(1, num_running * windows.num_blocks // max(1, num_needed))

    def _window_growth(self, sequences: Iterable[Sequence], windows: WindowPool) -> int:
        """How many more blocks of windows these should come to hold: each holds its window at last,
        or all that it has.
        """
        tokens_left, most, num_needed = self._concurrency.tokens_left, windows.most_kept, 0
        for one in sequences:
            num_tokens = one.num_prompt + one.num_outputs
            num_tokens += tokens_left(one.num_outputs, one.max_outputs)
            needed = min(most, self.blocks.num_needed(num_tokens))
            num_needed += max(0, needed - len(one.table.window.held))
        return num_needed

    def _find(self, key: Key) -> Sequence | None:
        queued = self._queues.find(key) or self._intake_queue.find(key)
        return queued or self._compiling.get(key)

    def _give_place(self, sequence: Sequence) -> None:
        if sequence.is_compiling:
            self._compiling[sequence.key] = sequence
        else:
            self._queues.add(sequence)

    def _enter(self, sequence: Sequence) -> None:
        """Put a sequence into the queues, which are ordered by number. It gets a new number, so it
        comes last whenever it arrived.
        """
        sequence.seq = next(self._next_seq)
        self._queues.add(sequence)

    def _end(self, sequence: Sequence, ending: SequenceEnd) -> Outgoing:
        self._remove(sequence)
        return Outgoing(sequence.link, sequence.finished(ending))

    def _remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free what it holds; its place, if it has one, goes to the next."""
        if self._intake_queue.find(sequence.key) is not None:
            self._intake_queue.remove(sequence)
            return
        if self._compiling.pop(sequence.key, None) is None:
            self._queues.remove(sequence)
            self.blocks.release(sequence.table, sequence.key)
            if sequence.expected is not None:
                self.blocks.retain(sequence.key, *sequence.expected)
            self.blocks.swap.forget(sequence)
            if sequence.is_started:
                self._ended.append(sequence.seq)
                self._drafts.end(sequence.seq)
                if sequence.link != SUPERVISOR:  # health probes are not answers
                    self._concurrency.ended(sequence.num_outputs)
        self._admit_followers()

    def _admit_followers(self) -> None:
        """Fill the free places from the intake queue."""
        while not self._is_full:
            follower = self._intake_queue.admit(self._queues.num_by_link)
            if follower is None:
                break
            if follower.is_compiling:
                self._compiling[follower.key] = follower
            else:
                self._enter(follower)
