"""The bridge: submissions in, HTTP to the engine, tokens out.

Owns the sequences that run, one task each, the reports of load, and what a failure means: of one
request (it moves), or of the engine (all of them do). Must not know the engine's fields, how it was
started, nor sockets.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Final, assert_never, final

import trio

from config import WorkerConfig
from protocol import wire
from protocol.errors import HttpError, WireError
from protocol.hashing import block_digests, root_digest
from protocol.ids import BlockDigest
from protocol.messages import (
    Abort,
    Accepted,
    Dismiss,
    Drain,
    EngineFacts,
    Finished,
    FinishReason,
    GetFiles,
    Load,
    Ping,
    Rejected,
    Snapshot,
    Submit,
    TokenItem,
    Welcome,
)
from protocol.tokens import pack_tokens, unpack_tokens
from workers.bridge.exchange import EngineGone, EngineRefusal, Exchange
from workers.bridge.outbox import Outbox
from workers.bridge.readiness import ModelText
from workers.external import Answer, ApproximateBlocks, EngineError, Expectation, Piece
from workers.ipc import (
    BROADCAST,
    FIRST_CONTROL_TAG,
    SUPERVISOR,
    Drained,
    DrainEngine,
    DropLink,
    EngineStart,
    Shutdown,
    decode_to_engine,
    recover_request_id,
)
from workers.loop import Channel, EngineStatus

LOAD_EVERY_S: Final = 0.1
WATCH_EVERY_S: Final = 1.0
_ANSWERING: Final = "answering"
"""A declared phase: the engine may be silent for `stall_s`. Its prompts may take minutes, and other
clients may be before ours.
"""
_SMOOTHING: Final = 0.1

Key = tuple[int, bytes, int]


@dataclass(slots=True)
class _Sequence:
    """One submission on its way. `is_dropped`: its gateway is gone."""

    key: Key
    answer: Answer
    digests: list[BlockDigest]
    expected: Expectation
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_accepted: bool = False
    is_dropped: bool = False
    last_at: float = 0.0


class _Refused(Exception):
    """A submission cannot be taken. Never leaves the bridge: it becomes a `Rejected`."""


@final
class Bridge:
    """Runs until `Shutdown`, or until the engine is gone."""

    def __init__(
        self,
        config: WorkerConfig,
        facts: EngineFacts,
        text: ModelText,
        exchange: Exchange,
        channel: Channel,
        status: EngineStatus,
        *,
        epoch: int,
    ) -> None:
        self._config = config
        self._facts = facts
        self._text = text
        self._exchange = exchange
        self._channel = channel
        self._status = status
        self._epoch = epoch
        self.outbox = Outbox(channel, status)
        self._sequences: dict[Key, _Sequence] = {}
        self._blocks = ApproximateBlocks(
            block_size=facts.block_size,
            capacity_blocks=facts.kv_tokens // facts.block_size,
            slack_blocks=2,
        )
        self._step_ms = 0.0
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
                nursery.start_soon(self.outbox.run)
                nursery.start_soon(self._watch)
                await self._take_frames()
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    def fail(self, error: EngineGone) -> None:
        """The engine is gone, and all that ran on it is lost."""
        if self._failure is None:
            self._failure = error
        self._scope.cancel()

    # Frames of the supervisor.

    async def _take_frames(self) -> None:
        # Requests are few: a thread that waits for them costs less than a second way to read.
        take = partial(self._channel.take, None)
        while True:
            frames = await trio.to_thread.run_sync(take, abandon_on_cancel=True)
            for link, payload in frames:
                if self._take_frame(link, payload):
                    return

    def _take_frame(self, link: int, payload: bytes) -> bool:
        """Whether it was `Shutdown`."""
        try:
            if link == SUPERVISOR and (wire.peek_tag(payload) or 0) >= FIRST_CONTROL_TAG:
                return self._control(payload)
            self._message(link, payload)
        except WireError as error:
            # Logged; the request is answered if the frame still names it.
            print(f"bad frame on link {link}: {error}", file=sys.stderr)
            if (ids := recover_request_id(payload)) is not None:
                self.outbox.put(link, Rejected(*ids, "invalid", str(error)))
        return False

    def _control(self, payload: bytes) -> bool:
        match message := decode_to_engine(payload):
            case DropLink(link=link):
                for sequence in [one for one in self._sequences.values() if one.key[0] == link]:
                    sequence.is_dropped = True
                    sequence.scope.cancel()
            case Shutdown():
                return True
            case DrainEngine():
                self._is_draining = True
                self._report_drained()
            case EngineStart():
                raise WireError("a second EngineStart")
            case _:
                assert_never(message)
        return False

    def _message(self, link: int, payload: bytes) -> None:
        match message := wire.decode_to_worker(payload):
            case Submit():
                self._submit(link, message)
            case Abort(request_id=request_id, attempt=attempt):
                if (sequence := self._sequences.get((link, request_id, attempt))) is not None:
                    sequence.scope.cancel()
            case Snapshot():
                self._publish_blocks()
                self.outbox.put(link, self._blocks.snapshot())
                self.outbox.put(link, self._load())
            case Welcome() | Drain() | Ping() | GetFiles() | Dismiss():
                raise WireError(f"{type(message).__name__} is not for an engine")
            case _:
                assert_never(message)

    # One submission.

    def _submit(self, link: int, submit: Submit) -> None:
        key = (link, submit.request_id, submit.attempt)
        try:
            answer = self._answer_of(key, submit)
        except _Refused as refused:
            reason, detail = refused.args
            self.outbox.put(link, Rejected(submit.request_id, submit.attempt, reason, detail))
            return
        root = root_digest(submit.model, submit.adapter, submit.salt)
        digests = block_digests(root, submit.prompt_ids, self._facts.block_size)
        expected = self._blocks.sent(digests, trio.current_time())
        sequence = self._sequences[key] = _Sequence(key, answer, digests, expected)
        if submit.deadline_s is not None:
            sequence.scope.deadline = trio.current_time() + submit.deadline_s
        self._mark_busy()
        assert self._nursery is not None
        self._nursery.start_soon(self._run, sequence)

    def _answer_of(self, key: Key, submit: Submit) -> Answer:
        """Raises `_Refused` for what can never run here, or not now."""
        if key in self._sequences:
            raise _Refused("invalid", "that attempt runs already")
        if submit.model != self._config.serves:
            raise _Refused("unknown_model", f"model {submit.model!r} is not served here")
        if submit.grammar is not None:
            raise _Refused("grammar", "this engine enforces no grammars")
        if (what := self._exchange.api.refusal(submit)) is not None:
            raise _Refused("invalid", f"the {self._config.engine} engine cannot do {what}")
        if submit.deadline_s is not None and not isfinite(submit.deadline_s):
            raise _Refused("invalid", "deadline_s is not a number")
        if len(self._sequences) >= self._facts.max_seqs + self._config.max_waiting:
            raise _Refused("busy", f"{len(self._sequences)} sequences run or wait")
        prompt, outputs = self._ids_of(submit.prompt_ids), self._ids_of(submit.output_ids)
        window, size = self._facts.context_length, self._text.vocab_size
        if not prompt:
            raise _Refused("invalid", "the prompt has no tokens; send at least one")
        if len(prompt) >= window:
            detail = f"the prompt has {len(prompt)} tokens and the context length is {window}"
            raise _Refused("too_long", f"{detail}, with room for the answer")
        if size is not None and max(prompt) >= size:
            raise _Refused("invalid", f"token id {max(prompt)} is outside the vocabulary of {size}")
        return Answer(
            prompt,
            outputs,
            submit.sampling,
            seed=submit.seed,
            salt=submit.salt,
            max_outputs=min(submit.sampling.max_tokens, window - len(prompt)),
            eos_ids=self._text.eos_ids,
            vocab_size=size,
        )

    def _ids_of(self, packed: bytes) -> array[int]:
        try:
            return unpack_tokens(packed)
        except WireError as error:
            raise _Refused("invalid", str(error)) from error

    async def _run(self, sequence: _Sequence) -> None:
        """One submission, to its end. Whatever the end is, the engine's connection is closed or
        idle then: closing it is how an engine is told to stop.
        """
        with sequence.scope:
            await self._generate(sequence)
        if sequence.scope.cancelled_caught and not sequence.is_dropped:
            self._finish(sequence, "abort")
        del self._sequences[sequence.key]
        self._mark_busy()
        self._report_drained()

    async def _generate(self, sequence: _Sequence) -> None:
        link, request_id, attempt = sequence.key
        on_event = partial(self._take_event, sequence)
        try:
            await self._exchange.answer(sequence.answer, on_event)
        except EngineRefusal as refusal:
            detail = str(refusal)
            self.outbox.put(link, Rejected(request_id, attempt, refusal.reason, detail))
        except (EngineError, HttpError) as error:
            # The engine may be dying: then nobody's request is at fault.
            try:
                await self._exchange.check()
            except EngineGone as gone:
                self.fail(gone)
                return
            print(f"a request failed on the engine: {error}", file=sys.stderr)
            self._finish(sequence, "error", str(error))
        else:
            self._accept(sequence)
            self._finish(sequence, sequence.answer.finish_reason)

    def _take_event(self, sequence: _Sequence, piece: Piece | None) -> None:
        """New tokens, or another sign of life."""
        if piece is None:
            # Progress within a prompt.
            self._status.step += 1
            return
        self._accept(sequence)
        link, request_id, attempt = sequence.key
        packed = pack_tokens(piece.ids)
        self.outbox.put(link, TokenItem(request_id, attempt, piece.offset, packed, piece.logprobs))
        now = trio.current_time()
        if sequence.last_at:
            step_ms = (now - sequence.last_at) * 1e3 / len(piece.ids)
            self._step_ms += (step_ms - self._step_ms) * (_SMOOTHING if self._step_ms else 1.0)
        sequence.last_at = now
        if now - self._load_at >= LOAD_EVERY_S:
            self._report_load()

    def _accept(self, sequence: _Sequence) -> None:
        if sequence.is_accepted:
            return
        sequence.is_accepted = True
        link, request_id, attempt = sequence.key
        cached_tokens = sequence.answer.cached_tokens or 0
        self.outbox.put(link, Accepted(request_id, attempt, cached_tokens))

    def _finish(self, sequence: _Sequence, reason: FinishReason, detail: str = "") -> None:
        link, request_id, attempt = sequence.key
        answer = sequence.answer
        if reason in {"stop", "length"}:
            now, reported = trio.current_time(), answer.cached_tokens
            self._blocks.answered(sequence.digests, sequence.expected, reported, now)
            self._publish_blocks()
        finished = Finished(
            request_id,
            attempt,
            reason,
            prompt_tokens=answer.num_prompt,
            cached_tokens=answer.cached_tokens or 0,
            output_tokens=answer.output_tokens,
            matched=answer.matched,
            detail=detail,
        )
        self.outbox.put(link, finished)

    def _publish_blocks(self) -> None:
        for message in self._blocks.take():
            self.outbox.put(BROADCAST, message)

    # Load and life.

    def _mark_busy(self) -> None:
        self._status.busy = bool(self._sequences)
        self._status.phase = _ANSWERING if self._sequences else ""
        self._report_load()

    def _report_drained(self) -> None:
        if self._is_draining and not self._sequences:
            self._is_draining = False
            self.outbox.send_control(Drained())

    def _report_load(self) -> None:
        self._load_at = trio.current_time()
        self.outbox.put(BROADCAST, self._load())

    def _load(self) -> Load:
        """Somebody else's traffic on the same engine counts as well, where its metrics tell."""
        own_running = sum(one.is_accepted for one in self._sequences.values())
        own_waiting = len(self._sequences) - own_running
        running, waiting = self._others
        num_blocks = self._facts.kv_tokens // self._facts.block_size
        used = sum(
            (one.answer.num_prompt + one.answer.num_outputs) // self._facts.block_size + 1
            for one in self._sequences.values()
        )
        return Load(
            epoch=self._epoch,
            running=max(own_running, running),
            waiting=max(own_waiting, waiting),
            free_blocks=max(0, num_blocks - used),
            num_blocks=num_blocks,
            steps=self._status.step,
            preemptions=0,
            step_ms=self._step_ms,
            prefill_tokens_per_s=0.0,
        )

    async def _watch(self) -> None:
        """Ask the engine how it is, once a second: an idle one dies unseen otherwise."""
        has_metrics = True
        while True:
            await trio.sleep(WATCH_EVERY_S)
            try:
                await self._exchange.check()
            except EngineGone as gone:
                self.fail(gone)
                return
            if has_metrics:
                has_metrics = await self._read_metrics()

    async def _read_metrics(self) -> bool:
        """Whether it offers any."""
        try:
            status, body = await self._exchange.get("/metrics")
        except HttpError:
            return True
        if status != 200:
            return False
        others = self._exchange.api.load(body.decode(errors="replace"))
        if others != self._others:
            self._others = others
            self._report_load()
        return True
