"""Random lives of a scheduler with a pool that is too small, against naive doubles."""

import random
from collections import Counter
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from protocol.hashing import block_digests, root_digest
from protocol.messages import Submit
from protocol.sampling import SamplingParams
from protocol.tokens import count_tokens, pack_tokens, unpack_tokens
from tests.fakes.scheduling import EOS, MODEL, Engine, make_submit, split_digests

IDS = range(EOS + 1)
IDS_WEIGHTS = (40, 40, 40, 40, 40, 5, 5, 2)
BLOCK_SIZE = 4
CONTEXT_LENGTH = 40
NUM_STEPS = 10_000
STEPS_PER_LIFE = 100
SEEDS = st.integers(0, 2**32 - 1)
LINKS = (1, 2, 3)
ROOTS = {root_digest(MODEL), root_digest(MODEL, "", b"own")}
seen: Counter[str] = Counter()


class SchedulerLife(RuleBasedStateMachine):
    """Submissions, aborts, lost links, deadlines and steps in any order."""

    @initialize(
        num_blocks=st.integers(3, 14),
        max_seqs=st.integers(1, 5),
        token_budget=st.integers(1, 20),
        max_waiting=st.integers(0, 6),
    )
    def begin(self, num_blocks: int, max_seqs: int, token_budget: int, max_waiting: int) -> None:
        """A pool of 12 to 56 tokens for sequences of up to 40."""
        self.num_blocks = num_blocks
        self.max_seqs = max_seqs
        self.engine = Engine(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_seqs=max_seqs,
            token_budget=token_budget,
            context_length=CONTEXT_LENGTH,
            max_waiting=max_waiting,
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

    @rule(seconds=st.integers(0, 15))
    def pass_time(self, seconds: int) -> None:
        """Deadlines come."""
        self.now += seconds
        self.engine.ledger.hear(self.engine.scheduler.expire(self.now))
        self._settle()

    @rule(seed=SEEDS)
    def step(self, seed: int) -> None:
        """A few steps with any tokens, several per sequence at times; some sequences fail."""
        rng = random.Random(seed)
        for _ in range(rng.randrange(1, 9)):
            plan = self.engine.step(
                lambda _: tuple(rng.choices(IDS, IDS_WEIGHTS, k=rng.choice((1, 1, 1, 3)))),
                lambda _: rng.random() < 0.005,
            )
            assert (plan is None) == (not self.live)
            self._learn_parents()
            self._settle()

    @rule(seed=SEEDS)
    def abort_in_flight(self, seed: int) -> None:
        """A request is aborted while its step is computed."""
        rng = random.Random(seed)
        plan = self.engine.scheduler.plan()
        if plan is None:
            return
        number = rng.choice(list(self.live))
        link, _ = self.live[number]
        self.engine.ledger.hear(self.engine.scheduler.abort(link, number.to_bytes(16, "little"), 0))
        result = self.engine.runner.run(plan, lambda _: (rng.randrange(5),))
        self.engine.ledger.hear(self.engine.scheduler.commit(plan, result))
        self._learn_parents()
        self._settle()

    @invariant()
    def books_agree(self) -> None:
        """Every count, list and index agrees, and the mirror of the block events is exact."""
        seen["steps"] += 1
        scheduler, ledger = self.engine.scheduler, self.engine.ledger
        scheduler.check_integrity()
        assert not scheduler.take_events()
        snapshot = scheduler.snapshot()
        assert snapshot.seq == ledger.seq
        assert split_digests(snapshot.digests) == ledger.cached
        assert all(self.parents[digest] in ledger.cached | ROOTS for digest in ledger.cached)
        load = scheduler.load(1, 0.0, 0.0)
        assert load.running + load.waiting == len(self.live)
        runner = self.engine.runner
        assert len(runner.tokens) <= self.max_seqs + len(scheduler._ended)
        for number, (_, submit) in self.live.items():
            if number in runner.seq_of:
                known = [*unpack_tokens(submit.prompt_ids), *ledger.outputs[number]]
                assert runner.tokens[runner.seq_of[number]] == known

    def teardown(self) -> None:
        """Once nothing new comes, everything ends in a bounded number of steps; no block leaks."""
        if not hasattr(self, "engine"):
            return
        bound = sum(count_tokens(submit.prompt_ids) for _, submit in self.live.values())
        bound += CONTEXT_LENGTH * len(self.live)
        self.engine.drain(lambda _: (1,), limit=bound + 1)
        self._settle()
        assert not self.live
        load = self.engine.scheduler.load(1, 0.0, 0.0)
        assert load.free_blocks == load.num_blocks == self.num_blocks
        seen["preemptions"] += load.preemptions
        seen["finished"] += len(self.engine.ledger.finished)
        seen["hits"] += sum(a.cached_tokens > 0 for a in self.engine.ledger.accepted.values())

    def _settle(self) -> None:
        """Forget what ended or was refused."""
        ledger = self.engine.ledger
        for number in [n for n in self.live if n in ledger.finished or n in ledger.rejected]:
            del self.live[number]

    def _learn_parents(self) -> None:
        """Which digest stands before which, for every token sequence that was ever computed."""
        for tokens in self.engine.runner.tokens.values():
            for root in ROOTS:
                chain = [root, *block_digests(root, pack_tokens(tokens), BLOCK_SIZE)]
                self.parents.update((child, parent) for parent, child in pairwise(chain))


def test_scheduler_survives_random_lives() -> None:
    """10,000 random steps: no leak, no double use, no hole, no gap, and everything ends."""
    seen.clear()
    num_lives = max(3 * NUM_STEPS // STEPS_PER_LIFE, settings().max_examples // 20)
    run_state_machine_as_test(
        SchedulerLife, settings=settings(max_examples=num_lives, stateful_step_count=STEPS_PER_LIFE)
    )
    assert seen["steps"] >= NUM_STEPS
    assert seen["preemptions"] > 100
    assert seen["hits"] > 100
    assert seen["finished"] > 1000
