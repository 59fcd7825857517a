"""Doubles for the two sides of the scheduler: a runner that proves its cache, a naive gateway.

`FakeRunner` stores in every slot of the cache a hash of the whole prefix that belongs there, and
checks all of them before it computes on. `Ledger` believes only the messages.
"""

from collections.abc import Callable
from itertools import pairwise

from protocol.messages import (
    Accepted,
    BlocksDropped,
    BlocksStored,
    Finished,
    FromWorker,
    Rejected,
    Submit,
    Tokens,
)
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens, unpack_tokens
from workers.core.block_manager import BlockManager
from workers.core.framing import BROADCAST
from workers.core.outgoing import Outgoing
from workers.core.plan import Chunk, Sampled, StepPlan, StepResult
from workers.core.scheduler import Scheduler, SchedulerLimits

MODEL = "tiny"
EOS = 7
Sample = Callable[[int], tuple[int, ...]]


def make_scheduler(
    *,
    num_blocks: int = 16,
    block_size: int = 4,
    max_seqs: int = 4,
    token_budget: int = 16,
    context_length: int = 64,
    max_waiting: int = 8,
    vocab_size: int | None = None,
) -> Scheduler:
    """A small scheduler; 7 is the end of sequence."""
    limits = SchedulerLimits(max_seqs, token_budget, context_length, max_waiting, vocab_size)
    return Scheduler(limits, BlockManager(num_blocks, block_size), (MODEL,), frozenset({EOS}))


def make_submit(
    number: int,
    prompt: list[int],
    *,
    outputs: list[int] | None = None,
    sampling: SamplingParams | None = None,
    max_tokens: int = 4,
    attempt: int = 0,
    model: str = MODEL,
    salt: bytes = b"",
    adapter: str = "",
    deadline_s: float | None = None,
) -> Submit:
    """Request `number`, greedy unless `sampling` says more."""
    return Submit(
        number.to_bytes(16, "little"),
        attempt,
        model,
        pack_tokens(prompt),
        pack_tokens(outputs or []),
        sampling or SamplingParams(max_tokens=max_tokens),
        seed=number,
        deadline_s=deadline_s,
        salt=salt,
        adapter=adapter,
    )


class FakeRunner:
    """Keeps tokens and cache as a real runner would; `sample` maps a sequence to new ids."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tokens: dict[int, list[int]] = {}
        self.seq_of: dict[int, int] = {}
        self.num_computed = 0
        self._slots: dict[tuple[int, int], int] = {}

    def run(
        self, plan: StepPlan, sample: Sample, failing: Callable[[int], bool] | None = None
    ) -> StepResult:
        """Check what the plan relies on, compute it, and check that nothing was overwritten."""
        for seq in plan.ended:
            del self.tokens[seq]
        for start in plan.started:
            assert start.seq not in self.tokens
            self.tokens[start.seq] = list(start.token_ids)
            self.seq_of[start.seed] = start.seq
        for chunk in plan.chunks:
            self._check(chunk, chunk.start)
        for chunk in plan.chunks:
            self._compute(chunk)
        for chunk in plan.chunks:
            self._check(chunk, chunk.start + chunk.length)
        failed = {chunk.seq for chunk in plan.chunks if failing is not None and failing(chunk.seq)}
        sampled: list[Sampled] = []
        for chunk in plan.chunks:
            at_end = chunk.start + chunk.length == len(self.tokens[chunk.seq])
            assert chunk.samples == at_end
            if chunk.samples and chunk.seq not in failed:
                ids = sample(chunk.seq)
                self.tokens[chunk.seq] += ids
                sampled.append(Sampled(chunk.seq, ids))
        return StepResult(plan.step, tuple(sampled), tuple((seq, "no memory") for seq in failed))

    def _prefixes(self, chunk: Chunk) -> list[int]:
        prefixes = [0]
        for token_id in self.tokens[chunk.seq][: chunk.start + chunk.length]:
            prefixes.append(hash((prefixes[-1], token_id)))
        return prefixes[1:]

    def _slot(self, chunk: Chunk, position: int) -> tuple[int, int]:
        return chunk.block_ids[position // self.block_size], position % self.block_size

    def _check(self, chunk: Chunk, end: int) -> None:
        for position, prefix in enumerate(self._prefixes(chunk)[:end]):
            assert self._slots.get(self._slot(chunk, position)) == prefix, (chunk, position)

    def _compute(self, chunk: Chunk) -> None:
        end = chunk.start + chunk.length
        assert chunk.length > 0
        assert len(chunk.block_ids) == -(-end // self.block_size)
        for position, prefix in enumerate(self._prefixes(chunk)):
            if position >= chunk.start:
                self._slots[self._slot(chunk, position)] = prefix
        self.num_computed += chunk.length


class Ledger:
    """What the messages claim: outputs and endings by request number, and the cached digests."""

    def __init__(self) -> None:
        self.outputs: dict[int, list[int]] = {}
        self.accepted: dict[int, Accepted] = {}
        self.finished: dict[int, Finished] = {}
        self.rejected: dict[int, Rejected] = {}
        self.closed: set[int] = set()
        self.cached: set[bytes] = set()
        self.seq = 0

    def submitted(self, submit: Submit) -> None:
        """Expect messages about this request; earlier outputs count."""
        self.outputs[number_of(submit.request_id)] = list(unpack_tokens(submit.output_ids))

    def hear(self, outgoing: tuple[Outgoing, ...]) -> None:
        """Note the messages; a contradiction fails."""
        for link, message in outgoing:
            assert (link == BROADCAST) == isinstance(message, BlocksStored | BlocksDropped)
            self._hear(message)
        steps = [(link, m.step) for link, m in outgoing if isinstance(m, Tokens)]
        assert len(set(steps)) == len(steps), "more than one Tokens for a link in a step"

    def _hear(self, message: FromWorker) -> None:
        match message:
            case Accepted():
                number = number_of(message.request_id)
                assert number not in {*self.accepted, *self.finished, *self.closed}
                self.accepted[number] = message
            case Tokens():
                for item in message.items:
                    number = number_of(item.request_id)
                    assert number in self.accepted
                    assert number not in {*self.finished, *self.closed}
                    assert item.offset == len(self.outputs[number])
                    self.outputs[number] += unpack_tokens(item.ids)
            case Finished():
                number = number_of(message.request_id)
                assert number not in {*self.finished, *self.closed}
                self.finished[number] = message
                sent = len(self.outputs[number]) + (message.matched is not None)
                assert message.output_tokens == sent
            case Rejected():
                self.rejected[number_of(message.request_id)] = message
            case BlocksStored():
                digests = self._digests(message)
                assert not digests & self.cached
                self.cached |= digests
            case BlocksDropped():
                digests = self._digests(message)
                assert digests <= self.cached
                self.cached -= digests
            case _:
                raise AssertionError(f"unexpected {message!r}")

    def _digests(self, event: BlocksStored | BlocksDropped) -> set[bytes]:
        self.seq += 1
        assert event.seq == self.seq, "a gap in the block events"
        digests = split_digests(event.digests)
        assert digests
        return digests


def number_of(request_id: bytes) -> int:
    """The number that `make_submit` put into a request id."""
    return int.from_bytes(request_id, "little")


def split_digests(packed: bytes) -> set[bytes]:
    """The digests of 16 bytes each; none may stand twice."""
    bounds = range(0, len(packed) + 1, 16)
    digests = [packed[start:end] for start, end in pairwise(bounds)]
    assert len(set(digests)) == len(digests)
    return set(digests)


class Engine:
    """A scheduler of that shape (see `make_scheduler`), a runner and a ledger in one loop."""

    def __init__(self, *, block_size: int = 4, **shape: int) -> None:
        self.scheduler = make_scheduler(block_size=block_size, **shape)
        self.runner = FakeRunner(block_size)
        self.ledger = Ledger()
        self.plans: list[StepPlan] = []

    def submit(self, submit: Submit, *, link: int = 1, now: float = 0.0) -> None:
        """Hand in a request."""
        self.ledger.submitted(submit)
        self.ledger.hear(self.scheduler.submit(link, submit, now))

    def step(
        self,
        sample: Sample = lambda _: (1,),
        failing: Callable[[int], bool] | None = None,
    ) -> StepPlan | None:
        """One plan, computed and committed; the books are checked."""
        plan = self.scheduler.plan()
        if plan is None:
            return None
        self.plans.append(plan)
        result = self.runner.run(plan, sample, failing)
        self.ledger.hear(self.scheduler.commit(plan, result))
        self.scheduler.check_integrity()
        return plan

    def drain(self, sample: Sample = lambda _: (1,), limit: int = 1000) -> int:
        """Step until nothing lives; returns how many steps that took."""
        for num_steps in range(limit):
            if self.step(sample) is None:
                return num_steps
        raise AssertionError(f"{self.scheduler!r} still runs after {limit} steps")
