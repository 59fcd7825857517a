"""Whole lives of an engine on the tiny model: requests come and go turn by turn, through the real
loop, scheduler and pipeline; what everybody was told is kept.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from msgspec.structs import replace

from protocol import wire
from protocol.messages import Finished, FromWorker, Rejected, Submit, TokenLogprobs, Tokens
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens, unpack_tokens
from tests.fakes.scarce_memory import FETCH, ScarceMemory
from workers.engine.graphs.capture import Capture
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.models.kv_cache import KvCache
from workers.engine.runner import InFlight, ModelRunner, largest_id
from workers.ipc.framing import SUPERVISOR
from workers.ipc.messages import Shutdown, encode_control
from workers.loop.heartbeat import EngineStatus
from workers.loop.loop import EngineLoop, scheduler_for
from workers.scheduler.plan import StepPlan, StepResult
from workers.scheduler.scheduler import Scheduler

BLOCK = 4
MODEL = "tiny"
MOST_TURNS = 3000
MOST_WAITING = 8
Frames = list[tuple[int, bytes]]


class Request(NamedTuple):
    """A request. Its prompt begins with tokens of its family; other workers may have generated a
    part of the answer.
    """

    family: int
    num_shared: int
    num_own: int
    num_said: int
    seed: int
    sampling: SamplingParams

    def submit(self, number: int) -> Submit:
        """As request `number`."""
        shared = [2 + (31 * self.family + 7 * index) % 149 for index in range(self.num_shared)]
        own = [2 + (self.seed + 11 * index) % 149 for index in range(self.num_own)]
        said = [2 + (self.seed + 5 * index) % 9 for index in range(self.num_said)]
        return Submit(
            number.to_bytes(16, "little"),
            attempt=1,
            model=MODEL,
            prompt_ids=pack_tokens([*shared, *own]),
            output_ids=pack_tokens(said),
            sampling=self.sampling,
            seed=self.seed,
        )


class Shape(NamedTuple):
    """The shape of an engine."""

    num_blocks: int
    max_seqs: int
    token_budget: int


class Answer:
    """What was told of a request, a stop token included."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.end: Finished | None = None
        self.is_refused = False

    @property
    def is_whole(self) -> bool:
        """Whether it ended as it should."""
        return self.end is not None and self.end.reason in {"stop", "length"}


class Watched:
    """A runner, and which requests were in a step that memory ran out in: `short`. Of these
    `num_owed` may end for it: one each time, but all where the tokens of a step cannot be read.
    """

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, memory: ScarceMemory) -> None:
        self.facts, self.eos_ids, self.model_dir = runner.facts, runner.eos_ids, runner.model_dir
        self.lookahead = runner.lookahead
        self.short: set[bytes] = set()
        self.num_owed = 0
        self.num_strays = 0
        self._runner = runner
        self._scheduler = scheduler
        self._memory = memory

    @property
    def has_pending_captures(self) -> bool:
        return self._runner.has_pending_captures

    def prepare(self, *, pending_only: bool) -> bool:
        return self._runner.prepare(pending_only=pending_only)

    def launch(self, plan: StepPlan) -> InFlight:
        struck = self._memory.struck
        num_before = len(struck)
        try:
            return self._runner.launch(plan)
        finally:
            if new := struck[num_before:]:
                live = [self._scheduler._queues.live(chunk.seq) for chunk in plan.chunks]
                self.short.update([sequence.request_id for sequence in live if sequence])
                self.num_owed += len(live) if FETCH in new else len(new)

    def collect(self, step: InFlight) -> StepResult:
        result = self._runner.collect(step)
        live = self._scheduler._queues.live
        self.num_strays += sum(live(item.seq) is None for item in result.sampled)
        return result


def runner_on(
    host: ModelRunner, shape: Shape, *, card: bool, capture: Capture | None = None
) -> ModelRunner:
    """A fresh runner with the weights of `host`: as on a card, where `capture` makes graphs, or on
    the host. Its cache was never written.
    """
    model, window = host.model, shape.num_blocks * BLOCK
    facts = replace(
        host.facts,
        context_length=window,
        block_size=BLOCK,
        kv_tokens=window,
        max_seqs=shape.max_seqs,
        token_budget=shape.token_budget,
    )
    cache = KvCache(model.config, shape.num_blocks, BLOCK, model.device, torch.float32)
    for keys, values in cache.layers:
        keys.fill_(float("nan"))
        values.fill_(float("nan"))
    steps = DeviceSteps(model, cache, facts, capture) if card else None
    return ModelRunner(model, cache, facts, host.model_dir, steps)


class Life:
    """An engine with `runner`, and what it said to whom; a turn takes `turn_s`."""

    def __init__(self, runner: ModelRunner, memory: ScarceMemory, turn_s: float = 0.0) -> None:
        self.runner = runner
        self.scheduler = scheduler_for(
            runner, MODEL, max_waiting=MOST_WAITING, vocab_size=None, largest=largest_id
        )
        self.watched = Watched(runner, self.scheduler, memory)
        self.answers: defaultdict[bytes, Answer] = defaultdict(Answer)
        self._status = EngineStatus()
        self._turns: deque[Frames] = deque()
        self._num_turns = 0
        self._turn_s = turn_s

    def live(self, turns: Sequence[Frames]) -> None:
        """Take these frames turn by turn, until everybody is served."""
        self._turns.extend(turns)
        status = self._status
        EngineLoop(self.watched, self.scheduler, self, status, epoch=1, clock=self._now).run()
        # The runner hears of the last ones with the next plan.
        self.runner.run(StepPlan(0, (), (), tuple(self.scheduler._ended)))

    def take(self, timeout_s: float | None) -> Frames:
        """For the loop: the frames of the next turn; `Shutdown` when no request is left.
        Raises `IntegrityError`, and `AssertionError` if there is no end.
        """
        self.scheduler.check_integrity()
        self._num_turns += 1
        assert self._num_turns < MOST_TURNS, f"{self.scheduler!r} never ends"
        if self._turns:
            return self._turns.popleft()
        is_over = timeout_s is None or not self._status.busy
        return [(SUPERVISOR, encode_control(Shutdown()))] if is_over else []

    def send(self, frames: Frames) -> None:
        """For the loop."""
        for link, frame in frames:
            if link > 0:
                self._hear(wire.decode_from_worker(frame))

    def check_left(self) -> None:
        """Nothing of anybody."""
        load = self.scheduler.load(1, 0.0, 0.0)
        assert load.free_blocks == load.num_blocks
        assert (load.running, load.waiting, self.runner.num_sequences) == (0, 0, 0)
        assert not self.runner._lost
        steps = self.runner._steps
        assert isinstance(steps, DeviceSteps)
        penalties, facts = steps._token_draws._sampler._penalties, self.runner.facts
        max_seqs = min(facts.max_seqs, facts.token_budget)
        assert not steps._tables.rows
        assert not penalties._slots
        assert sorted(steps._tables._free) == list(range(max_seqs))
        assert sorted(penalties._free) == list(range(max_seqs))

    def _now(self) -> float:
        return self._num_turns * self._turn_s

    def _hear(self, message: FromWorker) -> None:
        match message:
            case Tokens():
                for item in message.items:
                    answer = self.answers[item.request_id]
                    answer.ids += unpack_tokens(item.ids)
                    answer.logprobs += item.logprobs
            case Finished():
                answer = self.answers[message.request_id]
                answer.end = message
                if message.matched is not None:
                    answer.ids.append(message.matched)
            case Rejected():
                self.answers[message.request_id].is_refused = True
            case _:
                pass  # loads and acceptances are nothing of an answer
