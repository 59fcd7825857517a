"""A naive gateway that believes only the messages, and the scheduler between it and a late card."""

from collections import deque
from itertools import pairwise

from protocol.messages import (
    Accepted,
    BlockEvent,
    BlocksDropped,
    BlocksStored,
    Finished,
    FromWorker,
    Grammar,
    Rejected,
    StatesForgotten,
    StatesSaved,
    Submit,
    Tokens,
)
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens, unpack_tokens
from tests.fakes.card import Failing, FakeRunner, Sample
from workers.ipc.framing import BROADCAST
from workers.scheduler.admission import SchedulerLimits
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.committing import Outgoing
from workers.scheduler.drafting import Proposer
from workers.scheduler.plan import StepPlan
from workers.scheduler.saving import PrefixStates, SavePolicy
from workers.scheduler.scheduler import Scheduler
from workers.scheduler.swapping import SwapSpace
from workers.scheduler.tier import HostTier, TierPool, TierRoom
from workers.scheduler.windows import WindowPool

MODEL = "tiny"
EOS = 7


def make_scheduler(
    *,
    num_blocks: int = 16,
    block_size: int = 4,
    max_seqs: int = 4,
    token_budget: int = 16,
    context_length: int = 64,
    max_waiting: int = 8,
    vocab_size: int | None = None,
    lookahead: int = 0,
    usual_outputs: int = 0,
    enforces_grammars: bool = True,
    num_states: int | None = None,
    every: int = 12,
    along: int = 8,
    host_pages: int = 0,
    swaps: bool = True,
    proposer: Proposer | None = None,
    windows: WindowPool | None = None,
) -> Scheduler:
    """A small scheduler; 7 is the end of sequence. With `usual_outputs` 0 it keeps nothing free for
    answers that grow, so blocks run out. With `num_states` its model has states, which are kept at
    the ends of blocks, also of every `every` tokens of a prompt and `along` of an answer. With
    `host_pages` it has a host tier, to which preempted sequences go if it `swaps`. With `windows`
    some layers keep only their window, of which snapshots are made in place of states.
    """
    limits = SchedulerLimits(
        max_seqs,
        token_budget,
        context_length,
        max_waiting,
        vocab_size,
        enforces_grammars=enforces_grammars,
    )
    policy = SavePolicy(block_size, every, block_size, along, 2 * along)
    states = None if num_states is None else PrefixStates(num_states, block_size, policy)
    tier = None
    if host_pages:
        pool = TierPool(host_pages)
        pool.open(range(host_pages))
        tier = HostTier(TierRoom(host_pages, int(num_states is not None), 1), pool)
    swap = SwapSpace(tier, block_size) if tier is not None and swaps else None
    blocks = BlockManager(
        num_blocks, block_size, states=states, swap=swap, tier=tier, windows=windows
    )
    eos_ids = frozenset({EOS})
    scheduler = Scheduler(
        limits,
        blocks,
        (MODEL,),
        eos_ids,
        lookahead=lookahead,
        usual_outputs=usual_outputs,
        proposer=proposer,
    )
    scheduler.expects_growth = usual_outputs > 0
    return scheduler


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
    grammar: Grammar | None = None,
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
        grammar=grammar,
    )


class Ledger:
    """What the messages claim: outputs and endings by request number, the cached digests, those on
    the host alone, and those with states.
    """

    def __init__(self) -> None:
        self.outputs: dict[int, list[int]] = {}
        self.accepted: dict[int, Accepted] = {}
        self.finished: dict[int, Finished] = {}
        self.rejected: dict[int, Rejected] = {}
        self.closed: set[int] = set()
        self.cached: set[bytes] = set()
        self.on_host: set[bytes] = set()
        self.states: set[bytes] = set()
        self.seq = 0

    def submitted(self, submit: Submit) -> None:
        """Expect messages about this request; earlier outputs count."""
        self.outputs[number_of(submit.request_id)] = list(unpack_tokens(submit.output_ids))

    def hear(self, outgoing: tuple[Outgoing, ...]) -> None:
        """Note the messages; a contradiction fails."""
        for link, message in outgoing:
            assert (link == BROADCAST) == isinstance(message, BlockEvent)
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
                self._stored(message)
            case BlocksDropped():
                digests = self._digests(message)
                assert digests <= self.cached
                self.cached -= digests
                self.on_host -= digests
            case StatesSaved():
                digests = self._digests(message)
                assert digests <= self.cached - self.states
                self.states |= digests
            case StatesForgotten():
                digests = self._digests(message)
                assert digests <= self.states
                self.states -= digests
            case _:
                raise AssertionError(f"unexpected {message!r}")

    def _stored(self, event: BlocksStored) -> None:
        """Blocks that are new, or change their tier."""
        digests = self._digests(event)
        if event.tier == "host":
            assert digests <= self.cached - self.on_host
            self.on_host |= digests
        else:
            assert not digests & (self.cached - self.on_host)
            self.cached |= digests
            self.on_host -= digests

    def _digests(self, event: BlockEvent) -> set[bytes]:
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

    def __init__(
        self,
        *,
        block_size: int = 4,
        num_states: int | None = None,
        proposer: Proposer | None = None,
        copies: bool = False,
        windows: WindowPool | None = None,
        **shape: int | None,
    ) -> None:
        """`copies`: what is cached goes to the host tier, and comes back."""
        self.copies = copies
        own = {"num_states": num_states, "proposer": proposer, "windows": windows}
        self.scheduler = make_scheduler(block_size=block_size, **own, **shape)
        has_states = num_states is not None and windows is None
        self.runner = FakeRunner(
            block_size, has_states=has_states, drafts=proposer is not None, windows=windows
        )
        self.ledger = Ledger()
        self.plans: list[StepPlan] = []
        self.in_flight: deque[StepPlan] = deque()

    def submit(self, submit: Submit, *, link: int = 1, now: float = 0.0) -> None:
        """Hand in a request."""
        self.ledger.submitted(submit)
        self.ledger.hear(self.scheduler.submit(link, submit, now))

    def launch(self) -> StepPlan | None:
        """Plan a step, if there is one, and let the card begin."""
        self.take_copied()
        plan = self.scheduler.plan()
        if plan is not None:
            self.plans.append(plan)
            self.in_flight.append(plan)
            self.runner.launch(plan)
        for transfer in self.scheduler.transfers() if self.copies else ():
            self.runner.begin(transfer)
        self.check()
        return plan

    def take_copied(self) -> None:
        """The copies that are over."""
        if self.copies:
            self.scheduler.transferred(self.runner.take_done(), 0.0)

    def collect(self, sample: Sample = lambda _: (1,), failing: Failing = lambda _: False) -> None:
        """The oldest step in flight is done."""
        plan = self.in_flight.popleft()
        result = self.runner.collect(sample, failing)
        self.ledger.hear(self.scheduler.commit(plan, result))
        self.check()

    def step(
        self, sample: Sample = lambda _: (1,), failing: Failing = lambda _: False
    ) -> StepPlan | None:
        """Launch a step, then collect those that must not stay in flight; the books are checked."""
        while len(self.in_flight) > self.scheduler.lookahead:
            self.collect(sample, failing)
        plan = self.launch()
        while len(self.in_flight) > (0 if plan is None else self.scheduler.lookahead):
            self.collect(sample, failing)
        return plan

    def drain(self, sample: Sample = lambda _: (1,), limit: int = 1000) -> int:
        """Step until nothing lives; returns how many steps that took."""
        for num_steps in range(limit):
            if not self.scheduler.has_work and not self.in_flight:
                return num_steps
            self.step(sample)
        raise AssertionError(f"{self.scheduler!r} still runs after {limit} steps")

    def check(self) -> None:
        """The books agree with each other, and the prefix cache with the card."""
        self.scheduler.check_integrity()
        self.runner.check_cache(self.scheduler.blocks)
