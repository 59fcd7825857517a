"""The link to all workers.

Owns the ROUTER socket, the judgement of which workers are alive, and where each frame goes: tokens
to the attempts that wait for them, reports to the dispatcher. Must not know text or HTTP.

A frame is decoded once and its items are handed on by plain calls: no task wakes per token. What
the gateway writes to clients because of a frame leaves at the frame's end, in one write per
connection.
"""

import itertools
import logging
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Final, assert_never

import trio

from gateway.link.attempts import Attempt, Attempts
from gateway.link.model_files import ModelTexts
from gateway.link.peers import Peer, Peers
from gateway.link.relays import RelayAttempt, RelayMessage
from gateway.link.submissions import Submissions
from gateway.routing import Demand, Dispatcher
from gateway.runtime import Accounts
from gateway.telemetry import GatewayCounters
from housekeeping.tick import next_tick
from protocol.errors import ConfigError, LinkError, LinkFull, WireError
from protocol.ids import WorkerId
from protocol.messages import (
    PROTOCOL_VERSION,
    RETAINS,
    Abort,
    Accepted,
    BlockEvent,
    BlocksDropped,
    BlocksSnapshot,
    BlocksStored,
    Bundle,
    Bye,
    Dismiss,
    Distrust,
    Embed,
    Embedding,
    Fault,
    Files,
    Finished,
    GetFiles,
    Load,
    Ping,
    Pong,
    Progress,
    Register,
    Rejected,
    Relay,
    RelayChunk,
    RelayCredit,
    RelayData,
    RelayEnd,
    RelayHead,
    RelayTaken,
    Residency,
    Retain,
    Score,
    Scored,
    SequenceAlive,
    Snapshot,
    SpeedLoss,
    StatesForgotten,
    StatesSaved,
    Submit,
    Tokens,
    ToWorker,
    Wanted,
    Welcome,
)
from protocol.transport import CurveServer, LocalRouter, RouterSocket, RouterStatistics, is_local
from protocol.wire import decode_from_worker, encode

PING_S: Final = 0.2
REST_PING_S: Final = 0.4
"""While no work runs: a ping and its answer wake an idle process twice, for 0.4 ms of CPU each. A
late answer has the rest of `SILENCE_S` to arrive.
"""
CATCH_UP_S: Final = 0.02
"""After unread frames were found waiting, silence is not judged for this time."""
MAX_REFUSED: Final = 256
"""Refused workers that are remembered, so that one that asks every second is logged once."""
TELL_AGAIN_S: Final = 600.0
"""A process that the socket refuses is logged once in this time."""
FALSE_FILES: Final = "its tokenizer and template files do not fit the digest that it named"
FALSE_FILES_S: Final = 60.0
"""A worker that sent files that do not fit their digest is refused for this time. Then it may
register again with other files.
"""
MAX_NAME_CHARS: Final = 128
MAX_REASON_CHARS: Final = 400
"""This and `MAX_NAME_CHARS` bound texts that workers send; otherwise only the frame size limits
them.
"""
MAX_GARBAGE_LOGGED: Final = 8

_BlockEvent = BlockEvent | BlocksSnapshot
_Rare = (
    Register
    | Rejected
    | Pong
    | Progress
    | _BlockEvent
    | Load
    | SpeedLoss
    | Residency
    | Fault
    | Bye
    | Files
    | Embedding
    | Scored
    | SequenceAlive
)
_OF_RELAYS: Final = frozenset({RelayHead, RelayData, RelayTaken, RelayEnd})
_ENDED_THERE: Final = (Finished, Rejected)
"""Outcomes after which the worker has already forgotten the sequence."""

_OK: Final = 200

_log = logging.getLogger(__name__)


class _Now(AbstractContextManager[float]):
    """The `step` of a link without an HTTP server: nothing is flushed at its end."""

    def __enter__(self) -> float:
        return trio.current_time()

    def __exit__(self, *_exc: object) -> None:
        pass


class WorkerLink:
    """All links between the gateway and its workers. `run` owns the socket.

    `step` is entered around the processing of each frame and gives the time on trio's clock.
    `gateways` are the addresses of the other gateway processes, which workers dial too. A Unix
    socket takes processes of other users only if the link `admits_others`. While it
    runs it has the `accounts` of requests written.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        files: ModelTexts,
        counters: GatewayCounters,
        *,
        gateway_id: bytes,
        epoch: int,
        gateways: tuple[str, ...] = (),
        keys: CurveServer | None = None,
        step: AbstractContextManager[float] | None = None,
        admits_others: bool = False,
    ) -> None:
        self._dispatcher = dispatcher
        self._files = files
        self._counters = counters
        self._welcome = Welcome(PROTOCOL_VERSION, gateway_id, epoch, gateways)
        self._has_keys = keys is not None
        self._router: RouterSocket | LocalRouter = RouterSocket(
            self._on_frame, self._on_unroutable, keys=keys, on_refused=self._tell_refused
        )
        self._admits_others = admits_others
        self._told_at: dict[str, float] = {}
        self._peers = Peers()
        self._refused: dict[str, str] = {}
        self._lied_at: dict[tuple[str, bytes], float] = {}
        self._attempts = Attempts(counters)
        self.accounts = Accounts()
        self._submissions = Submissions(self._send_frames, self._waiting_bytes, self.accounts)
        self._step = step or _Now()
        self._requested_files: set[tuple[WorkerId, bytes]] = set()
        self._nonces = itertools.count(1)
        files.on_false = self._refuse_false_files
        dispatcher.attach(self)

    def bind(self, address: str) -> str:
        """Listen for workers; returns the bound address. Raises `ConfigError`."""
        if is_local(address) and not self._has_keys:
            self._router.close()
            self._router = LocalRouter(
                self._on_frame,
                self._on_unroutable,
                on_refused=self._tell_refused,
                admits_others=self._admits_others,
            )
        return self._router.bind(address)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the link until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._router.run)
            nursery.start_soon(self._watch)
            nursery.start_soon(self._submissions.run)
            task_status.started()

    def accept_keys(self, worker_keys: Mapping[str, str]) -> None:
        """Accept workers with these public keys, by name; disconnect those with other keys."""
        if isinstance(self._router, RouterSocket):
            self._router.accept_keys(worker_keys)
        for worker_id in tuple(self._peers):
            self._check_key(worker_id, self._peers[worker_id].name)

    def statistics(self) -> RouterStatistics:
        return self._router.statistics()

    def close(self) -> None:
        """Close the socket of a link that was never run."""
        self._router.close()

    def worker_name(self, worker_id: WorkerId) -> str:
        """The name under which the worker registered; hex digits of its identity if it is gone."""
        peer = self._peers.get(worker_id)
        return peer.name if peer is not None else worker_id.hex()[:8]

    def others(self, worker_id: WorkerId) -> frozenset[WorkerId]:
        """All registered workers except `worker_id`; none if that worker is gone."""
        return frozenset(self._peers) - {worker_id} if worker_id in self._peers else frozenset()

    # Work of turns.

    def submit(self, attempt: Attempt, message: Submit | Relay | Embed | Score) -> None:
        """Send the work; messages for it reach the attempt until `forget`.

        A worker that cannot be reached ends the attempt as lost. Raises `WireError` for a message
        that is too large for a frame.
        """
        frame = encode(message)
        self._attempts.add(attempt)
        self._submissions.add(attempt, frame)

    def forget(self, attempt: Attempt) -> None:
        """Stop waiting for the attempt; abort its work unless the worker has ended it."""
        self._attempts.remove(attempt)
        if attempt.outcome is None:
            # Breaks the reference cycle, as the end does.
            attempt.lease.on_lost = None
        if isinstance(attempt.outcome, _ENDED_THERE) or self._submissions.withdraw(attempt):
            return
        if attempt.worker_id in self._peers:
            abort = Abort(attempt.request_id, attempt.number)
            self._send(attempt.worker_id, abort)

    def send_on(self, attempt: Attempt, message: RelayChunk | RelayCredit) -> None:
        """Send more of an exchange that was submitted."""
        if attempt.worker_id in self._peers:
            self._send(attempt.worker_id, message)

    def retain(self, worker_id: WorkerId, message: Retain) -> None:
        """Tell the worker what is expected of a conversation whose answer it gave, if its engine
        wants to know. The message is sent with the next frames for the worker, at the latest with a
        ping: the worker needs it only when other work comes, and a separate write would cost as
        much as that of a request.
        """
        peer = self._peers.get(worker_id)
        if peer is not None and peer.retains:
            peer.expectations.append(message)

    def waiting_bytes(self, attempt: Attempt) -> int:
        """Bytes that wait to be sent to the attempt's worker."""
        return self._router.waiting_bytes(attempt.worker_id)

    # What the dispatcher asks (FleetPort).

    def welcome(self, worker_id: WorkerId) -> None:
        peer = self._peers.get(worker_id)
        if peer is None:
            return
        if not peer.is_welcome:
            peer.is_welcome = True
            self._counters.workers_accepted += 1
            _log.info("worker %s joined", peer.name)
        self._send(worker_id, self._welcome)

    def refuse(self, worker_id: WorkerId, reason: str) -> None:
        """See `FleetPort`. The worker asks again every second and gets the reason each time: its
        operator may not see this log.
        """
        reason = reason[:MAX_REASON_CHARS]
        peer = self._forget(worker_id)
        self._dismiss(worker_id, reason)
        self._counters.workers_refused += 1
        name = peer.name if peer is not None else "?"
        # By name, because a worker that starts again has another identity.
        if self._refused.get(name) != reason:
            if len(self._refused) >= MAX_REFUSED:
                del self._refused[next(iter(self._refused))]
            self._refused[name] = reason
            _log.warning("worker %s refused: %s", name, reason)

    def ask_snapshot(self, worker_id: WorkerId) -> None:
        self._send(worker_id, Snapshot())

    def ask_files(self, worker_id: WorkerId, digest: bytes) -> None:
        request = worker_id, digest
        if digest not in self._files and request not in self._requested_files:
            self._requested_files.add(request)
            self._send(worker_id, GetFiles(digest))

    def end_engine(self, worker_id: WorkerId, epoch: int, why: str) -> None:
        if (peer := self._peers.get(worker_id)) is not None:
            _log.warning("worker %s answers no requests (%s); its engine has to go", peer.name, why)
            self._send(worker_id, Distrust(epoch, why))

    def demand(self, demand: Demand) -> None:
        if demand.worker_id in self._peers:
            self._send(
                demand.worker_id,
                Wanted(demand.waiting, demand.running, demand.waited_s, demand.oldest_s),
            )

    # Frames.

    def _on_frame(self, worker_id: WorkerId, frame: bytes) -> None:
        self._counters.frames_received += 1
        with self._step as now:
            if (peer := self._peers.get(worker_id)) is not None:
                peer.heard_at = now
            self._take_frame(worker_id, frame)

    def _take_frame(self, worker_id: WorkerId, frame: bytes, *, is_part: bool = False) -> None:
        try:
            message = decode_from_worker(frame)
        except WireError as error:
            self._take_garbage(worker_id, frame, error)
            return
        if worker_id not in self._peers and not isinstance(message, Register):
            # Either the worker has yet to register, which it does once it notices our silence, or
            # an earlier part of the same bundle made us disconnect it.
            self._counters.frames_from_strangers += 1
            return
        gap: str | None = None
        # Frequent messages are dispatched here: a call for each would cost more than the rest, and
        # a class pattern five times as much as such a comparison.
        kind = type(message)
        if kind is Tokens:
            gap = self._attempts.tokens(worker_id, message.items)  # type: ignore[union-attr] # as `kind` tells
        elif kind is Bundle:
            if is_part:
                self._take_garbage(worker_id, frame, WireError("a bundle in a bundle"))
            else:
                self._unpack(worker_id, message)  # type: ignore[arg-type] # as `kind` tells
        elif kind is Accepted:
            self._attempts.accepted(worker_id, message)  # type: ignore[arg-type] # as `kind` tells
        elif kind is Finished:
            gap = self._attempts.finished(worker_id, message)  # type: ignore[arg-type] # as `kind` tells
        elif kind in _OF_RELAYS:
            gap = self._relayed(worker_id, message)  # type: ignore[arg-type] # as `kind` tells
        else:
            self._take_rest(worker_id, message)  # type: ignore[arg-type] # as `kind` tells
        if gap is not None:
            # Tokens are missing.
            self._counters.offset_gaps += 1
            self._lose(worker_id, gap)

    def _take_rest(self, worker_id: WorkerId, message: _Rare) -> None:
        match message:
            case Embedding() | Scored() | SequenceAlive():
                self._attempts.read(worker_id, message)
            case Rejected():
                if (attempt := self._attempts.of(worker_id, message)) is not None:
                    attempt.end(message)
            case Pong(nonce=nonce):
                self._peers[worker_id].pong = nonce
            case Register():
                self._register(worker_id, message)
            case (
                Progress()
                | BlocksStored()
                | BlocksDropped()
                | StatesSaved()
                | StatesForgotten()
                | BlocksSnapshot()
                | Load()
                | SpeedLoss()
                | Residency()
            ):
                self._dispatcher.heard(worker_id, message)
            case Fault():
                self._fault(worker_id, message)
            case Bye():
                self._dispatcher.heard(worker_id, message)
                self._lose(worker_id, f"left: {message.reason}", has_left=True)
            case Files():
                self._take_files(worker_id, message)
            case _:
                assert_never(message)

    def _relayed(self, worker_id: WorkerId, message: RelayMessage) -> str | None:
        """Hand the message to its attempt. Returns the worker's mistake, if it made one."""
        attempt = self._attempts.of(worker_id, message)
        if attempt is None:
            return None
        if not isinstance(attempt, RelayAttempt):
            return f"{type(message).__name__} came for a sequence of tokens"
        if isinstance(message, RelayEnd) and message.error is None and attempt.status == _OK:
            self._attempts.note_answer(worker_id)
        return attempt.take(message)

    def _unpack(self, worker_id: WorkerId, bundle: Bundle) -> None:
        """Take each part as if it had come alone: garbage in one does not affect the others."""
        for part in bundle.frames:
            self._take_frame(worker_id, part, is_part=True)

    def _take_garbage(self, worker_id: WorkerId, frame: bytes, error: WireError) -> None:
        self._counters.frames_garbage += 1
        if self._counters.frames_garbage <= MAX_GARBAGE_LOGGED:
            _log.warning("garbage from %s: %s", self.worker_name(worker_id), error)
        self._attempts.unreadable(worker_id, frame, error)

    def _fault(self, worker_id: WorkerId, message: Fault) -> None:
        self._counters.engine_faults += 1
        # The event must not hold the engine's own text; the log may.
        _log.warning(
            "engine of %s (epoch %d): %s%s",
            message.worker,
            message.epoch,
            message.cause,
            "".join(f"\n  {line}" for line in message.last_log[-8:]),
        )
        self._dispatcher.heard(worker_id, message)

    def _take_files(self, worker_id: WorkerId, message: Files) -> None:
        request = worker_id, message.digest
        if request not in self._requested_files:
            self._counters.items_stale += 1
            return
        self._requested_files.remove(request)
        try:
            self._files.put(worker_id, message.digest, message.files)
        except ConfigError as error:
            _log.error("files of %s: %s", self.worker_name(worker_id), error)

    def _forget_requests(self, worker_id: WorkerId) -> None:
        """Drop the requests for files that an engine that is gone will not answer."""
        self._requested_files = {one for one in self._requested_files if one[0] != worker_id}

    # Workers that come and go.

    def _register(self, worker_id: WorkerId, message: Register) -> None:
        name = message.worker[:MAX_NAME_CHARS]
        peer = self._peers.setdefault(worker_id, Peer(name, trio.current_time()))
        peer.name = name
        engine = message.engine
        peer.retains = engine is not None and RETAINS in engine.capabilities
        self._forget_requests(worker_id)
        if not self._check_key(worker_id, message.worker):
            return
        digest = b"" if engine is None else engine.files_digest
        lied_at = self._lied_at.get((message.worker, digest), -math.inf)
        if trio.current_time() < lied_at + FALSE_FILES_S:
            self._dispatcher.lost(worker_id, FALSE_FILES)
            self.refuse(worker_id, FALSE_FILES)
        else:
            self._dispatcher.register(worker_id, message)

    def _refuse_false_files(self, worker_id: WorkerId, digest: bytes) -> None:
        """Refuse the worker that sent them, and ask the others that serve with that digest."""
        if (peer := self._peers.get(worker_id)) is not None:
            if len(self._lied_at) >= MAX_REFUSED:
                del self._lied_at[next(iter(self._lied_at))]
            self._lied_at[peer.name, digest] = trio.current_time()
            self._dispatcher.lost(worker_id, FALSE_FILES)
            self.refuse(worker_id, FALSE_FILES)
        for model in self._dispatcher.models():
            if model.files_digest == digest:
                self._dispatcher.ask_files(model.name)

    def _check_key(self, worker_id: WorkerId, name: str) -> bool:
        """Whether the worker's key allows that name; if not, the worker is refused."""
        if self._router.may_use_name(worker_id, name):
            return True
        reason = f"its key is not the one of `{name}` in curve_worker_keys"
        self._dispatcher.lost(worker_id, reason)
        self.refuse(worker_id, reason)
        return False

    def _tell_refused(self, who: str, line: str) -> None:
        """Log a process that the socket refused. It may dial 20 times a second."""
        self._counters.workers_refused += 1
        now = trio.current_time()
        if now < self._told_at.get(who, -math.inf) + TELL_AGAIN_S:
            return
        if len(self._told_at) >= MAX_REFUSED:
            del self._told_at[next(iter(self._told_at))]
        self._told_at[who] = now
        _log.warning("%s", line)

    def _on_unroutable(self, worker_id: WorkerId) -> None:
        if worker_id in self._peers:
            self._counters.peers_unroutable += 1
        self._lose(worker_id, "its connection is gone")

    def _lose(self, worker_id: WorkerId, why: str, *, has_left: bool = False) -> None:
        """Disconnect the worker, and send it the reason unless it `has_left`. The dispatcher moves
        its sequences: their turns ask for new places.
        """
        if self._forget(worker_id) is None:
            return
        self._counters.workers_lost += 1
        self._router.disconnect_peer(worker_id)
        if not has_left:
            self._dismiss(worker_id, why)
        self._dispatcher.lost(worker_id, why)

    def _forget(self, worker_id: WorkerId) -> Peer | None:
        """Forget the worker, with what waits for it or was asked of it. Returns what was known."""
        self._forget_requests(worker_id)
        return self._peers.pop(worker_id, None)

    def _dismiss(self, worker_id: WorkerId, why: str) -> None:
        """Send the reason to a worker that may be alive. If that fails, the closed connection tells
        it as much.
        """
        with suppress(LinkError):
            self._router.send(worker_id, encode(Dismiss(why)))

    def _send(self, worker_id: WorkerId, message: ToWorker) -> None:
        """Send the message; disconnect a worker that cannot be reached."""
        self._send_frames(worker_id, [encode(message)])

    def _send_frames(self, worker_id: WorkerId, frames: list[bytes]) -> bool:
        """Send the frames, behind the expectations that wait. Returns True if the worker could not
        be reached and was disconnected.
        """
        peer = self._peers.get(worker_id)
        if peer is not None and peer.expectations:
            frames = [*map(encode, peer.expectations), *frames]
            peer.expectations.clear()
        try:
            self._router.send_all(worker_id, frames)
        except LinkFull as error:
            self._counters.links_full += 1
            self._lose(worker_id, str(error))
        except LinkError:
            self._on_unroutable(worker_id)
        else:
            return False
        return True

    def _waiting_bytes(self, worker_id: WorkerId) -> int:
        return self._router.waiting_bytes(worker_id)

    # Time.

    async def _watch(self) -> None:
        """Ping every worker, and disconnect one as soon as it has been silent for `SILENCE_S`,
        without waiting for the next ping. Silence is not judged while frames wait unread: otherwise
        an event loop that lags would take its own lag for the death of its workers.
        """
        ping_at = judge_at = looked_at = trio.current_time()
        while True:
            due = min(ping_at, max(judge_at, self._peers.silent_at()))
            await trio.sleep_until(due)
            self.accounts.write()
            now = trio.current_time()
            if now - due > PING_S:
                # This process was held up (a long call, a suspended machine), and libzmq's thread
                # perhaps too: that time does not count as silence of the workers.
                self._peers.excuse(now - due, now)
            silent = self._peers.silent(now)
            if silent and self._router.is_behind():
                judge_at = now + CATCH_UP_S
            else:
                for worker_id, silent_s in silent:
                    self._lose(worker_id, f"silent for {silent_s:.1f} s")
            if now >= ping_at:
                ping_at = next_tick(now, PING_S if self._attempts else REST_PING_S)
                self._ping_all()
                since, looked_at = looked_at, now
                self._attempts.end_overdue(now, partial(self._dispatcher.has_stepped_since, since))

    def _ping_all(self) -> None:
        nonce = next(self._nonces)
        for worker_id in list(self._peers):
            # Sending to one worker may have disconnected another.
            if (peer := self._peers.get(worker_id)) is not None:
                self._send(worker_id, Ping(nonce, peer.pong))
