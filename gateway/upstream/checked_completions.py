"""Bodies that pass through: bounded in their silences, and those that answer raw prompts held until
they have begun, and to their ends.

Owns how the stream of such an answer is read in pieces. Its bytes pass unchanged, but an error, an
end that is none and what follows the end do not pass. Must not know connections.
"""

from typing import final

import trio

from gateway.api import DONE
from gateway.upstream.relay import BadStream, StreamRelay
from gateway.upstream.sse import ProviderEventSplitter
from gateway.upstream.stream_end import StreamEnd
from gateway.upstream.usage import StreamUsage
from protocol.errors import HttpError, ReadTimeout
from protocol.transport import Body


@final
class CheckedStream(Body):
    """The whole events of `body`. The last `[DONE]` may be missing behind a `finish_reason`: if
    the request `asks_one` answer, however the connection ends; else in an orderly end of a body
    that `tells_end`. Reading raises `BadStream`.
    """

    def __init__(self, body: Body, *, asks_one: bool, tells_end: bool) -> None:
        self._body = body
        self._asks_one = asks_one
        self._tells_end = tells_end
        self._splitter = ProviderEventSplitter()
        self._passed: list[bytes] = []
        self._is_over = False
        self._problem: BadStream | None = None
        usage = StreamUsage(lambda _: None, is_ours=False)
        # A list of prompts makes several choices of one, so every chunk is looked at.
        end = StreamEnd({"n": 0})
        self._relay = StreamRelay(self._passed.append, usage, lambda: True, end, is_raw=True)

    async def begin(self) -> None:
        """Read until the answer has begun."""
        while not self._relay.has_begun and not self._is_over:
            await self._read()
        if not self._relay.has_begun:
            raise self._problem or BadStream("ended its stream without an answer")

    async def __anext__(self) -> bytes:
        while not self._passed:
            if self._problem is not None:
                raise self._problem
            if self._is_over:
                raise StopAsyncIteration
            await self._read()
        data = b"".join(self._passed)
        self._passed.clear()
        return data

    async def _read(self) -> None:
        """Read more. A problem is raised once what came before it was passed on."""
        try:
            await self._read_on()
        except BadStream as error:
            self._problem, self._is_over = error, True

    async def _read_on(self) -> None:
        try:
            data = await self._body.__anext__()
        except (StopAsyncIteration, HttpError) as end:
            may_end = self._asks_one or (self._tells_end and not isinstance(end, HttpError))
            if isinstance(end, HttpError) and not (may_end and self._relay.is_finished):
                raise
            self._is_over = True
            self._relay.take(self._splitter.flush())
            if not self._splitter.is_done:
                if not (may_end and self._relay.is_finished):
                    raise BadStream("ended its stream early") from None
                self._relay.take(DONE)
            return
        self._relay.take(self._splitter.push(data))
        self._is_over = self._splitter.is_done


@final
class WholeBody(Body):
    """A body that has arrived."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __anext__(self) -> bytes:
        if not self._data:
            raise StopAsyncIteration
        data, self._data = self._data, b""
        return data


@final
class BegunBody(Body):
    """A body of which the beginning has arrived."""

    def __init__(self, begun: bytes, rest: Body) -> None:
        self._begun = begun
        self._rest = rest

    async def __anext__(self) -> bytes:
        if self._begun:
            data, self._begun = self._begun, b""
            return data
        return await self._rest.__anext__()


@final
class BoundedBody(Body):
    """A body; iterating raises `ReadTimeout` after `silence_s` without a byte."""

    def __init__(self, body: Body, silence_s: float) -> None:
        self._body = body
        self._silence_s = silence_s

    async def __anext__(self) -> bytes:
        with trio.move_on_after(self._silence_s):
            return await self._body.__anext__()
        raise ReadTimeout(f"no byte for {self._silence_s:g} s")
