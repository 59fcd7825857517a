"""Random lives of a scheduler with a pool that is too small, against a card that is late.

With a lookahead of 1 everything may happen while one or two steps are in flight. The card's model
proves at every position that attention would read, and for every block of the prefix cache, that
it holds what belongs there (`tests/fakes/card.py`).
"""

import random
from collections import Counter
from itertools import pairwise

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from protocol.hashing import block_digests, root_digest
from protocol.messages import CacheUse, Submit
from protocol.sampling import SamplingParams
from protocol.tokens import count_tokens, pack_tokens, unpack_tokens
from tests.fakes.drafts import CardDrafts
from tests.fakes.scheduling import EOS, MODEL, Engine, make_submit, split_digests
from workers.scheduler.plan import StepPlan
from workers.scheduler.scheduler import Scheduler
from workers.scheduler.windows import WindowPool, WindowSizes, most_kept

IDS = range(EOS + 1)
IDS_WEIGHTS = (40, 40, 40, 40, 40, 5, 5, 2)
BLOCK_SIZE = 4
CONTEXT_LENGTH = 40
STEPS_PER_LIFE = 100
GRAIN = 8
"""What windows are kept by, in tokens."""
SEEDS = st.integers(0, 2**32 - 1)
LINKS = (1, 2, 3)
ROOTS = {root_digest(MODEL), root_digest(MODEL, "", b"own")}
seen: Counter[str] = Counter()


class SchedulerLife(RuleBasedStateMachine):
    """Submissions, aborts, lost links, deadlines, launches and results in any order."""

    lookahead = 0
    num_states: int | None = None
    host_pages = 0
    copies = False
    depth = 0
    window = 0

    @initialize(
        num_blocks=st.integers(3, 14),
        max_seqs=st.integers(1, 5),
        token_budget=st.integers(1, 20),
        max_waiting=st.integers(0, 6),
        usual_outputs=st.sampled_from((0, 0, 0, 9, 512)),
    )
    def begin(
        self,
        num_blocks: int,
        max_seqs: int,
        token_budget: int,
        max_waiting: int,
        usual_outputs: int,
    ) -> None:
        """A pool of 12 to 56 tokens for sequences of up to 40, and room for drafts."""
        num_blocks, token_budget = num_blocks + 2 * self.depth, token_budget + 2 * self.depth
        self.num_blocks = num_blocks
        self.max_seqs = max_seqs
        self.token_budget = token_budget
        windows = None
        if self.window:
            fewest = most_kept(self.window, BLOCK_SIZE, GRAIN) + 2
            sizes = WindowSizes(fewest + num_blocks // 2, self.window)
            windows = WindowPool(sizes, BLOCK_SIZE, GRAIN, least=BLOCK_SIZE)
        self.engine = Engine(
            windows=windows,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_seqs=max_seqs,
            token_budget=token_budget,
            context_length=CONTEXT_LENGTH,
            max_waiting=max_waiting,
            lookahead=self.lookahead,
            usual_outputs=usual_outputs,
            num_states=self.num_states,
            host_pages=self.host_pages,
            copies=self.copies,
            proposer=CardDrafts(self.depth, vary=num_blocks % 4 == 0) if self.depth else None,
        )
        self.live: dict[int, tuple[int, Submit]] = {}
        self.parents: dict[bytes, bytes] = {}
        self.next_number = 0
        self.now = 0.0

    @rule(seed=SEEDS)
    def submit(self, seed: int) -> None:
        """A prompt that may share its start with others, perhaps resumed, perhaps hopeless."""
        rng = random.Random(seed)
        family, length = rng.randrange(3), int(rng.triangular(1, CONTEXT_LENGTH + 4, 6))
        tokens = [(family + index // 3) % 5 for index in range(length)]
        if rng.random() < 0.5:
            tokens[rng.randrange(length) :] = []
        prompt = [*tokens, rng.randrange(6)]
        outputs = [rng.randrange(6) for _ in range(rng.choice((0, 0, 0, 1, 7)))]
        submit = make_submit(
            self.next_number,
            prompt,
            outputs=outputs,
            sampling=SamplingParams(
                max_tokens=rng.choice((1, 9, 20, 100)),
                stop_token_ids=rng.choice(((), (5,))),
                ignore_eos=rng.random() < 0.3,
            ),
            salt=rng.choice((b"", b"", b"own")),
            deadline_s=rng.choice((None, None, 20.0)),
        )
        self.next_number += 1
        link = rng.choice(LINKS)
        self.live[self.next_number - 1] = (link, submit)
        self.engine.submit(submit, link=link, now=self.now)
        self._settle()

    @rule(seeds=st.lists(SEEDS, min_size=2, max_size=4))
    def burst(self, seeds: list[int]) -> None:
        """Several submissions at once."""
        for seed in seeds:
            self.submit(seed)

    @rule(seed=SEEDS)
    def abort(self, seed: int) -> None:
        """At times, any request: live, finished or unknown, from its own link or a foreign one."""
        rng = random.Random(seed)
        if rng.random() < 0.7:
            return
        number, link = rng.randrange(self.next_number + 1), rng.choice(LINKS)
        is_own = number in self.live and self.live[number][0] == link
        answer = self.engine.scheduler.abort(link, number.to_bytes(16, "little"), 0)
        assert len(answer) == is_own
        self.engine.ledger.hear(answer)
        self._settle()

    @rule(seed=SEEDS)
    def drop_link(self, seed: int) -> None:
        """A gateway goes away, rarely: nothing more is said about its requests."""
        rng = random.Random(seed)
        link = rng.choice(LINKS)
        if rng.random() < 0.9:
            return
        self.engine.scheduler.drop_link(link)
        gone = [number for number, (owner, _) in self.live.items() if owner == link]
        for number in gone:
            del self.live[number]
        self.engine.ledger.closed.update(gone)

    @rule()
    def revise(self) -> None:
        """The places are estimated anew."""
        scheduler = self.engine.scheduler
        scheduler.revise_places()
        assert 1 <= scheduler.load(1, 0.0, 0.0).places <= self.max_seqs
        self._settle()

    @rule(seconds=st.integers(0, 15))
    def pass_time(self, seconds: int) -> None:
        """Deadlines come."""
        self.now += seconds
        self.engine.ledger.hear(self.engine.scheduler.expire(self.now))
        self._settle()

    @rule(seed=SEEDS)
    def step(self, seed: int) -> None:
        """A few turns with any tokens; some sequences fail."""
        rng = random.Random(seed)
        for _ in range(rng.randrange(1, 9)):
            plan = self._launch()
            while len(self.engine.in_flight) > (0 if plan is None else self.lookahead):
                self.collect(rng.getrandbits(32))

    @rule()
    def launch(self) -> None:
        """A plan, unless too many are in flight."""
        self._launch()

    def _launch(self) -> StepPlan | None:
        """Launch a step. No sequence waits while nothing is in flight, except for copies from the
        host.
        """
        num_in_flight = len(self.engine.in_flight)
        if num_in_flight > self.lookahead:
            return None
        plan = self.engine.launch()
        if num_in_flight == 0:
            waits = self.copies and self.engine.scheduler.is_copying and plan is None
            assert waits or (plan is None) == (not self.live)
        if plan is not None:
            assert len(plan.chunks) <= self.max_seqs
            assert sum(chunk.num_rows for chunk in plan.chunks) <= self.token_budget
            seen["planned ahead"] += num_in_flight
        return plan

    @rule(seed=SEEDS)
    def collect(self, seed: int) -> None:
        """The oldest step in flight is done, with no or several tokens per sequence at times."""
        if not self.engine.in_flight:
            return
        rng = random.Random(seed)
        # What computes a state can neither wait for a token nor take rows back.
        is_plain = self.lookahead or (self.num_states is not None and not self.window)
        counts = (1,) if is_plain else (0, 1, 1, 1, 3)
        if self.depth:  # as many as there are drafts for
            counts = (1, 2, 3, 9)
        running = {chunk.seq for chunk in self.engine.in_flight[0].chunks}
        seen["stray"] += sum(self.engine.scheduler._queues.live(seq) is None for seq in running)
        waiting = self.engine.scheduler._queues.waiting
        seen["preempted in flight"] += sum(seq in waiting for seq in running)
        self.engine.collect(
            lambda _: tuple(rng.choices(IDS, IDS_WEIGHTS, k=rng.choice(counts))),
            lambda _: rng.random() < 0.005,
        )
        self._learn_parents()
        self._settle()

    @invariant()
    def books_agree(self) -> None:
        """Every count, list and index agrees, and the mirror of the block events is exact."""
        seen["steps"] += 1
        scheduler, ledger = self.engine.scheduler, self.engine.ledger
        scheduler.check_integrity()
        ledger.hear(scheduler.take_events())
        snapshot = scheduler.snapshot()
        assert snapshot.seq == ledger.seq
        assert split_digests(snapshot.digests) == ledger.cached
        assert split_digests(snapshot.states) == ledger.states <= ledger.cached
        assert all(self.parents[digest] in ledger.cached | ROOTS for digest in ledger.cached)
        load = scheduler.load(1, 0.0, 0.0)
        assert load.running + load.waiting == len(self.live)
        if load.cache is not None:
            self._check_figures(load.cache, scheduler)
        runner = self.engine.runner
        assert len(runner.known) <= self.max_seqs + len(scheduler._ended)
        for number, (_, submit) in self.live.items():
            if runner.seq_of.get(number) in runner.tokens:
                known = [*unpack_tokens(submit.prompt_ids), *ledger.outputs[number]]
                assert runner.tokens[runner.seq_of[number]] == known

    def _check_figures(self, use: CacheUse, scheduler: Scheduler) -> None:
        """What the engine says of its tiers adds up, and is what a runner and starts have seen."""
        assert 0 <= use.loaded_tokens <= use.hit_tokens <= use.prompt_tokens
        started = [one for plan in self.engine.plans for one in plan.started]
        assert use.prompt_tokens == sum(len(one.token_ids) for one in started)
        found = sum(one.cached_tokens for one in self.engine.ledger.accepted.values())
        assert found <= use.hit_tokens
        tier, runner = scheduler.blocks.tier, self.engine.runner
        assert tier is not None
        moving = sum(len(one.pages) for what in tier._under_way.values() for one, _ in what.items)
        assert tier.num_stored <= runner.num_stored <= tier.num_stored + moving
        assert tier.num_loaded <= runner.num_loaded <= tier.num_loaded + moving
        assert tier.num_spoilt == tier.num_recovered == 0
        assert tier.pool.num_used <= tier.pool.num_usable == self.host_pages

    def teardown(self) -> None:
        """Once nothing new comes, everything ends in a bounded number of steps; no block leaks."""
        if not hasattr(self, "engine"):
            return
        while self.engine.in_flight:
            self.engine.collect()
        self._settle()
        bound = sum(count_tokens(submit.prompt_ids) for _, submit in self.live.values())
        bound += CONTEXT_LENGTH * len(self.live)
        self.engine.drain(lambda _: (1,), limit=(bound + 1) * (1 + self.lookahead))
        self._settle()
        assert not self.live
        # A state that is being stored on the host is pinned too.
        for _ in range(self.host_pages if self.copies else 0):
            if self.engine.scheduler.is_copying:
                self.engine.launch()
        assert not (self.copies and self.engine.scheduler.is_copying)
        load = self.engine.scheduler.load(1, 0.0, 0.0)
        assert load.free_blocks == load.num_blocks == self.num_blocks
        seen["preemptions"] += load.preemptions
        seen["restored"] += self.engine.runner.num_restored
        seen["swapped"] += self.engine.runner.num_swapped
        seen["loaded"] += self.engine.runner.num_loaded
        assert not self.engine.scheduler.blocks.states.pool.pinned
        if isinstance(windows := self.engine.scheduler.blocks.windows, WindowPool):
            assert windows.num_held == 0
        seen["moved"] += self.engine.runner.num_moved
        seen["finished"] += len(self.engine.ledger.finished)
        seen["hits"] += sum(a.cached_tokens > 0 for a in self.engine.ledger.accepted.values())

    def _settle(self) -> None:
        """Forget what ended or was refused."""
        ledger = self.engine.ledger
        for number in [n for n in self.live if n in ledger.finished or n in ledger.rejected]:
            del self.live[number]

    def _learn_parents(self) -> None:
        """Learn which digest stands before which, for every token sequence that was ever
        computed.
        """
        for tokens in self.engine.runner.tokens.values():
            for root in ROOTS:
                chain = [root, *block_digests(root, pack_tokens(tokens), BLOCK_SIZE)]
                self.parents.update((child, parent) for parent, child in pairwise(chain))


class LookaheadLife(SchedulerLife):
    """The life of a scheduler with a step planned while another is computed."""

    lookahead = 1


class DraftLife(LookaheadLife):
    """With drafts, which the next step is planned behind before it is known which are accepted:
    where nothing waits, and blocks and rows are to spare.
    """

    depth = 4

    @rule(seed=SEEDS)
    def calm(self, seed: int) -> None:
        """Some turns in which nothing is submitted: what waits begins, the others go on."""
        rng = random.Random(seed)
        for _ in range(4):
            self.step(rng.getrandbits(32))


class StateLife(SchedulerLife):
    """The life of a scheduler with a model that has states, of which a few are kept."""

    num_states = 3


class LookaheadStateLife(StateLife):
    """The life of a scheduler with states, with a step planned ahead."""

    lookahead = 1


class SwapLife(LookaheadLife):
    """What is preempted goes to the host, as far as there is room."""

    host_pages = 9


class SwapStateLife(LookaheadStateLife):
    """With its state."""

    host_pages = 11


class TierLife(LookaheadLife):
    """What is cached goes to the host too, and comes back for prompts that wait."""

    host_pages = 30
    copies = True


class WindowLife(SchedulerLife):
    """With layers that keep only their window, whose blocks run out before the others do. With a
    drafting network, whose drafts are planned ahead, engines keep all tokens.
    """

    num_states = 6
    window = 6


class LookaheadWindowLife(WindowLife):
    """The life of a scheduler with windows, with a step planned ahead."""

    lookahead = 1


class TierStateLife(LookaheadStateLife):
    """With states."""

    host_pages = 30
    copies = True


@pytest.mark.parametrize(
    "life",
    [
        pytest.param(SchedulerLife, id="waits", marks=pytest.mark.slow),
        pytest.param(LookaheadLife, id="looks ahead"),
        pytest.param(DraftLife, id="drafts ahead"),
        pytest.param(StateLife, id="states", marks=pytest.mark.slow),
        pytest.param(LookaheadStateLife, id="states ahead", marks=pytest.mark.slow),
        pytest.param(SwapLife, id="swaps", marks=pytest.mark.slow),
        pytest.param(SwapStateLife, id="swaps states"),
        pytest.param(TierLife, id="a host tier"),
        pytest.param(TierStateLife, id="a host tier of states"),
        pytest.param(WindowLife, id="windows", marks=pytest.mark.slow),
        pytest.param(LookaheadWindowLife, id="windows ahead"),
    ],
)
def test_scheduler_survives_random_lives(life: type[SchedulerLife]) -> None:
    """Thousands of random steps: no leak, no double use, no hole, no gap, and everything ends."""
    seen.clear()
    # The bounds are a third of what one run saw, and those of steps ahead a tenth. With a seed of
    # their own the lives do not change with the words of this file.
    if settings().derandomize:
        hypothesis.seed(7)(life)
    num_lives = max(50, settings().max_examples // 20)
    run_state_machine_as_test(
        life, settings=settings(max_examples=num_lives, stateful_step_count=STEPS_PER_LIFE)
    )
    assert seen["steps"] >= 2_500
    if life.copies:
        assert seen["loaded"] > 5
    if life.host_pages:
        assert seen["swapped"] > 1
        assert seen["finished"] > 90
        return
    if life.num_states is not None:
        # A prompt of a few blocks saves one state, and three are kept.
        assert seen["preemptions"] > 1
        assert seen["restored"] > 3
        assert seen["finished"] > 90
        return
    if life.depth:
        assert seen["moved"] > 3
        assert seen["stray"] > 0
        return
    assert seen["preemptions"] > 3
    assert seen["hits"] > 12
    assert seen["finished"] > 150
    if life.lookahead:
        assert seen["planned ahead"] > 40
        assert seen["stray"] > 0


@settings(max_examples=max(25, settings().max_examples // 10))  # each is many steps
@given(seed=SEEDS, num_blocks=st.integers(10, 16), token_budget=st.integers(1, 20))
def test_looking_ahead_changes_no_token(seed: int, num_blocks: int, token_budget: int) -> None:
    """A token depends on its sequence and position; so does every answer, whatever runs when."""
    rng = random.Random(seed)
    submits = [
        make_submit(
            number,
            [rng.randrange(3) for _ in range(rng.randrange(1, 12))],
            max_tokens=rng.randrange(1, 24),
        )
        for number in range(6)
    ]
    answers = []
    for lookahead in (0, 1):
        engine = Engine(
            num_blocks=num_blocks,
            token_budget=token_budget,
            context_length=CONTEXT_LENGTH,
            lookahead=lookahead,
        )
        for submit in submits:
            engine.submit(submit)
        tokens = engine.runner.tokens
        engine.drain(lambda seq, tokens=tokens: (hash((seq, len(tokens[seq]))) % 30,))
        answers.append((engine.ledger.outputs, _ends(engine)))
    assert answers[0] == answers[1]


def _ends(engine: Engine) -> dict[int, tuple[str, int]]:
    finished = engine.ledger.finished
    return {number: (m.reason, m.output_tokens) for number, m in finished.items()}
