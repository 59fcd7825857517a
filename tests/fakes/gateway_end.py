"""The gateway's end of a worker link for tests: a real ROUTER that welcomes, pings and records."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from protocol import wire
from protocol.errors import PeerUnknown
from protocol.ids import WorkerId
from protocol.messages import (
    PROTOCOL_VERSION,
    Bundle,
    FromWorker,
    Ping,
    Pong,
    Register,
    Snapshot,
    Submit,
    TokenItem,
    Tokens,
    ToWorker,
    Welcome,
)
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens, unpack_tokens
from protocol.transport import LocalRouter, RouterSocket, is_local

M = TypeVar("M")
BOUND_S = 120.0
REGULAR_NONCES = 1_000_000
"""The largest nonce of the regular pings. Pongs with higher nonces are recorded."""
JOINED_NONCE = 2 * REGULAR_NONCES


class GatewayEnd:
    """Every message of the workers in order, `heard`, and as they came together, `bundles`; pings
    every 0.1 s unless told not to. Without `acknowledges` its pings say that it has not read
    anything.
    """

    def __init__(self, address: str = "tcp://127.0.0.1:*") -> None:
        self.heard: list[FromWorker] = []
        self.received_bytes = 0
        self.peer: WorkerId | None = None
        self.siblings: tuple[str, ...] = ()
        self.protocol_version = PROTOCOL_VERSION
        self.pings = True
        self.acknowledges = True
        self._newest_pong = 0
        self._news = trio.Event()
        self._closed = trio.Event()
        self.lost: list[WorkerId] = []
        self.bundles: list[list[FromWorker]] = []
        router = LocalRouter if is_local(address) else RouterSocket
        self._router = router(self._take, self.lost.append)
        self.address = self._router.bind(address)

    def send(self, message: ToWorker) -> None:
        self.send_frame(wire.encode(message))

    def send_frame(self, frame: bytes) -> None:
        assert self.peer is not None
        self._router.send(self.peer, frame)

    def all_of(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def wait(self, kind: type[M], accepts: Callable[[M], bool] = lambda _: True) -> M:
        """The first message of that kind that `accepts` takes, among all so far or to come."""
        with trio.fail_after(BOUND_S):
            while True:
                for message in self.all_of(kind):
                    if accepts(message):
                        return message
                await self._news.wait()

    async def wait_joined(self) -> None:
        """Return once the worker has taken the Welcome: from then on it tells all that happens."""
        await self.wait(Register)
        self.send(Ping(JOINED_NONCE))
        await self.wait(Pong, lambda m: m.nonce == JOINED_NONCE)

    async def wait_ready(self, epoch: int = 1) -> Register:
        return await self.wait(Register, lambda m: m.engine is not None and m.epoch == epoch)

    def items_of(self, request_id: bytes) -> list[TokenItem]:
        items = (item for tokens in self.all_of(Tokens) for item in tokens.items)
        return [item for item in items if item.request_id == request_id]

    def ids_of(self, request_id: bytes) -> list[int]:
        return [i for item in self.items_of(request_id) for i in unpack_tokens(item.ids)]

    def close(self) -> None:
        """Vanish, as a killed gateway does."""
        self._router.close()
        self._closed.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._router.run)
            nonce = 0
            while not self._closed.is_set():
                await trio.sleep(0.1)
                nonce += 1
                if self.peer is not None and self.pings and not self._closed.is_set():
                    heard = self._newest_pong if self.acknowledges else 0
                    self._send_if_there(Ping(nonce, heard))

    def _send_if_there(self, message: ToWorker) -> None:
        if self.peer is None:
            return
        try:
            self.send(message)
        except PeerUnknown:
            self.peer = None

    def _take(self, peer: WorkerId, frame: bytes) -> None:
        self.peer = peer
        self.received_bytes += len(frame)
        message = wire.decode_from_worker(frame)
        parts = message.frames if isinstance(message, Bundle) else (frame,)
        messages = [wire.decode_from_worker(part) for part in parts]
        self.bundles.append(messages)
        for each in messages:
            self._take_one(each)

    def _take_one(self, message: FromWorker) -> None:
        if isinstance(message, Register):
            self._send_if_there(Welcome(self.protocol_version, bytes(16), 1, self.siblings))
            if message.engine is not None:
                self._send_if_there(Snapshot())
        if isinstance(message, Pong) and message.nonce <= REGULAR_NONCES:
            self._newest_pong = message.nonce
        else:
            self.heard.append(message)
            self._news.set()
            self._news = trio.Event()


@asynccontextmanager
async def open_gateway_end(address: str = "tcp://127.0.0.1:*") -> AsyncIterator[GatewayEnd]:
    """A bound gateway end whose pump runs inside the block."""
    end = GatewayEnd(address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end.run)
        yield end
        nursery.cancel_scope.cancel()


def submission(
    request_id: bytes, *, max_tokens: int = 8, prompt: int = 40, seed: int = 7
) -> Submit:
    """A request of `prompt` tokens for the model `echo`."""
    return Submit(
        request_id=request_id,
        attempt=1,
        model="echo",
        prompt_ids=pack_tokens(range(10, 10 + prompt)),
        output_ids=b"",
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        seed=seed,
    )
