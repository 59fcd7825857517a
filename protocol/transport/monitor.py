"""What happens to the one connection of a DEALER.

Owns libzmq's monitor socket and what its events mean for a link. Must not know frames.
"""

from collections.abc import Callable
from typing import Final, final

import zmq

from protocol.transport.pump import Pump
from protocol.transport.sockets import NOBLOCK

_DIALLING: Final = frozenset(
    {zmq.Event.CONNECT_DELAYED, zmq.Event.CONNECT_RETRIED, zmq.Event.CONNECTED}
)
_FAILURES: Final[dict[int, str]] = {
    zmq.Event.HANDSHAKE_FAILED_AUTH: "the gateway does not accept this worker's public key",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: (
        "only one side has CURVE keys, or the other side is no gateway"
    ),
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: (
        "the handshake broke off: wrong gateway key, keys on one side only, or no gateway"
    ),
}
_WATCHED: Final = (
    zmq.Event.CONNECT_DELAYED
    | zmq.Event.CONNECT_RETRIED
    | zmq.Event.CONNECTED
    | zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.DISCONNECTED
)


@final
class LinkMonitor:
    """Follows one dialled connection; `on_change(is_up)` is synchronous."""

    def __init__(self, socket: zmq.Socket[bytes], on_change: Callable[[bool], None]) -> None:
        # It brings asyncio along, which no gateway needs.
        from zmq.utils.monitor import parse_monitor_message  # noqa: PLC0415

        self._parse = parse_monitor_message
        self._dealer = socket
        self._on_change = on_change
        self._socket = socket.get_monitor_socket(_WATCHED)
        self._pump = Pump(self._socket, self._receive)
        self.is_up = False
        self.is_idle = False
        self.last_failure: str | None = None

    async def run(self) -> None:
        """Follow events until cancelled or closed."""
        await self._pump.run()

    def close(self) -> None:
        """Stop following."""
        self._dealer.disable_monitor()
        self._pump.close()

    def _receive(self) -> None:
        event = self._parse(self._socket.recv_multipart(NOBLOCK))["event"]
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            self.last_failure = None
            self._change(is_up=True)
        elif event == zmq.Event.DISCONNECTED:
            self.is_idle = True
            self._change(is_up=False)
        elif event in _DIALLING:
            self.is_idle = False
        else:
            self.last_failure = _FAILURES.get(event, self.last_failure)

    def _change(self, *, is_up: bool) -> None:
        if is_up != self.is_up:
            self.is_up = is_up
            self._on_change(is_up)
