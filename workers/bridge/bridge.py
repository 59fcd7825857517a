"""The bridge: requests from the supervisor, HTTP to the engine, tokens or bytes back.

Owns the running requests, one task each, the reports of load, and the meaning of a failure: of one
request, which moves to another worker, or of the engine, which loses all requests. Must not know
the content of requests, the engine's fields, how it was started, nor sockets.
"""

from __future__ import annotations

import sys
from functools import partial
from math import isfinite
from typing import Final, assert_never, final

import trio

from config import WorkerConfig
from protocol import wire
from protocol.errors import HttpError, WireError
from protocol.messages import (
    Abort,
    Dismiss,
    Distrust,
    Drain,
    Embed,
    EngineFacts,
    GetFiles,
    Load,
    Ping,
    Rejected,
    Relay,
    RelayChunk,
    RelayCredit,
    Retain,
    Score,
    SequenceAlive,
    Snapshot,
    Submit,
    Wanted,
    Welcome,
)
from workers.bridge.engine_client import EngineClient, EngineGone, EngineRefusal
from workers.bridge.engine_sleep import EngineSleep
from workers.bridge.outbox import MANY_STREAMS, Outbox
from workers.bridge.work import BridgeRequest, BridgeWork, CannotRun, Holdings, Key
from workers.external import EngineError
from workers.ipc import (
    BROADCAST,
    FIRST_CONTROL_TAG,
    SUPERVISOR,
    ClearCache,
    Drained,
    DrainEngine,
    DropLink,
    EngineStart,
    Shutdown,
    SleepEngine,
    Slept,
    WakeEngine,
    Woken,
    decode_to_engine,
    recover_request_id,
)
from workers.loop import Channel, EngineStatus

LOAD_EVERY_S: Final = 0.1
ALIVE_EVERY_S: Final = 1.0
WATCH_EVERY_S: Final = 1.0
_ANSWERING: Final = "answering"
"""A declared phase, so that the engine may be silent for `stall_s`: its prompts may take minutes,
and requests of other clients may be ahead of ours.
"""
_SMOOTHING: Final = 0.1


@final
class Bridge:
    """Serves until `Shutdown`, or until the engine is gone."""

    def __init__(
        self,
        config: WorkerConfig,
        facts: EngineFacts,
        client: EngineClient,
        channel: Channel,
        status: EngineStatus,
        outbox: Outbox,
        work: BridgeWork,
        holdings: Holdings,
        *,
        epoch: int,
        sleeps: tuple[EngineSleep, ...] = (),
    ) -> None:
        """`sleeps` are the ways of an engine whose process can sleep, the best first."""
        self._sleeps = {sleep.name: sleep for sleep in sleeps}
        self._asleep: EngineSleep | None = None
        self._config = config
        self._facts = facts
        self._client = client
        self._channel = channel
        self._status = status
        self._epoch = epoch
        self._outbox = outbox
        self._work = work
        self._holdings = holdings
        self._running: dict[Key, BridgeRequest] = {}
        self._step_ms = 0.0
        # Steps of answers, for the gateways. The steps for the supervisor also count good health
        # checks.
        self._num_steps = 0
        self._load_at = -LOAD_EVERY_S
        self._others = (0, 0)
        self._is_draining = False
        self._failure: EngineGone | None = None
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Serve. Returns after `Shutdown`; raises `EngineGone`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._outbox.run)
                nursery.start_soon(self._watch)
                await self._take_frames()
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    def fail(self, error: EngineGone) -> None:
        """End the bridge: the engine is gone, and its requests are lost."""
        if self._failure is None:
            self._failure = error
        self._scope.cancel()

    # Frames of the supervisor.

    async def _take_frames(self) -> None:
        # Requests are few: a waiting thread costs less than a second way to read the channel.
        take = partial(self._channel.take, None)
        while True:
            frames = await trio.to_thread.run_sync(take, abandon_on_cancel=True)
            for link, payload in frames:
                if self._take_frame(link, payload):
                    return

    def _take_frame(self, link: int, payload: bytes) -> bool:
        """Handle a frame; return whether it was `Shutdown`."""
        try:
            if link == SUPERVISOR and (wire.peek_tag(payload) or 0) >= FIRST_CONTROL_TAG:
                return self._control(payload)
            self._message(link, payload)
        except WireError as error:
            # The fault is logged; if the frame has a request's id, that request is also rejected.
            print(f"bad frame on link {link}: {error}", file=sys.stderr)
            if (ids := recover_request_id(payload)) is not None:
                self._outbox.put(link, Rejected(*ids, "invalid", str(error)))
        return False

    def _control(self, payload: bytes) -> bool:
        match message := decode_to_engine(payload):
            case DropLink(link=link):
                for running in [one for one in self._running.values() if one.key[0] == link]:
                    running.is_dropped = True
                    running.scope.cancel()
            case Shutdown():
                return True
            case DrainEngine():
                self._is_draining = True
                self._report_drained()
            case EngineStart():
                raise WireError("a second EngineStart")
            case ClearCache():
                raise WireError("ClearCache is for native engines")
            case SleepEngine() | WakeEngine():
                assert self._nursery is not None
                self._nursery.start_soon(self._move, message)
            case _:
                assert_never(message)
        return False

    async def _move(self, message: SleepEngine | WakeEngine) -> None:
        """Put the engine to sleep, or wake it. It may be silent for `stall_s` meanwhile."""
        is_wake = isinstance(message, WakeEngine)
        self._status.busy, self._status.phase = True, "waking" if is_wake else "falling asleep"
        answer: Slept | Woken
        if isinstance(message, WakeEngine):
            self._epoch = message.epoch
            self._holdings.clear()
            sleep = self._asleep
            answer = Woken("it does not sleep" if sleep is None else await sleep.wake())
        else:
            way = message.way or next(iter(self._sleeps), "")
            sleep = self._asleep = self._sleeps.get(way)
            if sleep is None or self._running:
                answer = Slept("it works, or has no such way to sleep")
            else:
                answer = Slept(await sleep.fall_asleep())
        if sleep is not None and not answer.why and sleep.note:
            print(f"{'awake' if is_wake else 'asleep'}: {sleep.note}", flush=True)
        self._status.busy, self._status.phase = False, ""
        self._outbox.send_control(answer)

    def _message(self, link: int, payload: bytes) -> None:
        match message := wire.decode_to_worker(payload):
            case Submit() | Relay():
                self._begin(link, message)
            case RelayChunk() | RelayCredit() | Abort():
                self._pass_to_running(link, message)
            case Snapshot():
                for change in self._holdings.take():
                    self._outbox.put(BROADCAST, change)
                self._outbox.put(link, self._holdings.snapshot())
                self._outbox.put(link, self._load())
            case Embed() | Score() | Retain():
                raise WireError(f"{type(message).__name__} is for native engines")
            case Welcome() | Drain() | Ping() | GetFiles() | Dismiss() | Distrust() | Wanted():
                raise WireError(f"{type(message).__name__} is not for an engine")
            case _:
                assert_never(message)

    # One request.

    def _begin(self, link: int, message: Submit | Relay) -> None:
        key = (link, message.request_id, message.attempt)
        try:
            self._check(key, message)
            running = self._work.begin(key, message, self._note_progress)
        except CannotRun as refused:
            rejected = Rejected(message.request_id, message.attempt, refused.reason, str(refused))
            self._outbox.put(link, rejected)
            return
        running.expected = self._holdings.sent(running.digests, trio.current_time())
        self._running[key] = running
        if message.deadline_s is not None:
            running.scope.deadline = trio.current_time() + message.deadline_s
        self._mark_busy()
        assert self._nursery is not None
        self._nursery.start_soon(self._run, running)

    def _check(self, key: Key, message: Submit | Relay) -> None:
        """Raise `CannotRun` for a request that cannot run here, or not now."""
        if key in self._running:
            raise CannotRun("invalid", "that attempt runs already")
        if message.model != self._config.serves:
            raise CannotRun("unknown_model", f"model {message.model!r} is not served here")
        if message.deadline_s is not None and not isfinite(message.deadline_s):
            raise CannotRun("invalid", "deadline_s is not a number")
        if len(self._running) >= self._facts.max_seqs + self._config.max_waiting:
            raise CannotRun("busy", f"{len(self._running)} requests run or wait")

    def _pass_to_running(self, link: int, message: RelayChunk | RelayCredit | Abort) -> None:
        running = self._running.get((link, message.request_id, message.attempt))
        if running is None:
            return  # the request has just ended
        if isinstance(message, Abort):
            running.scope.cancel()
            return
        try:
            running.take(message)
        except WireError:
            running.scope.cancel()
            raise

    async def _run(self, running: BridgeRequest) -> None:
        """Run one request to its end. The engine's connection is then closed or idle: engines stop
        an answer whose connection is closed.
        """
        with running.scope:
            await self._to_end(running)
        if running.scope.cancelled_caught and not running.is_dropped:
            running.aborted()
        del self._running[running.key]
        self._mark_busy()
        self._report_drained()

    async def _to_end(self, running: BridgeRequest) -> None:
        try:
            await running.run()
        except EngineRefusal as refusal:
            link, request_id, attempt = running.key
            detail = str(refusal)
            self._outbox.put(link, Rejected(request_id, attempt, refusal.reason, detail))
        except (EngineError, HttpError) as error:
            # The engine may be dying: then the request is not at fault.
            try:
                await self._client.check()
            except EngineGone as gone:
                self.fail(gone)
                return
            print(f"a request failed on the engine: {error}", file=sys.stderr)
            running.failed(str(error))

    def _note_progress(self, running: BridgeRequest, num_tokens: int) -> None:
        """Count new tokens (`num_tokens`), or another sign of life (0)."""
        self._num_steps += 1
        if num_tokens == 0:
            # The engine reports progress within the prompt.
            self._status.step += 1
            self._report_alive(running)
            return
        now = trio.current_time()
        if running.last_at:
            step_ms = (now - running.last_at) * 1e3 / num_tokens
            self._step_ms += (step_ms - self._step_ms) * (_SMOOTHING if self._step_ms else 1.0)
        running.last_at = now
        if now - self._load_at >= LOAD_EVERY_S:
            self._report_load()

    def _report_alive(self, running: BridgeRequest) -> None:
        now = trio.current_time()
        if now - running.reported_at >= ALIVE_EVERY_S:
            running.reported_at = now
            link, request_id, attempt = running.key
            self._outbox.put(link, SequenceAlive(request_id, attempt))

    # Load and life.

    def _mark_busy(self) -> None:
        self._status.busy = bool(self._running)
        self._status.phase = _ANSWERING if self._running else ""
        self._outbox.is_crowded = len(self._running) >= MANY_STREAMS
        self._report_load()

    def _report_drained(self) -> None:
        if self._is_draining and not self._running:
            self._is_draining = False
            self._outbox.send_control(Drained())

    def _report_load(self) -> None:
        self._load_at = trio.current_time()
        self._outbox.put(BROADCAST, self._load())

    def _load(self) -> Load:
        """The load, with the requests of the engine's other clients if its metrics report them."""
        own_running = sum(one.is_accepted for one in self._running.values())
        own_waiting = len(self._running) - own_running
        running, waiting = self._others
        num_blocks = self._facts.kv_tokens // self._facts.block_size
        used = sum(one.num_tokens // self._facts.block_size + 1 for one in self._running.values())
        return Load(
            epoch=self._epoch,
            running=max(own_running, running),
            waiting=max(own_waiting, waiting),
            free_blocks=max(0, num_blocks - used),
            num_blocks=num_blocks,
            steps=self._num_steps,
            preemptions=0,
            step_ms=self._step_ms,
            prefill_tokens_per_s=0.0,
        )

    async def _watch(self) -> None:
        """Check the engine once a second; without requests its death would go unnoticed."""
        has_metrics = True
        while True:
            await trio.sleep(WATCH_EVERY_S)
            try:
                is_well = await self._client.check()
            except EngineGone as gone:
                self.fail(gone)
                return
            if is_well and self._facts.relay is not None:
                # An answer in one piece shows no other sign of life.
                self._status.step += 1
            if has_metrics:
                has_metrics = await self._read_metrics()

    async def _read_metrics(self) -> bool:
        """Read the load of other clients. Returns whether the engine has metrics."""
        try:
            status, body = await self._client.get("/metrics")
        except HttpError:
            return True
        if status != 200:
            return False
        others = self._client.api.load(body.decode(errors="replace"))
        if others != self._others:
            self._others = others
            self._report_load()
        return True
