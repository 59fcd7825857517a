"""The link to one gateway: dial, register, listen, notice silence, bound the unread bytes.

Owns one socket, what is done at each event of the link's life (`link_state.py`), the account of
unread bytes, and the log while the gateway is absent. Frames go to the relay unread. Must not know
the engine.

A link that reconnects after a loss starts without sequences: those here were aborted. So `Bye`
precedes the new `Register`, in case the gateway has not noticed the loss.
"""

import math
from collections import deque
from typing import Final, Protocol, final

import trio

from protocol import wire
from protocol.errors import ConfigError, LinkError, WireError
from protocol.ids import WorkerId
from protocol.messages import (
    LINK_LOST,
    PROTOCOL_VERSION,
    Bundle,
    Bye,
    Dismiss,
    FromWorker,
    Ping,
    Pong,
    Welcome,
)
from protocol.transport import CurveClient, DealerSocket, LocalDealer, is_local
from protocol.wire import encode
from workers.supervisor.link_state import CONNECTED, FORMER, TABLE, LinkEvent, LinkState
from workers.supervisor.log import LogDeduper, WorkerLog
from workers.supervisor.progress_watch import GatewayWatch

MAX_UNREAD_BYTES: Final = 2 * 2**20
"""Some 70,000 tokens; a fast engine sends a fifth of that between two pings."""
MAX_PONGS: Final = 1024
"""Pongs that a gateway has not said to have read, over three minutes of them. The newest say more
than those before, so the oldest are forgotten.
"""


@final
class Credit:
    """The unread bytes of one gateway since it welcomed this worker."""

    def __init__(self) -> None:
        self._num_sent = 0
        self._num_taken = 0
        self._pongs: deque[tuple[int, int]] = deque(maxlen=MAX_PONGS)

    @property
    def is_spent(self) -> bool:
        """Whether the link must not send more for now."""
        return self._num_sent - self._num_taken > MAX_UNREAD_BYTES

    def sent(self, num_bytes: int) -> None:
        """Count bytes that were sent."""
        self._num_sent += num_bytes

    def ponged(self, nonce: int) -> None:
        """Note that the pong `nonce` follows all bytes that were sent until now."""
        self._pongs.append((nonce, self._num_sent))

    def taken(self, nonce: int) -> bool:
        """Note that the gateway has read the pong `nonce`, and all bytes before it; True if that is
        new.
        """
        num_before = self._num_taken
        while self._pongs and self._pongs[0][0] <= nonce:
            self._num_taken = self._pongs.popleft()[1]
        return self._num_taken > num_before


MAX_BUNDLED_BYTES: Final = 2**18
"""A step of 256 tokens has 13 KB. Bundling a larger frame gains nothing, and costs a copy."""


def bundled(frames: list[bytes]) -> list[bytes]:
    """The same messages in the same order, joined into fewer frames. A single frame stays as it
    is.
    """
    if len(frames) < 2:
        return frames
    if sum(map(len, frames)) <= MAX_BUNDLED_BYTES:
        return [_joined(frames)]
    packed: list[bytes] = []
    together: list[bytes] = []
    num_bytes = 0
    for frame in frames:
        if together and num_bytes + len(frame) > MAX_BUNDLED_BYTES:
            packed.append(_joined(together))
            together, num_bytes = [], 0
        together.append(frame)
        num_bytes += len(frame)
    packed.append(_joined(together))
    return packed


def _joined(frames: list[bytes]) -> bytes:
    return frames[0] if len(frames) == 1 else encode(Bundle(tuple(frames)))


TICK_S: Final = 0.1
_REGISTER_EVERY_S: Final = 1.0
"""A gateway answers at once; a gateway that refuses us (our name is taken) may accept us later."""

_UNANSWERED_S: Final = 3.0
"""A gateway that does not answer for this long is reported, once. (A refusal is an answer.)"""

_FLUSH_S: Final = 0.2


class FrameSource(Protocol):
    """The interface that a link calls, synchronously."""

    @property
    def is_shared(self) -> bool:
        """Whether the engine serves several gateways."""

    @property
    def is_leaving(self) -> bool:
        """Whether the worker ends."""

    def greeting(self) -> tuple[FromWorker, ...]:
        """The first messages to a gateway."""

    def join(self, link: "GatewayLink", welcome: Welcome) -> None:
        """The gateway has accepted this worker; give the link a number."""

    def leave(self, link: "GatewayLink") -> None:
        """The gateway is gone; take the link's number back."""

    def from_gateway(self, link: "GatewayLink", frame: bytes) -> None:
        """Take any frame that is not about the link itself, garbage too."""

    def gateway_pauses(self) -> None:
        """All frames that came together have been passed on."""

    def update_pause(self) -> None:
        """Pause or resume the engine: the set of links that are behind has changed."""


@final
class GatewayLink:
    """The link to one gateway. The relay gives it a `number` while the gateway has welcomed this
    worker; otherwise `trouble` is the reason, as far as it is known.
    """

    def __init__(
        self,
        address: str,
        identity: WorkerId,
        relay: FrameSource,
        log: WorkerLog,
        keys: CurveClient | None = None,
        *,
        admits_others: bool = False,
    ) -> None:
        """Start dialling; `admits_others`: the gateway may be of another user of this host. Raises
        `ConfigError` for a bad address.
        """
        self.address = address
        self.number: int | None = None
        self.trouble = ""
        self._relay = relay
        self._log = log
        self._state = LinkState.DIALLING
        self._has_heard = False
        self._register_at = 0.0
        self._greeting: tuple[FromWorker, ...] = ()
        self._credit = Credit()
        self.is_behind = False
        self._watch = GatewayWatch(trio.current_time())
        self._socket = (
            LocalDealer(
                identity,
                self._on_frame,
                on_link=self._link_changed,
                on_pause=self._pause,
                admits_others=admits_others,
            )
            if is_local(address) and keys is None
            else DealerSocket(
                identity,
                self._on_frame,
                keys=keys,
                on_link=self._link_changed,
                on_pause=self._pause,
            )
        )
        try:
            self._socket.connect(address)
        except ConfigError:
            # Left to the garbage collector, an open socket would block this process for ever.
            self._socket.close()
            raise
        self._causes = LogDeduper()
        self._report_at = trio.current_time() + _UNANSWERED_S

    def __repr__(self) -> str:
        return f"<GatewayLink {self.address} {self._state.name} number={self.number}>"

    def send_frame(self, frame: bytes) -> None:
        """Send a frame to the gateway. If the link is full, the whole link is dropped, never single
        frames.
        """
        try:
            self._socket.send(frame)
        except LinkError as error:
            self._drop(str(error))

    def pass_on(self, frames: list[bytes]) -> None:
        """Send frames of the engine that came together, and count their bytes."""
        for frame in bundled(frames):
            if self._state is not LinkState.JOINED:
                return  # the link was full, and dropped with an earlier frame
            self._credit.sent(len(frame))
            self.send_frame(frame)
        self._settle()

    def send(self, message: FromWorker) -> None:
        """Encode and send."""
        self.send_frame(wire.encode(message))

    async def run(self) -> None:
        """Carry frames until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._socket.run)
            while True:
                await trio.sleep(TICK_S)
                self._tick(trio.current_time())

    def close(self) -> None:
        """Close the link after the last frames have gone out."""
        self._socket.close(linger_s=_FLUSH_S)

    def _tick(self, now: float) -> None:
        if not self.is_behind:
            self._watch.took(now)
        verdict = self._watch.verdict(
            now, is_shared=self._relay.is_shared, is_stopped=self._socket.is_peer_stopped
        )
        if self._state is LinkState.JOINED:
            if verdict is not None:
                self._drop(verdict)
        elif self._state in CONNECTED and now - self._register_at >= _REGISTER_EVERY_S:
            self._register(now)
        failure = self._socket.statistics().last_failure
        if failure is not None:
            self._report_trouble(failure, now)
        elif self._state is not LinkState.JOINED and now >= self._report_at:
            self._report_at = math.inf
            self.trouble = f"it has not answered for {_UNANSWERED_S:g} s"
            # `herma up` starts the gateway at the same time, and itself reports the gateway's end.
            write = self._log.info if self._state in FORMER else self._log.info_unless_shared
            write(f"gateway {self.address} has not answered for {_UNANSWERED_S:g} s; dialling on")

    def _link_changed(self, is_up: bool) -> None:
        if self._state is LinkState.JOINED:
            self._drop("the connection is lost")
        self._state = TABLE[self._state, LinkEvent.UP if is_up else LinkEvent.DOWN]
        if is_up:
            self._causes.clear()
            self._socket.drop_waiting()
            self._register(trio.current_time())

    def _register(self, now: float) -> None:
        self._register_at = now
        before, self._state = self._state, TABLE[self._state, LinkEvent.REGISTER]
        if before in FORMER:
            self.send(Bye(LINK_LOST))
        self._greet()

    def _greet(self) -> None:
        self._greeting = self._relay.greeting()
        for message in self._greeting:
            self.send(message)

    def _pause(self) -> None:
        """Pass frames on, then update the watch."""
        self._relay.gateway_pauses()
        if self._has_heard:
            self._has_heard = False
            self._watch.heard(trio.current_time())

    def _on_frame(self, frame: bytes) -> None:
        self._has_heard = True
        try:
            about_link = wire.peek_tag(frame) in _ABOUT_THE_LINK and wire.decode_to_worker(frame)
        except WireError:
            about_link = False
        match about_link:
            case False:
                self._relay.from_gateway(self, frame)
            case Ping():
                self._pinged(about_link)
            case Welcome() if self._state is LinkState.REGISTERING:
                self._welcomed(about_link)
            case Dismiss(reason=reason) if self._state is LinkState.JOINED:
                self._drop(f"it gave this worker up ({reason})")
            case Dismiss(reason=reason):
                self._refused(reason)
            case _:
                pass  # a second welcome, or one of an earlier registration

    def _pinged(self, ping: Ping) -> None:
        self.send(Pong(ping.nonce))
        self._credit.ponged(ping.nonce)
        if self._credit.taken(ping.last_pong):
            self._watch.took(trio.current_time())
            self._settle()

    def _settle(self) -> None:
        if self._credit.is_spent != self.is_behind:
            self.is_behind = self._credit.is_spent
            self._relay.update_pause()

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.protocol_version != PROTOCOL_VERSION:
            self._refused(
                f"it speaks protocol {welcome.protocol_version}, this worker {PROTOCOL_VERSION}; "
                "run the same version on both"
            )
            return
        self._state = TABLE[self._state, LinkEvent.WELCOME]
        self.trouble = ""
        self._causes.clear()
        self._credit = Credit()
        self._relay.join(self, welcome)
        if self._relay.greeting() != self._greeting:
            # The engine became ready, or died, while the welcome was on its way.
            self._greet()
        self._log.info_unless_shared(f"gateway {self.address} has welcomed this worker")

    def _refused(self, reason: str) -> None:
        """Note a refusal. Registration is repeated."""
        now = trio.current_time()
        self._report_at = now + _UNANSWERED_S
        self._report_trouble(f"it does not take this worker: {reason}", now)

    def _drop(self, reason: str) -> None:
        """Drop the gateway's work and frames; the next tick registers again."""
        if self._state is LinkState.JOINED:
            self._state = TABLE[self._state, LinkEvent.DROP]
            self.trouble = reason
            # Ctrl-C at `herma up` ends both: the gateway that is gone first is no news there.
            write = self._log.info_unless_shared if self._relay.is_leaving else self._log.info
            if not (self._relay.is_leaving or self._log.beside_gateway):
                write = self._log.warning
            write(f"gateway {self.address} is gone: {reason}; what ran for it is aborted")
            self._relay.leave(self)
            self._report_at = trio.current_time() + _UNANSWERED_S
        self._socket.drop_waiting()
        self._credit = Credit()
        self._settle()

    def _report_trouble(self, trouble: str, now: float) -> None:
        """Log once why the gateway has not welcomed this worker: the host may have no other log."""
        self.trouble = trouble
        if self._causes.is_news(trouble, now):
            self._log.warning(f"gateway {self.address}: {trouble}; dialling on")


_ABOUT_THE_LINK: Final = frozenset(wire.tag_of(kind) for kind in (Welcome, Ping, Dismiss))
