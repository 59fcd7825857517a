"""The engine's loop over a real socketpair, with small runners at its seam."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from protocol import wire
from protocol.errors import WireError
from protocol.messages import (
    Abort,
    Accepted,
    BlocksSnapshot,
    EngineFacts,
    Finished,
    FromWorker,
    Load,
    Rejected,
    Snapshot,
    Submit,
    Tokens,
)
from tests.fakes.gateway_end import submission
from tests.fakes.page_copies import PageCopies
from workers.ipc.framing import BROADCAST, SUPERVISOR, FrameDecoder, encode_frame
from workers.ipc.messages import (
    ClearCache,
    Cleared,
    Drained,
    DrainEngine,
    DropLink,
    FromEngine,
    Shutdown,
    SleepEngine,
    Slept,
    ToEngine,
    WakeEngine,
    Woken,
    decode_from_engine,
    encode_control,
)
from workers.loop import MemoryMove, NativeSleep
from workers.loop.channel import EngineChannel
from workers.loop.heartbeat import EngineStatus
from workers.loop.loop import EngineLoop, GrammarCompiler
from workers.loop.pipeline import MAX_FAULTS_IN_A_ROW, EngineBroken
from workers.scheduler import HeldCounts, HeldPlaces
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import Sampled, StepPlan, StepResult
from workers.scheduler.scheduler import Scheduler, SchedulerLimits

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
FACTS = EngineFacts("fake", "none", "none", 512, 32, 1024, 4, 64, bytes(16))
BOUND_S = 20.0


class CountingRunner:
    """Says 1, 2, 3, ... as steps are collected; raises in the steps of `bad_steps`, or at the
    launches of `bad_launches`; may wait for a gate in each step. `calls` tells what was called.
    """

    def __init__(
        self,
        lookahead: int = 0,
        bad_steps: frozenset[int] = frozenset(),
        bad_launches: frozenset[int] = frozenset(),
    ) -> None:
        self.lookahead = lookahead
        self.facts = FACTS
        self.eos_ids: frozenset[int] = frozenset()
        self.steps = 0
        self.calls: list[tuple[str, int]] = []
        self.gate: threading.Semaphore | None = None
        self.entered = threading.Semaphore(0)
        self._bad_steps = bad_steps
        self._bad_launches = bad_launches

    @property
    def has_pending_captures(self) -> bool:
        """Never: there is nothing to prepare."""
        return False

    def prepare(self, *, pending_only: bool) -> bool:  # noqa: ARG002 - the seam's
        return False

    def launch(self, plan: StepPlan) -> StepPlan:
        self.calls.append(("launch", plan.step))
        if plan.step in self._bad_launches:
            raise ValueError("a bad launch")
        return plan

    def collect(self, plan: StepPlan) -> StepResult:
        self.calls.append(("collect", plan.step))
        self.steps += 1
        self.entered.release()
        if self.gate is not None:
            assert self.gate.acquire(timeout=BOUND_S)
        if self.steps in self._bad_steps:
            raise ValueError("a bad step\nwith a second line")
        ids = (self.steps,)
        return StepResult(plan.step, tuple(Sampled(c.seq, ids) for c in plan.chunks if c.samples))


class LoopEnd:
    """The supervisor's end of a loop that runs in a thread."""

    def __init__(
        self,
        runner: CountingRunner,
        clock: Callable[[], float] = time.monotonic,
        compiler: GrammarCompiler | None = None,
        sleep: NativeSleep | None = None,
        copies: PageCopies | None = None,
    ) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(BOUND_S)
        self.gone = threading.Event()
        self._channel = EngineChannel(theirs, on_gone=self.gone.set)
        self.status = EngineStatus()
        self.scheduler = Scheduler(
            SchedulerLimits(
                max_seqs=4,
                token_budget=64,
                context_length=512,
                max_waiting=4,
                enforces_grammars=compiler is not None,
            ),
            BlockManager(32, 32, tier=None if copies is None else copies.tier),
            ("echo",),
            runner.eos_ids,
            lookahead=runner.lookahead,
        )
        self._loop = EngineLoop(
            runner,
            self.scheduler,
            self._channel,
            self.status,
            epoch=3,
            clock=clock,
            compiler=compiler,
            sleep=sleep,
            copies=copies,
        )
        self._decoder = FrameDecoder()
        self._frames: list[tuple[int, bytes]] = []
        self.heard: list[tuple[int, FromWorker | FromEngine]] = []
        self.broken: str | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._loop.run()
        except EngineBroken as error:
            self.broken = str(error)

    def send(self, link: int, *messages: Submit | Abort | Snapshot) -> None:
        self.send_raw(*((link, wire.encode(message)) for message in messages))

    def control(self, message: ToEngine) -> None:
        self.send_raw((SUPERVISOR, encode_control(message)))

    def send_raw(self, *frames: tuple[int, bytes]) -> None:
        self._socket.sendall(b"".join(encode_frame(*frame) for frame in frames))

    def next(self) -> tuple[int, FromWorker | FromEngine]:
        while not self._frames:
            self._frames = self._decoder.feed(self._socket.recv(1 << 16))
        link, payload = self._frames.pop(0)
        try:
            message: FromWorker | FromEngine = wire.decode_from_worker(payload)
        except WireError:
            message = decode_from_engine(payload)
        self.heard.append((link, message))
        return link, message

    def until(self, kind: type, link: int | None = None) -> FromWorker | FromEngine:
        """The next message of that kind (on that link)."""
        while True:
            at, message = self.next()
            if isinstance(message, kind) and link in {None, at}:
                return message

    def finished(self, request_id: bytes) -> Finished:
        while True:
            message = self.until(Finished)
            assert isinstance(message, Finished)
            if message.request_id == request_id:
                return message

    def leave(self) -> None:
        self.control(Shutdown())
        self.thread.join(BOUND_S)
        assert not self.thread.is_alive()

    def close(self) -> None:
        self._socket.close()
        assert self.gone.wait(BOUND_S)


@contextmanager
def running(
    runner: CountingRunner,
    clock: Callable[[], float] = time.monotonic,
    sleep: NativeSleep | None = None,
    copies: PageCopies | None = None,
) -> Iterator[LoopEnd]:
    end = LoopEnd(runner, clock, sleep=sleep, copies=copies)
    try:
        yield end
    finally:
        if runner.gate is not None:
            runner.gate.release(10_000)
        if end.thread.is_alive():
            end.leave()
        end.close()


@pytest.fixture(params=[0, 1], name="lookahead")
def _lookahead(request: pytest.FixtureRequest) -> int:
    """The runner waits for each step, or has one more in flight."""
    assert isinstance(request.param, int)
    return request.param


def test_frames_in_tokens_out_per_link(lookahead: int) -> None:
    """Each gateway gets one Tokens frame per step with its own sequences only."""
    with running(CountingRunner(lookahead)) as end:
        end.send(1, submission(A, max_tokens=3, prompt=5))
        end.send(2, submission(B, max_tokens=3, prompt=5))
        end.finished(B) if end.finished(A) else None
        for link, message in end.heard:
            if isinstance(message, Tokens):
                assert {item.request_id for item in message.items} == {A if link == 1 else B}


def test_an_idle_loop_waits_without_steps(lookahead: int) -> None:
    """An idle loop waits without steps: without work there is no step and no frame until something
    comes.
    """
    runner = CountingRunner(lookahead)
    with running(runner) as end:
        end.send(1, submission(A, max_tokens=2, prompt=5))
        end.finished(A)
        end.until(Load)
        steps = runner.steps
        end.send(1, Snapshot())
        end.until(BlocksSnapshot)
        assert runner.steps == steps
        assert not end.status.busy


def test_load_is_told_at_each_change_and_rarely_in_between(lookahead: int) -> None:
    """Busy and idle are told at once; 200 quick steps do not make 200 loads."""
    with running(CountingRunner(lookahead)) as end:
        end.send(1, submission(A, max_tokens=200, prompt=5))
        end.finished(A)
        end.until(Load)
        loads = [(link, m) for link, m in end.heard if isinstance(m, Load)]
        assert {link for link, _ in loads} == {BROADCAST}
        assert {load.epoch for _, load in loads} == {3}
        assert loads[0][1].running + loads[0][1].waiting == 1
        assert loads[-1][1].running == 0
        assert loads[-1][1].free_blocks == loads[-1][1].num_blocks
        assert len(loads) < 50


def ticking(tick_s: float) -> Callable[[], float]:
    """A clock that goes on by so much whenever it is looked at."""
    ticks = count()
    return lambda: next(ticks) * tick_s


def test_a_brief_step_is_told_once() -> None:
    """What a step of a fraction of a millisecond brings is told with its end, the load last."""
    with running(CountingRunner(), ticking(1e-5)) as end:
        end.send(1, submission(A, max_tokens=1, prompt=5))  # nothing is known of steps yet
        end.finished(A)
        end.until(Load)
        before = len(end.heard)
        end.send(1, submission(B, max_tokens=1, prompt=5))
        load = end.until(Load)
        kinds = [type(message) for _, message in end.heard[before:]]
        assert kinds == [Accepted, Tokens, Finished, Load]
        assert isinstance(load, Load)
        assert (load.running, load.waiting) == (0, 0)


def test_before_a_longer_step_the_load_is_told(lookahead: int) -> None:
    """The load is reported before a longer step, so that other gateways hear before its end that
    the engine is busy.
    """
    with running(CountingRunner(lookahead), ticking(0.01)) as end:
        end.send(1, submission(A, max_tokens=1, prompt=5))
        end.finished(A)
        end.until(Load)
        before = len(end.heard)
        end.send(1, submission(B, max_tokens=1, prompt=5))
        end.finished(B)
        first = end.heard[before][1]
        assert isinstance(first, Load)
        assert first.running + first.waiting == 1


def test_an_exception_in_a_step_fails_its_sequences_and_no_other(lookahead: int) -> None:
    """The sequences of the step end with one clear line, their blocks are free, others go on."""
    with running(CountingRunner(lookahead, bad_steps=frozenset({2}))) as end:
        end.send(1, submission(A, max_tokens=5, prompt=5))
        failed = end.finished(A)
        assert failed.reason == "error"
        assert "ValueError: a bad step" in failed.detail
        assert "second line" not in failed.detail
        end.send(1, submission(B, max_tokens=5, prompt=5))
        assert end.finished(B).reason == "length"
        end.leave()
        end.scheduler.check_integrity()


def test_an_exception_that_repeats_ends_the_engine(lookahead: int) -> None:
    """Steps that fail again and again are the engine's own fault: it leaves with the cause."""
    with running(CountingRunner(lookahead, bad_steps=frozenset(range(1, 10)))) as end:
        for request_id in (A, B):
            end.send(1, submission(request_id, prompt=5))
            assert end.finished(request_id).reason == "error"
        end.send(1, submission(C, prompt=5))
        end.thread.join(BOUND_S)
        assert end.broken is not None
        assert f"{MAX_FAULTS_IN_A_ROW} steps in a row failed" in end.broken
        assert "ValueError: a bad step" in end.broken


def test_an_abort_and_a_dropped_link_end_within_the_step(lookahead: int) -> None:
    """An abort is answered before the next step; a dropped link is silent and leaves nothing."""
    runner = CountingRunner(lookahead)
    runner.gate = threading.Semaphore(0)
    with running(runner) as end:
        end.send(1, submission(A, max_tokens=400, prompt=5))
        end.send(2, submission(B, max_tokens=400, prompt=5))
        while not any(link == 2 for link, _ in end.heard):
            assert runner.entered.acquire(timeout=BOUND_S)
            runner.gate.release()
            end.until(Tokens)
        assert runner.entered.acquire(timeout=BOUND_S)
        steps = runner.steps  # this one stands at the gate
        end.send(1, Abort(A, 1))
        end.control(DropLink(2))
        runner.gate.release(10_000)
        aborted = end.finished(A)
        assert aborted.reason == "abort"
        assert aborted.output_tokens <= steps
        end.until(Load)
        end.leave()
        assert not [m for link, m in end.heard if link == 2 and isinstance(m, Finished)]
        assert not end.scheduler.has_work
        end.scheduler.check_integrity()


def test_an_abort_frees_the_blocks_within_two_steps(lookahead: int) -> None:
    """While others go on, two steps after the abort the engine's own counters show its blocks
    free.
    """
    runner = CountingRunner(lookahead)
    runner.gate = threading.Semaphore(0)
    with running(runner) as end:
        end.send(1, submission(A, max_tokens=400, prompt=50))
        end.send(1, submission(B, max_tokens=400, prompt=5))
        while end.scheduler.load(3, 0.0, 0.0).running < 2:
            assert runner.entered.acquire(timeout=BOUND_S)
            runner.gate.release()
        assert runner.entered.acquire(timeout=BOUND_S)
        before = end.scheduler.load(3, 0.0, 0.0)
        end.send(1, Abort(A, 1))
        for _ in range(2):
            runner.gate.release()
            assert runner.entered.acquire(timeout=BOUND_S)
        after = end.scheduler.load(3, 0.0, 0.0)
        assert after.steps == before.steps + 2
        assert (before.running, after.running) == (2, 1)
        assert after.free_blocks == after.num_blocks - 1
        runner.gate.release(10_000)
        # Read to the end: nobody reads while leaving, and a full socket stops the engine.
        assert end.finished(B).reason == "length"


def test_a_drain_is_over_when_the_last_sequence_is(lookahead: int) -> None:
    """Drained comes after the last Finished, and at once when nothing runs."""
    with running(CountingRunner(lookahead)) as end:
        end.send(1, submission(A, max_tokens=20, prompt=5))
        end.control(DrainEngine())
        end.until(Drained, link=SUPERVISOR)
        assert [m for _, m in end.heard if isinstance(m, Finished)]
        end.control(DrainEngine())
        end.until(Drained, link=SUPERVISOR)


def test_wishes_to_clear_the_cache_are_answered_together(lookahead: int) -> None:
    """Wishes to clear the cache are answered together, while a sequence runs, and when nothing
    does.
    """
    with running(CountingRunner(lookahead)) as end:
        end.send(1, submission(A, max_tokens=20, prompt=5))
        for _ in range(3):
            end.control(ClearCache())
        num_answered = 0
        while num_answered < 3:
            answer = end.until(Cleared, link=SUPERVISOR)
            assert isinstance(answer, Cleared)
            num_answered += answer.count
        assert num_answered == 3
        end.control(ClearCache())
        assert end.until(Cleared, link=SUPERVISOR) == Cleared(1)
        if not [m for _, m in end.heard if isinstance(m, Finished)]:
            end.finished(A)


@pytest.mark.parametrize("payload", [b"", b"\xff", b"\x92\x01", b"\x95\x03abc"], ids=repr)
def test_bad_frames_harm_nobody(payload: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """Garbage on any link is named in the log, and the next request is served."""
    with running(CountingRunner()) as end:
        end.send_raw((1, payload), (SUPERVISOR, payload))
        end.send(1, submission(A, max_tokens=2, prompt=5))
        assert end.finished(A).reason == "length"
    assert "bad frame on link 1" in capfd.readouterr().err


def test_a_bad_submission_is_answered() -> None:
    """A submission of a wrong shape is rejected as invalid to its own link."""
    with running(CountingRunner()) as end:
        end.send_raw((5, b"\x94\x02\xc4\x10" + A + b"\x01\x01"))
        rejected = end.until(Rejected, link=5)
        assert isinstance(rejected, Rejected)
        assert (rejected.request_id, rejected.attempt, rejected.reason) == (A, 1, "invalid")


def test_the_end_of_the_channel_is_noticed_at_once(lookahead: int) -> None:
    """A supervisor that is gone is the end of the engine, also in the middle of a step."""
    runner = CountingRunner(lookahead)
    runner.gate = threading.Semaphore(0)
    end = LoopEnd(runner)
    end.send(1, submission(A, max_tokens=400, prompt=5))
    end.close()  # asserts that `on_gone` was called while the step hangs
    runner.gate.release(10_000)


class Bed:
    """Takes what a device holds, of which `room` blocks fit. `held` is what it was given last;
    `answers` are those of wakes to come.
    """

    def __init__(self, room: int = 1000, *answers: MemoryMove) -> None:
        self.room = room
        self.held = HeldPlaces()
        self.expected = HeldCounts()
        self._answers = list(answers)

    def expect(self, held: HeldCounts) -> None:
        self.expected = held

    def fits(self, held: HeldCounts) -> bool:
        return held.blocks <= self.room

    def fall_asleep(self, held: HeldPlaces) -> MemoryMove:
        self.held = held
        return MemoryMove(host_bytes=7, note="kept")

    def wake(self) -> MemoryMove:
        return self._answers.pop(0) if self._answers else MemoryMove()


def cached_of(end: LoopEnd, request_id: bytes) -> int:
    """The cached tokens of a prompt that is always the same."""
    end.send(1, submission(request_id, max_tokens=2, prompt=200))
    accepted = end.until(Accepted)
    end.finished(request_id)
    assert isinstance(accepted, Accepted)
    return accepted.cached_tokens


def test_a_sleep_keeps_what_prompts_find(lookahead: int) -> None:
    """Asleep the loop computes nothing and takes no work; awake it is of another epoch."""
    bed, runner = Bed(), CountingRunner(lookahead)
    with running(runner, sleep=bed) as end:
        assert cached_of(end, A) == 0
        end.control(SleepEngine("native sleep"))
        assert end.until(Slept) == Slept("", 7, "kept")
        assert len(bed.held.blocks) == bed.expected.blocks == 6
        steps = runner.steps
        end.send(1, submission(B, max_tokens=2, prompt=200))
        refused = end.until(Rejected)
        assert isinstance(refused, Rejected)
        assert (refused.request_id, refused.reason) == (B, "not_ready")
        end.control(WakeEngine(4))
        assert end.until(Woken) == Woken()
        assert runner.steps == steps
        assert cached_of(end, C) == 192
        load = end.until(Load)
        assert isinstance(load, Load)
        assert load.epoch == 4


def test_what_has_no_room_on_the_host_is_forgotten() -> None:
    with running(CountingRunner(), sleep=(bed := Bed(room=3))) as end:
        cached_of(end, A)
        end.control(SleepEngine())
        slept = end.until(Slept)
        assert slept == Slept(
            "", 7, "kept; 3 cached blocks had no room on the host and are forgotten"
        )
        assert len(bed.held.blocks) == 3
        end.control(WakeEngine(4))
        end.until(Woken)
        assert cached_of(end, B) == 96


@pytest.mark.parametrize(
    ("answer", "woken", "cached"),
    [
        (MemoryMove("taken", is_asleep=True), Woken("taken", is_asleep=True), 192),
        (MemoryMove("spoilt"), Woken("spoilt"), None),
        (MemoryMove(has_rows=False, note="lost"), Woken(), 0),
    ],
)
def test_wakes_that_do_not_bring_all_back(
    answer: MemoryMove, woken: Woken, cached: int | None
) -> None:
    """What sleeps on can be woken again; what came back changed is not found."""
    with running(CountingRunner(), sleep=Bed(1000, answer)) as end:
        cached_of(end, A)
        end.control(SleepEngine())
        end.until(Slept)
        end.control(WakeEngine(4))
        assert end.until(Woken) == woken
        if woken.is_asleep:
            end.control(WakeEngine(5))
            assert end.until(Woken) == Woken()
        if cached is not None:
            assert cached_of(end, B) == cached


def test_an_engine_that_works_or_cannot_sleep_says_so() -> None:
    runner = CountingRunner()
    runner.gate = threading.Semaphore(0)
    with running(runner, sleep=Bed()) as end:
        end.send(1, submission(A, max_tokens=5, prompt=5))
        assert runner.entered.acquire(timeout=BOUND_S)
        end.control(SleepEngine())
        runner.gate.release(2)
        assert end.until(Slept) == Slept("it has work")
    with running(CountingRunner()) as end:
        end.control(SleepEngine("native sleep"))
        assert end.until(Slept) == Slept("it has no way to sleep that is called 'native sleep'")
        end.control(WakeEngine(4))
        assert end.until(Woken) == Woken("it does not sleep")
