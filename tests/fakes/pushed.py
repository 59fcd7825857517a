"""A server that pushes, without a network: what is pushed joins what an `Exchange` has sent."""

from collections.abc import Sequence

import trio
from starlette.types import ASGIApp

from gateway.http.reply import Header
from gateway.http.response_writer import EXTENSION, MAX_PENDING_BYTES, Look
from tests.fakes.asgi import Exchange


class FakePush:
    """A `ResponseWriter` whose peer takes everything at once, or nothing while the exchange does
    not read.

    It looks at the clock at exact times, which our server need not.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._num_waiting_bytes = 0
        self.wrote_at = 0.0
        self.is_gone = False
        self.num_refused = 0
        self._is_watched = False

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        self.open(status, headers)
        self.end(body)

    def open(self, status: int, headers: Sequence[Header]) -> None:
        assert not self._exchange.writes
        self._note({"type": "http.response.start", "status": status, "headers": list(headers)})

    def watch(self, look: Look, at: float) -> None:
        self._is_watched = True
        trio.lowlevel.spawn_system_task(self._watch, look, at)

    def unwatch(self) -> None:
        self._is_watched = False

    async def _watch(self, look: Look, at: float) -> None:
        while True:
            await trio.sleep_until(at)
            if self._is_over or not self._is_watched:
                break
            at = look(trio.current_time())

    @property
    def _is_over(self) -> bool:
        writes = self._exchange.writes
        return bool(writes) and not writes[-1][1].get("more_body", True)

    def write(self, chunk: bytes) -> bool:
        self.wrote_at = trio.current_time()
        if not self._exchange.reads:
            self._num_waiting_bytes += len(chunk)
        if self.is_gone or self._num_waiting_bytes > MAX_PENDING_BYTES:
            self._num_waiting_bytes -= len(chunk)
            self.num_refused += 1
            return False
        self._part(chunk, more=True)
        return True

    def end(self, last: bytes = b"") -> None:
        self._part(last, more=False)

    async def flushed(self) -> None:
        raise AssertionError("the server itself waits for that")

    def _part(self, chunk: bytes, *, more: bool) -> None:
        if self.is_gone:
            return
        _, last = self._exchange.writes[-1]
        assert last.get("more_body", True), "nothing may follow the end"
        self._note({"type": "http.response.body", "body": chunk, "more_body": more})

    def _note(self, message: dict[str, object]) -> None:
        self._exchange.writes.append((trio.current_time(), message))


def pushed_exchange(app: ASGIApp, body: bytes) -> tuple[Exchange, FakePush]:
    """An exchange with a server that pushes."""
    exchange = Exchange(app, body=body)
    push = FakePush(exchange)
    exchange.extensions[EXTENSION] = push
    return exchange, push
