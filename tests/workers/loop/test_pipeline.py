"""Steps that overlap: the order of calls, the waiting, faults and times, with scripted frames."""

from collections import deque

import pytest
from msgspec.structs import replace

from protocol import wire
from protocol.messages import EngineFacts, Finished, FromWorker, Submit, Tokens
from protocol.sampling import SamplingParams
from protocol.tokens import unpack_tokens
from tests.fakes.gateway_end import submission
from workers.ipc.framing import SUPERVISOR
from workers.ipc.messages import Drained, DrainEngine, Shutdown, decode_from_engine, encode_control
from workers.loop.heartbeat import EngineStatus
from workers.loop.loop import EngineLoop
from workers.loop.pipeline import Pipeline
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import Sampled, StepPlan, StepResult
from workers.scheduler.scheduler import Scheduler, SchedulerLimits
from workers.scheduler.step_cost import StepCost

A, B = b"a" * 16, b"b" * 16
FACTS = EngineFacts("fake", "none", "none", 512, 32, 1024, 4, 64, bytes(16))
EOS = 9
Frames = list[tuple[int, bytes]]


class Card:
    """Every step takes a second of `now`, one after the other; a launch takes a tenth of the CPU.

    Says 1, 2, 3, ... by step; raises in the launch or the collection of the steps named.
    """

    lookahead = 1

    def __init__(self, bad: frozenset[tuple[str, int]] = frozenset(), stop_at: int = 0) -> None:
        self.facts = FACTS
        self.eos_ids = frozenset({EOS})
        self.now = 0.0
        self.calls: list[tuple[str, int]] = []
        self.plans: dict[int, StepPlan] = {}
        self._bad = bad
        self._stop_at = stop_at
        self._free_at = 0.0

    @property
    def has_pending_captures(self) -> bool:
        """Never: there is nothing to prepare."""
        return False

    def prepare(self, *, pending_only: bool) -> bool:  # noqa: ARG002 - the seam's
        return False

    def launch(self, plan: StepPlan) -> tuple[int, float]:
        self._called("launch", plan.step)
        self.plans[plan.step] = plan
        self.now += 0.1
        self._free_at = max(self.now, self._free_at) + 1.0
        return plan.step, self._free_at

    def collect(self, step: tuple[int, float]) -> StepResult:
        number, done_at = step
        self.now = max(self.now, done_at)
        self._called("collect", number)
        ids = (EOS if number == self._stop_at else number,)
        chunks = self.plans[number].chunks
        return StepResult(number, tuple(Sampled(c.seq, ids) for c in chunks if c.samples))

    def _called(self, name: str, step: int) -> None:
        self.calls.append((name, step))
        if (name, step) in self._bad:
            raise ValueError(f"a bad {name}")


class Script:
    """Hands out `turns` of frames one after the other, then `Shutdown`; hears what is sent.

    `waits` notes for each `take` whether it would have waited.
    """

    def __init__(self, turns: list[Frames]) -> None:
        self._turns = deque(turns)
        self.waits: list[bool] = []
        self.sent: Frames = []

    def take(self, timeout_s: float | None) -> Frames:
        assert timeout_s in {None, 0.0}
        self.waits.append(timeout_s is None)
        if self._turns:
            return self._turns.popleft()
        return [] if timeout_s == 0.0 else [(SUPERVISOR, encode_control(Shutdown()))]

    def send(self, frames: Frames) -> None:
        self.sent += frames

    def heard(self, kind: type[FromWorker]) -> list[FromWorker]:
        messages = [wire.decode_from_worker(frame) for link, frame in self.sent if link > 0]
        return [message for message in messages if isinstance(message, kind)]

    def finished(self) -> dict[bytes, Finished]:
        return {m.request_id: m for m in self.heard(Finished) if isinstance(m, Finished)}

    def outputs(self) -> dict[bytes, list[int]]:
        outputs: dict[bytes, list[int]] = {}
        for message in self.heard(Tokens):
            assert isinstance(message, Tokens)
            for item in message.items:
                outputs.setdefault(item.request_id, []).extend(unpack_tokens(item.ids))
        return outputs


def serve(card: Card, *turns: list[Submit]) -> tuple[Script, EngineStatus]:
    """Run a loop over the submissions of each turn, to its end."""
    script = Script([[(1, wire.encode(submit)) for submit in turn] for turn in turns])
    return script, _run(card, script)


def _run(card: Card, script: Script) -> EngineStatus:
    limits = SchedulerLimits(max_seqs=4, token_budget=64, context_length=512, max_waiting=4)
    blocks = BlockManager(32, 32)
    scheduler = Scheduler(limits, blocks, ("echo",), card.eos_ids, lookahead=1)
    status = EngineStatus()
    EngineLoop(card, scheduler, script, status, epoch=1, clock=lambda: card.now).run()
    scheduler.check_integrity()
    assert blocks.num_free == blocks.num_blocks
    return status


def stopping(request_id: bytes, max_tokens: int) -> Submit:
    """A request that the end of sequence ends."""
    submit = submission(request_id, prompt=5)
    return replace(submit, sampling=SamplingParams(max_tokens=max_tokens))


def test_the_next_step_is_launched_before_the_last_is_collected() -> None:
    """Two are in flight, never three; the last possible token has no step of its own."""
    card = Card()
    script, status = serve(card, [submission(A, max_tokens=4, prompt=5)])
    assert [f"{name} {step}" for name, step in card.calls] == [
        "launch 1",
        "launch 2",
        "collect 1",
        "launch 3",
        "collect 2",
        "launch 4",
        "collect 3",
        "collect 4",
    ]
    assert script.outputs() == {A: [1, 2, 3, 4]}
    assert status.step == 4
    assert not status.busy


def test_a_step_takes_the_time_between_results() -> None:
    """A step takes the time between results, and not the time since its launch, which counts the
    step before it as well.
    """
    card = Card()
    script, status = serve(card, [submission(A, max_tokens=20, prompt=5)])
    assert script.finished()[A].reason == "length"
    # 1.1 s for the first step, whose launch nothing hides.
    assert 1.0 <= status.longest_step_s <= 1.1 + 1e-9
    assert status.expected_step_s <= 1.1 + 1e-9


def test_a_stray_step_is_collected_and_ignored() -> None:
    """A stop token is seen when the next step runs already: its token is sent to nobody."""
    card = Card(stop_at=2)
    script, _ = serve(card, [stopping(A, 9)])
    assert card.calls[-2:] == [("collect", 2), ("collect", 3)]
    assert script.outputs() == {A: [1]}
    assert script.finished()[A].matched == EOS


def test_the_loop_waits_only_when_nothing_is_in_flight() -> None:
    """With a step in flight frames are taken without waiting; without work they are waited for."""
    card = Card(stop_at=2)
    script, _ = serve(card, [stopping(A, 9)], [], [], [], [submission(B, max_tokens=1, prompt=5)])
    assert script.finished().keys() == {A, B}
    first_idle = script.waits.index(True, 1)
    assert script.waits[0]
    assert not any(script.waits[1:first_idle])
    assert len(script.waits) < 12, "an idle loop turned"


def test_a_launch_that_fails_is_told_after_the_results_before_it() -> None:
    """Tokens of earlier steps are sent, then its sequences end; nothing is planned in between."""
    card = Card(bad=frozenset({("launch", 3)}))
    first, second = submission(A, max_tokens=9, prompt=5), submission(B, max_tokens=2, prompt=5)
    script, _ = serve(card, [first], [], [], [second])
    calls = [f"{name} {step}" for name, step in card.calls]
    assert calls[3:6] == ["launch 3", "collect 2", "launch 4"]
    assert script.outputs()[A] == [1, 2]
    assert "ValueError: a bad launch" in script.finished()[A].detail
    assert script.finished()[B].reason == "length"


def test_a_collection_that_fails_ends_its_sequences_only() -> None:
    """A collection that fails ends its own sequences only: one that is only in the next step, which
    was in flight already, goes on.
    """
    card = Card(bad=frozenset({("collect", 2)}))
    first, second = submission(A, max_tokens=9, prompt=5), submission(B, max_tokens=3, prompt=5)
    script, _ = serve(card, [first], [], [second])
    assert script.finished()[A].reason == "error"
    assert script.outputs() == {A: [1], B: [3, 4, 5]}
    assert [chunk.seq for chunk in card.plans[3].chunks] == [1, 2]


def test_a_drain_is_over_when_nothing_is_in_flight() -> None:
    """The stray step of the last sequence is collected before `Drained` is said."""
    card = Card(stop_at=2)
    frames = [(1, wire.encode(stopping(A, 9))), (SUPERVISOR, encode_control(DrainEngine()))]
    script = Script([frames])
    _run(card, script)
    link, payload = script.sent[-1]
    assert link == SUPERVISOR
    assert decode_from_engine(payload) == Drained()
    assert card.calls[-1] == ("collect", 3)


def test_a_fault_counts_once_for_the_steps_in_flight() -> None:
    """The step after a failed one may hold the same bad request."""
    card = Card(bad=frozenset({("collect", step) for step in (1, 2)}))
    pipeline = Pipeline(card, EngineStatus(), StepCost(), lambda: card.now)
    for step in (1, 2):
        pipeline.launch(StepPlan(step, (), (), ()))
    for _ in range(2):
        pipeline.collect()
    assert pipeline._faults_in_a_row == 1


def test_a_runner_that_cannot_look_ahead_is_not_asked_to() -> None:
    """A scheduler that plans further than its runner is a mistake of ours that says so."""
    card = Card()
    card.lookahead = 0
    with pytest.raises(ValueError, match="looks 0 steps ahead"):
        _run(card, Script([]))
