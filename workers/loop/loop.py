"""frames in -> scheduler -> runner -> frames out: the engine's one loop.

Owns the order of a turn, the waiting, and the making of the scheduler from a runner's facts. Must
not know tensors (the runner does), what an exception in a step means (the pipeline does) nor which
gateway reads a frame (the supervisor relays them).

A turn launches the next step before it waits for the tokens of the last one. So with a runner that
looks ahead the card never waits for the CPU:

    take frames -> plan N+1 -> launch N+1 -> send -> collect N -> commit N -> send

If the scheduler cannot plan step N+1 before it knows the tokens of step N (some drafts), the turn
plans and launches it after commit N, before the second send.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, Generic, NamedTuple, Protocol, assert_never, final

from protocol import wire
from protocol.errors import WireError
from protocol.messages import (
    Abort,
    Dismiss,
    Distrust,
    Drain,
    Embed,
    GetFiles,
    Grammar,
    Load,
    Ping,
    Rejected,
    Relay,
    RelayChunk,
    RelayCredit,
    Retain,
    Score,
    Snapshot,
    Submit,
    Wanted,
    Welcome,
)
from protocol.tokens import unpack_tokens
from workers.ipc import (
    BROADCAST,
    SUPERVISOR,
    ClearCache,
    Cleared,
    Drained,
    DrainEngine,
    DropLink,
    EngineStart,
    Shutdown,
    SleepEngine,
    WakeEngine,
    decode_to_engine,
    encode_control,
    recover_request_id,
)
from workers.loop.heartbeat import EngineStatus, cache_line, drafting_line
from workers.loop.native_sleep import NativeSleep, SleepControl
from workers.loop.pipeline import InFlight, Pipeline, Runner
from workers.scheduler import (
    BlockManager,
    Key,
    Outgoing,
    PrefixStates,
    Proposer,
    Scheduler,
    SchedulerLimits,
    SwapSpace,
    WindowPool,
    WindowSizes,
)
from workers.scheduler.tier import HostTier, Transfer, Transferred

LOAD_EVERY_S: Final = 0.1
ALIVE_EVERY_S: Final = 1.0

BRIEF_STEP_S: Final = 0.002
"""Messages before a step that should take less than this are sent with its tokens: a separate frame
would cost the supervisor and the gateways a wake-up, some 0.1 ms each.
"""

PREPARE_EVERY_S: Final = 2.0
"""The shortest time between captures in a busy engine. Capturing a decode graph took 0.1 to 0.2 s
on an H200, so captures take at most a tenth of the time."""

COMPILING_POLL_S: Final = 0.001
"""How often an idle engine checks for compiled grammars; most take about as long."""

COPYING_POLL_S: Final = 0.0005
"""How often an engine without a step checks for the end of copies: one of 64 MiB takes 1.2 ms."""
MAX_COMPILING: Final = 1024
"""The most grammars that wait to be compiled, including those of sequences that were aborted
meanwhile.
"""
_FIRST_CONTROL_TAG: Final = 64


class CompiledGrammar(NamedTuple):
    """The compiled grammar of the sequence `key`, advanced over its outputs so far; None if it
    cannot be enforced, with the `error` for the client.
    """

    key: Key
    grammar: object | None
    error: str = ""


class GrammarCompiler(Protocol):
    """Compiles grammars beside the steps; each is ready some turns later. Only the loop's thread
    calls it.
    """

    def begin(self, key: Key, grammar: Grammar, outputs: array[int]) -> None:
        """Begin to compile; `take_done` returns the result once. `outputs` are those of earlier
        attempts.
        """

    def take_done(self) -> list[CompiledGrammar]:
        """The grammars that have been compiled since the last call."""


class PrefixCopies(Protocol):
    """Copies prefixes between the device and the host's memory, beside the steps. Only the loop's
    thread calls it.
    """

    def begin(self, transfer: Transfer) -> None:
        """Begin a transfer behind the steps that are launched."""

    def take_done(self) -> list[Transferred]:
        """The transfers that have ended since the last call."""

    def take_opened(self) -> list[range]:
        """The pages of the host that can be used from now on; an empty range behind the last."""


class Channel(Protocol):
    """The source and destination of frames; a frame is a link and a payload."""

    def take(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        """All frames that have arrived; waits for the first up to `timeout_s` (None: for ever)."""

    def send(self, frames: list[tuple[int, bytes]]) -> None:
        """Send frames in order."""


@final
class EngineLoop(Generic[InFlight]):
    """Turns until `Shutdown`. `clock` gives monotonic seconds; `epoch` counts engine starts."""

    def __init__(
        self,
        runner: Runner[InFlight],
        scheduler: Scheduler,
        channel: Channel,
        status: EngineStatus,
        *,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
        compiler: GrammarCompiler | None = None,
        watch_drafts: Callable[[bool], str] | None = None,
        copies: PrefixCopies | None = None,
        sleep: NativeSleep | None = None,
    ) -> None:
        """`compiler` None: the scheduler refuses all grammars. `watch_drafts` is called with each
        `Load` and told whether the engine is busy; it returns a warning for operators, or "".
        `copies` are those of the scheduler's host tier, if it has one. `sleep` moves the memory of
        a device that can sleep.
        """
        if scheduler.lookahead > runner.lookahead:
            raise ValueError(f"the runner looks {runner.lookahead} steps ahead: {scheduler!r}")
        self._scheduler = scheduler
        self._channel = channel
        self._status = status
        self._epoch = epoch
        self._clock = clock
        self._compiler = compiler
        self._watch_drafts = watch_drafts
        self._copies = copies
        self._sleep_control = SleepControl(sleep, scheduler, status)
        self._sleeps: SleepEngine | None = None
        self._num_compiling = 0
        self._pipeline = Pipeline(runner, status, scheduler.step_cost, clock)
        self._out: list[tuple[int, bytes]] = []
        self._load_at = -LOAD_EVERY_S
        self._alive_at = -ALIVE_EVERY_S
        self._load_was_busy: bool | None = None
        self._prepare_at = clock() + PREPARE_EVERY_S
        self._draining = False
        self._num_clears = 0
        self._leaving = False
        self._is_stalled = False
        self._has_copied = False

    def run(self) -> None:
        """Serve until `Shutdown`. Raises `EngineBroken` when steps fail again and again."""
        while True:
            # With work the next step must not wait. Without work only a frame can bring some, so
            # the runner may prepare for later steps until a frame comes.
            can_wait = self._is_stalled or (
                not self._is_busy
                and (
                    self._sleep_control.is_asleep or not self._pipeline.prepare(pending_only=False)
                )
            )
            for link, payload in self._channel.take(self._patience_s() if can_wait else 0.0):
                self._take_frame(link, payload)
            if self._leaving:
                return
            self._turn()

    @property
    def _is_busy(self) -> bool:
        return self._scheduler.has_work or len(self._pipeline) > 0

    def _patience_s(self) -> float | None:
        """How long to wait for a frame while there is no step."""
        if self._is_copying:
            return COPYING_POLL_S
        return COMPILING_POLL_S if self._num_compiling else None

    @property
    def _is_copying(self) -> bool:
        may_copy = self._copies is not None and not self._sleep_control.is_asleep
        return may_copy and self._scheduler.is_copying

    @property
    def _is_waiting(self) -> bool:
        """Whether nothing is in flight and copies are under way, for which all sequences wait."""
        return not len(self._pipeline) and self._scheduler.is_copying

    def _turn(self) -> None:
        if self._num_compiling:
            self._take_compiled()
        if self._copies is not None:
            self._take_copied(self._copies)
        self._queue(self._scheduler.expire(self._clock()))
        self._queue(self._scheduler.take_events())
        self._status.busy = self._is_busy
        has_planned = self._launch()
        if self._copies is not None and not self._sleep_control.is_asleep:
            self._copy(self._copies)
        if not has_planned or not 0.0 < self._pipeline.expected_s < BRIEF_STEP_S:
            self._report_load(busy=self._is_busy)
            self._flush()
        # If no plan could be made or launched, the steps in flight are collected first.
        goes_on = has_planned and not self._pipeline.has_failed
        self._collect(leave=self._scheduler.lookahead if goes_on else 0)
        if not has_planned:  # the tokens just committed may allow a plan; nothing is in flight
            has_planned = self._launch()
        self._is_stalled = not has_planned and self._copies is not None and self._is_waiting
        self._prepare_while_busy()
        self._status.busy = is_busy = self._is_busy
        self._report_load(busy=is_busy, has_worked=has_planned or self._has_copied)
        if self._draining and not is_busy and not self._scheduler.num_compiling:
            self._draining = False
            self._out.append((SUPERVISOR, encode_control(Drained())))
        if self._num_clears and not self._scheduler.blocks.tier.is_clearing:
            # An idle engine would not report otherwise.
            self._report_load(busy=is_busy, has_worked=True)
            self._out.append((SUPERVISOR, encode_control(Cleared(self._num_clears))))
            self._num_clears = 0
        if self._sleeps is not None and not len(self._pipeline) and not self._is_copying:
            slept = self._sleep_control.fall_asleep(self._sleeps)
            self._sleeps = None
            self._out.append((SUPERVISOR, encode_control(slept)))
        self._flush()

    def _take_copied(self, copies: PrefixCopies) -> None:
        """Take copies that are over, before a plan that may use them."""
        for pages in copies.take_opened():
            self._scheduler.blocks.tier.open(pages)
        done = copies.take_done()
        if done:
            self._scheduler.transferred(done, self._clock())
        self._has_copied = bool(done)

    def _copy(self, copies: PrefixCopies) -> None:
        """Begin copies behind the steps that are launched: what they read and write is as these
        steps leave it.
        """
        for transfer in self._scheduler.transfers():
            copies.begin(transfer)

    def _launch(self) -> bool:
        """Start the next step, if there is one."""
        plan = self._scheduler.plan()
        if plan is not None:
            self._pipeline.launch(plan)
        return plan is not None

    def _prepare_while_busy(self) -> None:
        """Capture missed graphs in an engine that is never idle, one at a time."""
        if (
            self._pipeline.has_pending_captures
            and self._is_busy
            and self._clock() >= self._prepare_at
        ):
            # First, because the capture would delay the results in flight.
            self._collect(leave=0)
            self._flush()
            self._pipeline.prepare(pending_only=True)
            self._prepare_at = self._clock() + PREPARE_EVERY_S

    def _collect(self, leave: int) -> None:
        """Collect results until at most `leave` steps are in flight."""
        while len(self._pipeline) > leave:
            plan, result = self._pipeline.collect()
            self._queue(self._scheduler.commit(plan, result))
            seconds, is_ahead = self._pipeline.cycle
            self._scheduler.took(plan, result, seconds, is_ahead=is_ahead)

    def _take_frame(self, link: int, payload: bytes) -> None:
        try:
            if link == SUPERVISOR and (wire.peek_tag(payload) or 0) >= _FIRST_CONTROL_TAG:
                self._control(payload)
            else:
                self._message(link, payload)
        except WireError as error:
            # The fault is logged; if the frame has a request's id, that request is also rejected.
            print(f"bad frame on link {link}: {error}", file=sys.stderr)
            if (ids := recover_request_id(payload)) is not None:
                self._queue([Outgoing(link, Rejected(*ids, "invalid", str(error)))])

    def _control(self, payload: bytes) -> None:
        match message := decode_to_engine(payload):
            case DropLink(link=link):
                self._scheduler.drop_link(link)
            case Shutdown():
                self._leaving = True
            case DrainEngine():
                self._draining = True
            case ClearCache():
                print(f"forgot {self._scheduler.blocks.clear()} cached blocks", file=sys.stderr)
                self._num_clears += 1
            case EngineStart():
                raise WireError("a second EngineStart")
            case SleepEngine():
                self._sleeps = message  # done once the copies to the host are over
            case WakeEngine(epoch=epoch):
                self._epoch = epoch
                self._out.append((SUPERVISOR, encode_control(self._sleep_control.wake())))
            case _:
                assert_never(message)

    def _message(self, link: int, payload: bytes) -> None:
        match message := wire.decode_to_worker(payload):
            case Submit() | Embed() | Score() if self._sleep_control.is_asleep:
                ids = message.request_id, message.attempt
                self._queue([Outgoing(link, Rejected(*ids, "not_ready", "the engine is asleep"))])
            case Submit():
                self._submit(link, message)
            case Embed() | Score():
                self._queue(self._scheduler.submit(link, message, self._clock()))
            case Abort(request_id=request_id, attempt=attempt):
                self._queue(self._scheduler.abort(link, request_id, attempt))
            case Snapshot():
                self._queue(self._scheduler.take_events())
                self._queue([Outgoing(link, self._scheduler.snapshot())])
                self._queue([Outgoing(link, self._load())])
            case Retain():
                self._scheduler.retain(link, message, self._clock())
            case Relay() | RelayChunk() | RelayCredit():
                raise WireError(f"{type(message).__name__} is for engines that take text")
            case Welcome() | Drain() | Ping() | GetFiles() | Dismiss() | Distrust() | Wanted():
                raise WireError(f"{type(message).__name__} is not for an engine")
            case _:
                assert_never(message)

    def _submit(self, link: int, message: Submit) -> None:
        if message.grammar is not None and self._num_compiling >= MAX_COMPILING:
            ids, text = (message.request_id, message.attempt), "too many grammars wait for a thread"
            self._queue([Outgoing(link, Rejected(*ids, "busy", text))])
            return
        answer = self._scheduler.submit(link, message, self._clock())
        self._queue(answer)
        if message.grammar is not None and self._compiler is not None and not answer:
            self._num_compiling += 1
            key = link, message.request_id, message.attempt
            self._compiler.begin(key, message.grammar, unpack_tokens(message.output_ids))

    def _take_compiled(self) -> None:
        """Pass compiled grammars to their sequences."""
        assert self._compiler is not None
        for key, grammar, error in self._compiler.take_done():
            self._num_compiling -= 1
            self._queue(self._scheduler.compiled(key, grammar, error))

    def _report_load(self, *, busy: bool, has_worked: bool = False) -> None:
        """Report the load, at most once per 100 ms, and at each change between idle and busy."""
        now = self._clock()
        is_due = now - self._load_at >= LOAD_EVERY_S if busy else has_worked
        if busy == self._load_was_busy and not is_due:
            return
        self._load_was_busy, self._load_at = busy, now
        self._scheduler.revise_places()
        self._sleep_control.expect()
        load = self._load()
        if load.cache is not None:
            self._status.cache = cache_line(load.cache, load.recomputed_tokens)
        if load.drafting is not None:
            warning = "" if self._watch_drafts is None else self._watch_drafts(busy)
            self._status.drafting = drafting_line(load.drafting, warning)
        self._queue([Outgoing(BROADCAST, load)])
        if busy and now - self._alive_at >= ALIVE_EVERY_S:
            self._alive_at = now
            self._queue(self._scheduler.signs_of_life())

    def _load(self) -> Load:
        meter = self._pipeline.meter
        return self._scheduler.load(self._epoch, meter.step_ms, meter.prefill_tokens_per_s)

    def _queue(self, messages: Sequence[Outgoing]) -> None:
        if messages:
            self._out += [(link, wire.encode(message)) for link, message in messages]

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._channel.send(out)


def scheduler_for(
    runner: Runner[Any],
    model: str,
    *,
    max_waiting: int,
    vocab_size: int | None,
    largest: Callable[[array[int]], int],
    max_gap_s: float = inf,
    enforces_grammars: bool = False,
    proposer: Proposer | None = None,
    tier: HostTier | None = None,
    swaps: bool = False,
    windows: WindowSizes | None = None,
) -> Scheduler:
    """The scheduler for a runner that serves the public name `model`; see `SchedulerLimits`. `tier`
    is the host tier, if there is one, to which preempted sequences go if it `swaps`. `windows` are
    the blocks of layers that keep only their window, if there are any.
    """
    facts = runner.facts
    limits = SchedulerLimits(
        max_seqs=facts.max_seqs,
        token_budget=facts.token_budget,
        context_length=facts.context_length,
        max_waiting=max_waiting,
        vocab_size=vocab_size,
        max_gap_s=max_gap_s,
        enforces_grammars=enforces_grammars,
        embedding_size=facts.embedding_size,
    )
    states = PrefixStates.of(facts.snapshots, facts.block_size)
    num_blocks = facts.kv_tokens // facts.block_size
    space = SwapSpace(tier, facts.block_size) if tier is not None and swaps else None
    pool = None if windows is None else WindowPool(windows, facts.block_size)
    blocks = BlockManager(
        num_blocks, facts.block_size, states=states, swap=space, tier=tier, windows=pool
    )
    return Scheduler(
        limits,
        blocks,
        (model,),
        runner.eos_ids,
        lookahead=runner.lookahead,
        largest=largest,
        proposer=proposer,
    )
