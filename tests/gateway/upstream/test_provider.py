"""One provider over real HTTP."""

import email.utils
import functools
import json
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from config import ProviderConfig
from gateway.upstream import Provider, ProviderCut, ProviderUnavailable
from protocol.errors import ConfigError
from protocol.transport import HttpClient
from tests.fakes.certificates import certificate_for
from tests.fakes.provider import KEY, FakeProvider, open_provider
from tests.fakes.worker import PATIENCE_S

FIRST = b'data: {"choices":[{"delta":{"content":"1"}}]}\n\n'
RAW = {"model": "alias", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def provider_of(fake: FakeProvider, *, read_s: float = 10.0) -> Provider:
    return Provider("far", ProviderConfig(base_url=fake.base_url, read_s=read_s), None)


async def test_the_request_is_not_changed() -> None:
    """The caller's dict stays as it is although the name is rewritten, and the usage asked for, on
    the way.
    """
    async with open_provider() as fake:
        provider = provider_of(fake)
        await provider.stream(RAW, "large", lambda _: None)
        assert RAW["model"] == "alias"
        assert fake.requests[0].body == {
            **RAW,
            "model": "large",
            "stream_options": {"include_usage": True},
        }
        assert "authorization" not in fake.requests[0].headers
        await provider.aclose()


async def test_a_byte_order_mark_costs_no_token() -> None:
    """The first event is not taken for a comment because of it."""
    events: list[bytes] = []
    async with open_provider() as fake:
        last = FIRST.replace(b'"}}]', b'"},"finish_reason":"stop"}]')
        told = [b"\xef\xbb\xbf" + FIRST, last, b"data: [DONE]\n\n"]
        fake.events = lambda *_: told  # type: ignore[method-assign]
        provider = provider_of(fake)
        await provider.stream(RAW, "large", events.append)
        assert b"".join(events) == FIRST + last + told[-1]
        await provider.aclose()


async def test_silence_in_the_middle_cuts_the_answer(mock_clock: trio.testing.MockClock) -> None:
    """After `read_s` without a byte the answer is cut, however long it ran before."""
    events: list[bytes] = []

    async def be_silent() -> None:
        while not events:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.2)

    async with open_provider(FakeProvider(first_delay_s=60.0)) as fake:
        fake.comments = 1
        fake.events = lambda *_: [FIRST, FIRST]  # type: ignore[method-assign]
        provider = provider_of(fake, read_s=0.1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(be_silent)
            with pytest.raises(ProviderCut):
                await provider.stream(RAW, "large", events.append)
        assert events == [FIRST]
        await provider.aclose()


@pytest.mark.parametrize("fault", [{"linger_s": 600.0}, {"breaks": True, "extra": {}}])
async def test_an_answer_is_over_when_it_says_so(fault: dict[str, Any]) -> None:
    """After [DONE] nothing is awaited, and what becomes of the connection is no error."""
    events: list[bytes] = []
    fake = FakeProvider(**fault)
    async with open_provider(fake):
        provider = provider_of(fake)
        with trio.fail_after(60):
            assert await provider.stream(RAW, "large", events.append) is None
        assert b"".join(events) == b"".join(fake.events("large"))
        await provider.aclose()


@pytest.mark.parametrize(("fault", "is_whole"), [({}, True), ({"breaks": True}, False)])
async def test_a_server_may_ignore_how_many_answers_are_asked_for(
    fault: dict[str, Any], is_whole: bool
) -> None:
    """`transformers serve` gives one, without [DONE]: an orderly end says that no other comes, and
    a broken one may have lost it.
    """
    events: list[bytes] = []
    fake = FakeProvider(**fault)
    told = [FIRST, FIRST.replace(b'"}}]', b'"},"finish_reason":"stop"}]')]
    fake.events = lambda *_: told  # type: ignore[method-assign]
    async with open_provider(fake):
        provider = provider_of(fake)
        with nullcontext() if is_whole else pytest.raises(ProviderCut):
            await provider.stream({**RAW, "n": 2}, "large", events.append)
        end = [b"data: [DONE]\n\n"] if is_whole else []
        assert b"".join(events) == b"".join(told + end)
        await provider.aclose()


async def test_the_end_of_an_unframed_body_may_have_lost_an_answer() -> None:
    """A body without a length may have lost its end: it ends with the connection."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    last = FIRST.replace(b'"}}]', b'"},"finish_reason":"stop"}]')

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(head + last)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, answer, 0)
        port = listeners[0].socket.getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1"
        provider = Provider("far", ProviderConfig(base_url=url), None)
        assert await provider.stream(RAW, "large", lambda _: None) is None
        with pytest.raises(ProviderCut):
            await provider.stream({**RAW, "n": 2}, "large", lambda _: None)
        await provider.aclose()
        nursery.cancel_scope.cancel()


async def test_the_deadline_and_the_first_token_in_the_same_moment(
    mock_clock: trio.testing.MockClock,
) -> None:
    """If the deadline and the first token come at the same moment, either the answer counts, or
    nothing of it was passed on and another provider may be asked.
    """
    events: list[bytes] = []
    fake = FakeProvider(before_first=lambda: mock_clock.jump(61.0))
    async with open_provider(fake):
        provider = provider_of(fake)
        with pytest.raises(ProviderUnavailable):
            await provider.stream(RAW, "large", events.append)
        assert events == []
        await provider.aclose()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"\xff"])
async def test_a_web_page_is_no_answer(body: bytes) -> None:
    """A 200 or a 4xx that is not a JSON object is a failure of the provider."""
    async with open_provider(FakeProvider(status=400, error_body=body)) as fake:
        provider = provider_of(fake)
        with pytest.raises(ProviderUnavailable):
            await provider.complete(RAW, "large")
        await provider.aclose()


async def test_a_redirect_is_not_followed() -> None:
    """The key goes to the configured address only."""
    fake = FakeProvider(status=302, headers={"location": "http://127.0.0.1:9/"})
    async with open_provider(fake):
        provider = provider_of(fake)
        with pytest.raises(ProviderUnavailable, match="far failed with status 302"):
            await provider.complete(RAW, "large")
        await provider.aclose()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7), ("3.2", 4), ("9999", 600), ("-1", 1), ("soon", None), ("nan", None),
        (f"Mon, 01 Jan 2024 00:00:00 +{'9' * 20}", None),
        (f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT", None),
    ],
)  # fmt: skip
async def test_a_pause_that_is_asked_for_is_read(value: str, seconds: int | None) -> None:
    """Whole seconds, ten minutes at the most; what cannot be read is none."""
    fake = FakeProvider(status=429, headers={"retry-after": value})
    async with open_provider(fake):
        provider = provider_of(fake)
        with pytest.raises(ProviderUnavailable) as caught:
            await provider.complete(RAW, "large")
        assert (caught.value.status, caught.value.retry_after_s) == (429, seconds)
        await provider.aclose()


async def test_a_pause_may_be_a_date() -> None:
    """A pause may be a date, as RFC 9110 allows."""
    at = email.utils.format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    fake = FakeProvider(status=429, headers={"retry-after": at})
    async with open_provider(fake):
        provider = provider_of(fake)
        with pytest.raises(ProviderUnavailable) as caught:
            await provider.complete(RAW, "large")
        assert 1 <= (caught.value.retry_after_s or 0) <= 60
        await provider.aclose()


async def test_a_refusal_does_not_tell_our_key() -> None:
    """Some quote what they got."""
    fake = FakeProvider(status=400)
    async with open_provider(fake):
        host = fake.base_url.split("/")[2]
        text = f"bad key {KEY} at {host}"
        fake.error_body = json.dumps({"error": {"message": text}}).encode()
        provider = Provider("far", ProviderConfig(base_url=fake.base_url), KEY)
        answer = await provider.complete(RAW, "large")
        assert b"bad key [redacted] at [redacted]" in answer.body
        await provider.aclose()


async def test_a_whole_answer_may_take_longer_than_silence_in_a_stream() -> None:
    """The provider sends nothing before the answer is complete."""
    async with open_provider(FakeProvider(delay_s=0.3)) as fake:
        config = ProviderConfig(base_url=fake.base_url, read_s=0.05, answer_s=10.0)
        provider = Provider("far", config, None)
        whole = {**RAW, "stream": False}
        assert (await provider.complete(whole, "large")).status == 200
        with pytest.raises(ProviderUnavailable):
            await provider.stream(RAW, "large", lambda _: None)
        await provider.aclose()


async def test_a_certificate_for_another_name_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate of a trusted authority for another name is a failure; nothing is sent."""
    authority, context = certificate_for("elsewhere.example", tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    fake = FakeProvider()
    async with trio.open_nursery() as nursery:
        url = await nursery.start(functools.partial(fake.serve, tls=context))
        provider = Provider("far", ProviderConfig(base_url=url), KEY)
        with pytest.raises(ProviderUnavailable, match=r"^far cannot be reached$") as caught:
            await provider.complete(RAW, "large")
        assert not caught.value.may_be_charged
        assert not fake.requests
        await provider.aclose()
        nursery.cancel_scope.cancel()


class Canceller(trio.abc.Instrument):
    """Cancels a scope after a number of steps of any task: also between the moment in which a slot
    is given to a request and the one in which the request wakes up.
    """

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self._scope, self._steps = scope, steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        self._steps -= 1
        if self._steps == 0:
            self._scope.cancel()


async def cancelled_after(steps: int, work: Callable[[], Awaitable[object]]) -> None:
    """Do `work`, cancelled after so many steps."""
    with trio.CancelScope() as scope:
        canceller = Canceller(scope, steps)
        trio.lowlevel.add_instrument(canceller)
        try:
            await work()
        finally:
            trio.lowlevel.remove_instrument(canceller)


async def test_a_thousand_streams_cancelled_at_any_moment_leave_no_lost_slot() -> None:
    """20 at a time over a pool of 8: in the end no connection is lent, and 8 streams at once get
    theirs.
    """
    rng, fake = random.Random(7), FakeProvider(delay_s=0.001)
    async with open_provider(fake):
        provider, client = provider_with_slots(fake, 8)

        async def ask() -> None:
            await provider.stream(RAW, "large", lambda _: None)

        async def cancelled(steps: int) -> None:
            try:
                await cancelled_after(steps, ask)
            except ProviderUnavailable:
                # The wait for a slot may be over; a lost slot shows below.
                return

        for _ in range(50):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(cancelled, rng.randint(1, 1500))
        assert len(fake.requests) > 100
        assert client.num_busy == 0
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(ask)
        await provider.aclose()


async def test_streams_through_tls_cancelled_at_any_moment_leave_no_connection(
    tmp_path: Path,
) -> None:
    """Dialling, shaking hands, waiting, reading: no slot is lost, and no descriptor."""
    rng, fake = random.Random(7), FakeProvider(delay_s=0.001)
    authority, context = certificate_for("localhost", tmp_path)
    before = open_sockets()
    async with trio.open_nursery() as nursery:
        await nursery.start(functools.partial(fake.serve, tls=context))
        fake.base_url = fake.base_url.replace("127.0.0.1", "localhost")
        provider, client = provider_with_slots(fake, 8, authority)

        async def ask() -> None:
            await provider.stream(RAW, "large", lambda _: None)

        for _ in range(20):
            async with trio.open_nursery() as asking:
                for _ in range(8):
                    asking.start_soon(cancelled_after, rng.randint(1, 400), ask)
        assert len(fake.requests) > 50
        assert client.num_busy == 0
        await provider.aclose()
        nursery.cancel_scope.cancel()
    assert open_sockets() == before


def open_sockets() -> int:
    """How many this process has."""
    return sum(file.is_socket() for file in Path("/proc/self/fd").iterdir())


def provider_with_slots(
    fake: FakeProvider, num_slots: int, authority: Path | None = None
) -> tuple[Provider, HttpClient]:
    """A provider that may have so many connections, and what holds them."""
    provider = provider_of(fake)
    tls = ssl.create_default_context(cafile=str(authority) if authority else None)
    client = HttpClient(fake.base_url, tls=tls, max_connections=num_slots, max_idle=num_slots)
    provider._client = client
    return provider, client


@pytest.mark.parametrize(
    "url", ["http://", "http://user:secret@far", "http://far:port", "http://a..b"]
)
def test_a_base_url_that_is_no_address(url: str) -> None:
    """A base URL that is no address is an error at the start, whose text does not repeat what may
    be secret.
    """
    with pytest.raises(ConfigError, match="base_url of provider far") as caught:
        Provider("far", ProviderConfig(base_url=url), None)
    assert "secret" not in str(caught.value)


async def test_a_key_that_cannot_be_a_header() -> None:
    """One of any letters is sent; one with a line break fails, before anything is sent."""
    whole = {**RAW, "stream": False}
    async with open_provider() as fake:
        provider = Provider("far", ProviderConfig(base_url=fake.base_url), "schlüssel-κ")
        assert (await provider.complete(whole, "large")).status == 200
        await provider.aclose()
        provider = Provider("far", ProviderConfig(base_url=fake.base_url), "sk-1\nx: y")
        with pytest.raises(ProviderUnavailable, match="broke the exchange off"):
            await provider.complete(whole, "large")
    assert len(fake.requests) == 1
