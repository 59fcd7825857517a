"""Routes frames between gateways and the engine, and answers frames for the supervisor itself.

Owns the welcomed links, their numbers and what gateways know of the engine (epoch, facts, last
fault); its state is in the `Lifecycle`. All calls are synchronous: a frame comes in and goes out in
one call, with its tokens undecoded. Must not know processes, sockets or when the engine is
restarted.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol, final

from protocol import wire
from protocol.addresses import sibling_address
from protocol.errors import WireError
from protocol.messages import (
    ASLEEP,
    MAX_FIGURE_CHARS,
    MAX_FIGURES,
    MAX_WHY_CHARS,
    PROTOCOL_VERSION,
    TAKES_TURNS,
    Abort,
    Distrust,
    Drain,
    Embed,
    EngineFacts,
    Fault,
    FaultKind,
    Files,
    FromWorker,
    GetFiles,
    Progress,
    Register,
    Rejected,
    RejectReason,
    Relay,
    RelayChunk,
    RelayCredit,
    Residency,
    ResidencyState,
    Retain,
    Score,
    Snapshot,
    SpeedLoss,
    Submit,
    Wanted,
    Welcome,
)
from workers.ipc import (
    BROADCAST,
    MAX_LINK,
    SUPERVISOR,
    DropLink,
    encode_control,
    recover_request_id,
)
from workers.model_dir import ModelFiles
from workers.supervisor.gateway_link import GatewayLink
from workers.supervisor.identity import WorkerIdentity
from workers.supervisor.lifecycle import REFUSALS, EngineState, Lifecycle
from workers.supervisor.log import WorkerLog


class EngineFrames(Protocol):
    """The part of the engine's process that the relay uses."""

    def put(self, link: int, payload: bytes) -> None:
        """Queue a frame for the next `flush`."""

    def flush(self) -> None:
        """Write the queued frames."""

    def pause(self, is_paused: bool) -> None:
        """Stop or resume reading the engine, which then waits with its next step."""


OnDemand = Callable[[int, Wanted | None], None]

_WORK: Final = frozenset(wire.tag_of(kind) for kind in (Submit, Relay, Embed, Score))
_TO_ENGINE: Final = frozenset(
    wire.tag_of(kind) for kind in (Abort, Snapshot, RelayChunk, RelayCredit, Retain)
)


@final
class FrameRelay:
    """`on_work` is called after submissions went to the engine, `on_drain` when a gateway asks the
    worker to drain, `on_siblings` with the addresses of a gateway's siblings. `on_demand` gets the
    demand of a gateway by the number of its link, and None once that link is gone.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        log: WorkerLog,
        lifecycle: Lifecycle,
        *,
        on_work: Callable[[], None],
        on_drain: Callable[[float], None],
        on_distrust: Callable[[str], None],
        on_siblings: Callable[[Iterable[str]], None],
        on_demand: OnDemand | None = None,
    ) -> None:
        self.epoch = 1
        self._residency: Residency | None = None
        self._on_demand = on_demand
        self._lifecycle = lifecycle
        self.num_garbage = 0
        self._identity = identity
        self._log = log
        self._on_work = on_work
        self._on_drain = on_drain
        self._on_distrust = on_distrust
        self._on_siblings = on_siblings
        self._links: dict[int, GatewayLink] = {}
        self._last_number = SUPERVISOR
        self._facts: EngineFacts | None = None
        self._files: ModelFiles | None = None
        self._fault: Fault | None = None
        self._speed_loss: SpeedLoss | None = None
        self._engine: EngineFrames | None = None
        # Gateways know the engine of this epoch, so they must learn of its end.
        self._is_known = False
        # The last engine, also while it ends: a paused engine could not read its shutdown.
        self._pausable: EngineFrames | None = None
        self._has_put_work = False

    # The engine's life.

    def engine_starts(self, engine: EngineFrames) -> None:
        """Take a new process. Gateways are notified once it is ready."""
        self._engine = self._pausable = engine
        self.update_pause()

    def engine_progress(self, phase: str, fraction: float, detail: str) -> None:
        """Report the progress of a start."""
        self.broadcast(Progress(self.epoch, phase, fraction, detail))

    def engine_ready(self, facts: EngineFacts, files: ModelFiles) -> None:
        """The health probe has passed: notify every gateway."""
        self._facts, self._files, self._fault = facts, files, None
        if self._lifecycle.hold.is_on:
            return
        self._is_known = True
        self.broadcast(self._registration())
        if self._residency is not None:
            self.broadcast(self._residency)

    def engine_slower(self, figures: tuple[str, ...], num_changes: int) -> None:
        """Report that the engine is over 10 % slower than at its last good start, or no longer, to
        every gateway, also to those that join later.
        """
        if not figures and self._speed_loss is None:
            return
        shown = tuple(one[:MAX_FIGURE_CHARS] for one in figures[:MAX_FIGURES])
        loss = SpeedLoss(self.epoch, shown, num_changes)
        self._speed_loss = loss if shown else None
        if not self._lifecycle.hold.is_on:
            self.broadcast(loss)

    def engine_gone(
        self,
        cause: str,
        exit_code: int | None,
        last_log: tuple[str, ...],
        *,
        is_final: bool,
        kind: FaultKind,
    ) -> None:
        """Notify every gateway at once that the work of this epoch is lost."""
        name = self._identity.worker
        self._fault = Fault(name, self.epoch, cause, exit_code, last_log, is_final, kind)
        self._facts = self._files = self._engine = None
        if self._is_known or not self._lifecycle.hold.is_on:
            self.broadcast(self._fault)
        self._is_known = False

    def engine_restarts(self) -> None:
        """Begin the next epoch; an engine follows. The work of the old epoch is lost, also when an
        engine without a fault is replaced.
        """
        self.epoch += 1
        self._facts = self._files = self._fault = self._engine = None
        self._is_known = False
        self.broadcast(self._registration())

    def end_hold(self, *, drops_engine: bool = False) -> None:
        """The hold is over: notify every gateway of the engine's state. `drops_engine`: this engine
        must not serve, and another follows.
        """
        if drops_engine:
            self._facts = self._files = self._fault = None
        if self._facts is not None:
            self._is_known = True
        for message in self.greeting():
            self.broadcast(message)

    def resides(self, state: ResidencyState, due_s: float, trouble: str) -> None:
        """Report to every gateway, also to those that join later, whether a worker that takes
        turns is awake, asleep or between both. That it is awake follows the registration of its
        engine: a gateway that heard it before would take the worker for one without an engine, and
        send the requests that wait for it to providers.
        """
        said = Residency(self.epoch, state, due_s, trouble[:MAX_WHY_CHARS])
        if said == self._residency:
            return
        self._residency = said
        if state != "awake" or self._facts is not None or self._lifecycle.hold.is_on:
            self.broadcast(said)

    def reconfigured(self, identity: WorkerIdentity) -> None:
        """Use the identity of another configuration from the next registration on."""
        self._identity = identity

    def from_engine(self, frames: Iterable[tuple[int, bytes]]) -> None:
        """Pass (link, payload) pairs on unread, the frames for one gateway together. Drops frames
        for a link that is gone.
        """
        by_link: dict[GatewayLink, list[bytes]] = {}
        for number, payload in frames:
            if number == BROADCAST:
                for each in self._links.values():
                    by_link.setdefault(each, []).append(payload)
            elif (one := self._links.get(number)) is not None:
                by_link.setdefault(one, []).append(payload)
        for link, payloads in by_link.items():
            link.pass_on(payloads)

    def update_pause(self) -> None:
        """Pause the engine while any gateway is behind."""
        if self._pausable is not None:
            self._pausable.pause(any(link.is_behind for link in self._links.values()))

    def broadcast(self, message: FromWorker) -> None:
        """Send a message to every gateway that has welcomed this worker."""
        self.from_engine([(BROADCAST, wire.encode(message))])

    # The gateways' links.

    @property
    def _serves(self) -> bool:
        """Whether gateways may submit work. An engine without facts is a rank, which has no API."""
        return self._lifecycle.state is EngineState.READY and self._facts is not None

    @property
    def is_shared(self) -> bool:
        """Whether several gateways have welcomed this worker."""
        return len(self._links) > 1

    @property
    def is_leaving(self) -> bool:
        """Whether the worker ends: no engine follows."""
        return self._lifecycle.state is EngineState.LEAVING

    def greeting(self) -> tuple[FromWorker, ...]:
        """The first messages to a gateway: the registration, then the fault after the last failed
        start, or the speed loss of a slow engine.
        """
        said: list[FromWorker] = [self._registration()]
        if self._residency is not None:
            said.append(self._residency)
        if self._lifecycle.hold.is_on:
            return tuple(said)
        lost = self._speed_loss
        if self._fault is not None:
            said.append(self._fault)
        elif lost is not None and lost.epoch == self.epoch and self._facts is not None:
            said.append(lost)
        return tuple(said)

    def join(self, link: GatewayLink, welcome: Welcome) -> None:
        """Number the link. Numbers are not reused soon, so that no frame of an earlier life of the
        link reaches its gateway.
        """
        number = self._last_number % MAX_LINK + 1
        while number in self._links:
            number = number % MAX_LINK + 1
        self._last_number = link.number = number
        self._links[number] = link
        self._on_siblings(sibling_address(one, link.address) for one in welcome.gateways)

    def leave(self, link: GatewayLink) -> None:
        """Abort the gateway's sequences."""
        if link.number is None:
            return
        del self._links[link.number]
        if self._on_demand is not None:
            self._on_demand(link.number, None)
        if self._engine is not None:
            self._engine.put(SUPERVISOR, encode_control(DropLink(link.number)))
            self._engine.flush()
        link.number = None

    def from_gateway(self, link: GatewayLink, frame: bytes) -> None:
        """Pass submissions, aborts and snapshots on unread; answer other frames here."""
        tag = wire.peek_tag(frame)
        if tag in _WORK:
            self._submission(link, frame)
        elif tag in _TO_ENGINE:
            if link.number is not None and self._facts is not None and self._engine is not None:
                self._engine.put(link.number, frame)
        else:
            try:
                self._answer(link, frame)
            except WireError as error:
                self._count_garbage(link, error)

    def gateway_pauses(self) -> None:
        """Flush frames that came together: the engine wakes once, and plans one step."""
        if self._engine is not None:
            self._engine.flush()
        if self._has_put_work:
            self._has_put_work = False
            self._on_work()

    def _submission(self, link: GatewayLink, frame: bytes) -> None:
        if link.number is None:
            self._refuse(link, frame, "not_ready", "the link starts anew")
        elif self._serves and self._engine is not None:
            self._engine.put(link.number, frame)
            self._has_put_work = True
        else:
            self._refuse(link, frame, *REFUSALS[self._lifecycle.state])

    def _refuse(self, link: GatewayLink, frame: bytes, reason: RejectReason, detail: str) -> None:
        if (ids := recover_request_id(frame)) is not None:
            link.send(Rejected(*ids, reason, detail))
        else:
            self._count_garbage(link, WireError("a submission without a request id"))

    def _answer(self, link: GatewayLink, frame: bytes) -> None:
        match wire.decode_to_worker(frame):
            case GetFiles(digest=digest):
                self._send_files(link, digest)
            case Drain(deadline_s=deadline_s):
                self._on_drain(deadline_s)
            case Distrust(epoch=epoch, why=why):
                # Each of several gateways may report it; the first report ends the engine.
                if epoch == self.epoch and self._facts is not None:
                    self._log.warning(f"gateway {link.address} gets no answers: {why}")
                    self._on_distrust(why)
            case Wanted() as wanted:
                if self._on_demand is not None and link.number is not None:
                    self._on_demand(link.number, wanted)
            case message:
                raise WireError(f"{type(message).__name__} out of place")

    def _send_files(self, link: GatewayLink, digest: bytes) -> None:
        if self._files is not None and digest == self._files.digest:
            link.send(Files(digest, self._files.files))
        else:
            self._log.warning(f"gateway {link.address} asks for files {digest.hex()}, not here")

    def _count_garbage(self, link: GatewayLink, error: WireError) -> None:
        self.num_garbage += 1
        # Powers of two: a flood of garbage must not become a flood of lines.
        if self.num_garbage & (self.num_garbage - 1) == 0:
            self._log.warning(
                f"gateway {link.address}: bad frame (no. {self.num_garbage}): {error}"
            )

    def _registration(self) -> Register:
        return Register(
            protocol_version=PROTOCOL_VERSION,
            worker=self._identity.worker,
            models=self._identity.models,
            build=self._identity.build,
            config_hash=self._identity.config_hash,
            epoch=self.epoch,
            engine=None if self._lifecycle.hold.is_on else self._facts,
            capabilities=self._of_turns(),
        )

    def _of_turns(self) -> tuple[str, ...]:
        if self._residency is None:
            return ()
        is_awake = self._residency.state == "awake"
        return (TAKES_TURNS,) if is_awake else (TAKES_TURNS, ASLEEP)
