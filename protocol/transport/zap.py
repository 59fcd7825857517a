"""The door: which public keys get in (ZeroMQ RFC 27, ZAP).

Owns the answer to libzmq's question in a CURVE handshake. The answer carries the public key as
User-Id, which every later frame of that connection brings along. Must not know names.
"""

from typing import Final, final

import zmq
from zmq.utils import z85

from protocol.transport.curve import ZAP_DOMAIN
from protocol.transport.pump import Pump
from protocol.transport.sockets import NOBLOCK

_ENDPOINT: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_NUM_PARTS: Final = 7
"""Version, request id, domain, address, identity, mechanism, and for CURVE one credential."""


@final
class ZapDoor:
    """Answers the handshakes of all sockets of one context."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], public_keys: frozenset[str]
    ) -> None:
        self._public_keys = public_keys
        self._socket = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(_ENDPOINT)
        self._pump = Pump(self._socket, self._receive)
        self.num_refused = 0

    async def run(self) -> None:
        """Answer until cancelled or closed."""
        await self._pump.run()

    def close(self) -> None:
        """Close the socket; handshakes then fail."""
        self._pump.close()

    def _receive(self) -> None:
        question = self._socket.recv_multipart(NOBLOCK)
        key = self._accepted_key(question)
        if key is None:
            self.num_refused += 1
            status, text = b"400", b"this public key is not configured"
        else:
            status, text = b"200", b"OK"
        self._socket.send_multipart(
            [_VERSION, question[1], status, text, (key or "").encode(), b""], NOBLOCK
        )

    def _accepted_key(self, question: list[bytes]) -> str | None:
        if len(question) != _NUM_PARTS:
            return None
        version, _, domain, _, _, mechanism, credential = question
        if (version, domain, mechanism) != (_VERSION, ZAP_DOMAIN, b"CURVE"):
            return None
        key = z85.encode(credential).decode("ascii")
        return key if key in self._public_keys else None
