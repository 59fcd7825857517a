"""What counts as silence of a provider: bytes that are no part of an answer do."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from config import ProviderConfig
from gateway.upstream import Provider, ProviderCut, ProviderUnavailable
from protocol.transport import Body, HttpResponse

RAW: Final[dict[str, Any]] = {"model": "m", "messages": [], "stream": True}
WORD: Final = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LAST: Final = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE: Final = b"data: [DONE]\n\n"
READ_S: Final = 3.0
FIRST_S: Final = 20.0
ANSWER_S: Final = 40.0

PINGS: Final = {
    "comment": b": keep-alive\n\n",
    "blank": b"\n\n",
    "line by line": b"\n",
    "empty delta": b'data: {"choices":[{"delta":{"content":""}}]}\n\n',
    "role": b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n',
    "no choices": b'data: {"choices":[]}\n\n',
    "hollow": b"event: ping\n\n",
    "part of an event": b" ",
}


class Pieces(Body):
    """Gives a piece each 0.2 s."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    async def __anext__(self) -> bytes:
        await trio.sleep(0.2)
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration


class Server:
    """A client whose responses are these pieces."""

    def __init__(self, pieces: Callable[[], Iterator[bytes]]) -> None:
        self._pieces = pieces

    @asynccontextmanager
    async def exchange(self, *_: object, **__: object) -> AsyncIterator[HttpResponse]:
        yield HttpResponse(200, [], Pieces(self._pieces()))


def provider_of(pieces: Callable[[], Iterator[bytes]]) -> Provider:
    config = ProviderConfig(
        base_url="http://far/v1", read_s=READ_S, first_token_s=FIRST_S, answer_s=ANSWER_S
    )
    return Provider("far", config, None, Server(pieces))


def for_ever(*first: bytes, then: bytes) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield from first
        while True:
            yield then

    return pieces


@pytest.mark.parametrize("ping", list(PINGS))
async def test_a_stream_that_only_pings_after_content_is_cut(
    autojump_clock: MockClock, ping: str
) -> None:
    """A stream that only pings after content is cut after `read_s` without a part of the answer,
    whatever else comes.
    """
    events: list[bytes] = []
    provider = provider_of(for_ever(WORD, WORD, then=PINGS[ping]))
    with trio.fail_after(2 * READ_S), pytest.raises(ProviderCut, match="silent for too long"):
        await provider.stream(RAW, "m", events.append)
    assert b"".join(events).count(WORD) == 2


@pytest.mark.parametrize("ping", ["comment", "empty delta", "role", "blank"])
async def test_pings_before_content_are_legal_up_to_the_first_token(
    autojump_clock: MockClock, ping: str
) -> None:
    """A provider that queues a request sends pings for longer than `read_s`."""
    began_at = trio.current_time()
    with pytest.raises(ProviderUnavailable, match="gave no first token in 20 s"):
        await provider_of(for_ever(then=PINGS[ping])).stream(RAW, "m", lambda _: None)
    assert trio.current_time() - began_at == pytest.approx(FIRST_S)


async def test_slow_words_among_pings_are_an_answer(autojump_clock: MockClock) -> None:
    """Each word lets it be silent for `read_s` again."""

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield WORD
            yield from [PINGS["comment"]] * 10
        yield LAST
        yield DONE

    events: list[bytes] = []
    assert await provider_of(pieces).stream(RAW, "m", events.append) is None
    assert b"".join(events).count(WORD) == 20


async def test_a_whole_answer_that_dribbles_is_bounded(autojump_clock: MockClock) -> None:
    """Each byte is news, and none renews `answer_s`."""
    began_at = trio.current_time()
    with pytest.raises(ProviderUnavailable, match="no whole answer in 40 s"):
        await provider_of(for_ever(b"{", then=b" ")).complete({**RAW, "stream": False}, "m")
    assert trio.current_time() - began_at == pytest.approx(ANSWER_S)
