"""One provider: an OpenAI-compatible API.

Owns the HTTP exchange with it and what its answers become: before the first byte of an answer
another provider can be asked; after it the answer is cut. Answers are passed on unchanged; in the
request only the model's name is replaced. What becomes of failures is in `provider_failures.py`.
Must not know turns.
"""

from __future__ import annotations

import logging
import math
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import AbstractAsyncContextManager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import msgspec
import trio

from config import ProviderConfig
from gateway.api import DONE, OVERFLOW, ApiError, Usage
from gateway.upstream.answer import (
    AnswerFiltered,
    NotAnAnswer,
    ProviderAnswer,
    ProviderUnavailable,
    check_answer,
    check_other_answer,
)
from gateway.upstream.body_reading import read_body
from gateway.upstream.checked_completions import BegunBody, BoundedBody, CheckedStream, WholeBody
from gateway.upstream.error_words import (
    error_of,
    has_form,
)
from gateway.upstream.forwarded_headers import Header
from gateway.upstream.kept_calls import CallsMade
from gateway.upstream.other_form import is_stream, is_whole, stream_of, whole_of
from gateway.upstream.provider_failures import (
    MAX_WORDS_BYTES,
    ProviderFailures,
    first_bytes,
    is_refusal,
)
from gateway.upstream.relay import BadStream, StreamRelay
from gateway.upstream.sse import EventTooLarge, ProviderEventSplitter
from gateway.upstream.stream_end import StreamEnd
from gateway.upstream.usage import (
    StreamUsage,
    asks_for_usage,
    with_usage_requested,
    without_usage,
)
from protocol.errors import (
    ConfigError,
    HttpError,
)
from protocol.reading import FAULTS
from protocol.redaction import Redaction
from protocol.transport import HttpClient, HttpResponse
from protocol.version import VERSION

if TYPE_CHECKING:
    from gateway.upstream.proxied import ProxiedClient

MAX_ANSWER_BYTES: Final = 64 * 2**20


_TARGET: Final = "/%!$&'()*+,;=:@~?"
"""Characters of a request target that are not percent-encoded."""

_STREAM_OPTIONS: Final = "stream_options"
_ASKS_USAGE: Final = {"include_usage": True}
_CHAT: Final = "/chat/completions"
_COMPLETIONS: Final = "/completions"
_JSON: Final = b"application/json"
_EVENTS: Final = b"text/event-stream"
_USER_AGENT: Final = (b"user-agent", f"herma/{VERSION}".encode())

_FRAMES: Final = frozenset({b"transfer-encoding", b"content-length"})
"""Headers of a body whose end cannot be mistaken for that of its connection."""

_EXCHANGE_ERRORS: Final = (HttpError, BadStream, EventTooLarge)

_encode = msgspec.json.Encoder().encode

_log = logging.getLogger(__name__)


class _Asked(msgspec.Struct):
    stream: Any = None
    stream_options: Any = None
    prompt: Any = None
    n: Any = None

    @property
    def asks_one(self) -> bool:
        """Whether it is one raw completion, so that the first end is that of the answer."""
        return isinstance(self.prompt, str) and self.n in (None, 1)


class ProviderClient(Protocol):
    """The client that sends requests; see `HttpClient`."""

    def exchange(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        connect_s: float,
        write_s: float,
        read_s: float,
    ) -> AbstractAsyncContextManager[HttpResponse]:
        """Send a request and give its response; raises `HttpError`."""


class Provider:
    """An API by its name in the configuration. Keeps connections alive until `aclose`. With a
    `client` it is a text-level engine behind a worker, whose address is no secret.
    """

    def __init__(
        self,
        name: str,
        config: ProviderConfig,
        api_key: str | None,
        client: ProviderClient | None = None,
    ) -> None:
        """Raises `ConfigError` if `base_url` is not an address."""
        self.name = name
        self.config = config
        self._api_key = api_key
        self._ask_usage = with_usage_requested if config.stream_usage else _unchanged
        """Makes the request for a stream; `without_usage` where that was refused for asking."""
        self._headers = [(b"accept-encoding", b"identity")]
        if api_key is not None:
            self._headers.append((b"authorization", f"Bearer {api_key}".encode()))
        self._url = config.base_url.rstrip("/")
        secrets = [api_key.encode()] if api_key else []
        self._given_client = client
        self._client: HttpClient | ProxiedClient | None = None
        if client is None:
            secrets.append(_address(name, self._url)[1].encode())
        self._failures = ProviderFailures(name, Redaction(secrets), is_engine=client is not None)

    def is_of(self, config: ProviderConfig, api_key: str | None) -> bool:
        """Whether this provider was made from the same table and key."""
        return self._given_client is None and (self.config, self._api_key) == (config, api_key)

    def __repr__(self) -> str:
        return f"<Provider {self.name}>"

    def retire(self) -> None:
        """Close idle connections: only turns that have chosen the provider already still ask it."""
        if isinstance(self._client, HttpClient):
            self._client.close()

    async def aclose(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if isinstance(client, HttpClient):
            client.close()
        elif client is not None:
            await client.aclose()

    async def complete(
        self,
        raw: Mapping[str, Any],
        model: str,
        on_usage: Callable[[Usage], None] = lambda _: None,
        *,
        headers: Iterable[Header] = (),
        on_calls: Callable[[CallsMade], None] = lambda _: None,
    ) -> ProviderAnswer:
        """The complete answer of `model` to the request `raw`, which is sent with the client's
        `headers`. `on_usage` gets the reported usage, `on_calls` the calls in the answer. Raises
        `ProviderUnavailable`.
        """
        answer_s = self.config.answer_s
        answer: ProviderAnswer | None = None
        try:
            with trio.move_on_after(answer_s):  # bounds the wait for the head too
                async with self._ask_chat(raw, model, headers, _JSON, math.inf) as response:
                    answer = await self._failures.answer_to(response)
                    if answer is None:
                        answer = await self._whole(response, answer_s, raw)
        except _EXCHANGE_ERRORS as error:
            raise self._failures.failure(error) from error
        if answer is None:
            raise ProviderUnavailable(f"{self.name} gave no whole answer in {answer_s:g} s")
        if answer.usage is not None:
            on_usage(answer.usage)
        if answer.made is not None:
            on_calls(answer.made)
        return answer

    async def stream(
        self,
        raw: Mapping[str, Any],
        model: str,
        on_events: Callable[[bytes], None],
        on_usage: Callable[[Usage], None] = lambda _: None,
        *,
        headers: Iterable[Header] = (),
        on_headers: Callable[[tuple[Header, ...]], None] = lambda _: None,
        on_calls: Callable[[CallsMade], None] = lambda _: None,
        asks_usage: bool = True,
    ) -> ProviderAnswer | None:
        """Pass the streamed answer on as whole events, or return the 4xx that came instead.

        The request is sent with the client's `headers`; `on_headers` gets those of the response
        before its events. The first content must come within `first_token_s`; comments before it
        are dropped. `on_usage` gets the reported usage, which is requested if the stream
        `asks_usage`, unless `stream_usage` is off; `on_calls` gets the calls of a whole answer.
        Raises `ProviderUnavailable` before the first call of `on_events`, `ProviderCut` after it,
        and `AnswerFiltered` behind a whole answer.
        """
        asked = self._ask_usage(raw) if asks_usage else without_usage(raw)
        read_s = self.config.read_s
        usage = StreamUsage(on_usage, is_ours=not asks_for_usage(raw))
        deadline = trio.CancelScope(deadline=trio.current_time() + self.config.first_token_s)

        def may_begin() -> bool:
            # After the deadline this attempt is cancelled already, although content may still
            # arrive in the same moment: it must not precede the answer of another provider.
            if deadline.cancel_called:
                return False
            deadline.deadline = math.inf
            return True

        end = StreamEnd(raw)
        relay = StreamRelay(on_events, usage, may_begin, end, is_chat=True)
        answer: ProviderAnswer | None = None
        try:
            with deadline:
                async with self._ask_chat(asked, model, headers, _EVENTS, read_s) as response:
                    answer = await self._failures.answer_to(response)
                    if answer is None:
                        on_headers(self._failures.forwarded(response))
                        answer = await self._relay(response, relay, raw)
        except (ProviderUnavailable, *_EXCHANGE_ERRORS) as error:
            answer = self._failures.refusal(
                self._failures.refusal_in(error, has_begun=relay.has_begun)
            )
        if deadline.cancelled_caught:
            first_token_s = self.config.first_token_s
            raise ProviderUnavailable(f"{self.name} gave no first token in {first_token_s:g} s")
        if answer is not None and self._may_refuse_usage(asked, answer):
            again = partial(self.stream, raw, model, on_events, on_usage, asks_usage=False)
            answer = await again(headers=headers, on_headers=on_headers, on_calls=on_calls)
            if answer is None:
                self._ask_for_no_usage()
            return answer
        self._take_end(end, on_calls, is_answer=answer is not None or relay.has_begun)
        return answer

    def _ask_for_no_usage(self) -> None:
        self._ask_usage = without_usage
        _log.warning(
            "%s refuses `stream_options`, by which the gateway asks for the usage of streams: from "
            "now on they cost the worst case; stream_usage = false in its table says so",
            self.name,
        )

    def _may_refuse_usage(self, asked: Mapping[str, Any], answer: ProviderAnswer) -> bool:
        """Whether a refusal seems to be about the field by which the gateway asks for the usage of
        a stream; an answer without that field proves it. Other options than that of the usage are
        the client's own, and so is what is wrong with them. A worker says itself what its engine
        refuses.
        """
        if self._given_client is not None or asked.get(_STREAM_OPTIONS) != _ASKS_USAGE:
            return False
        told = error_of(answer.status, answer.body)
        return told is not None and _STREAM_OPTIONS in f"{told.param} {told.message}"

    def _take_end(
        self, end: StreamEnd, on_calls: Callable[[CallsMade], None], *, is_answer: bool
    ) -> None:
        """Look at a whole stream. Raises `AnswerFiltered`, and `ProviderUnavailable` if it was
        none.
        """
        if not is_answer:
            raise ProviderUnavailable(f"{self.name} ended its stream without an answer")
        if (made := end.calls_made()) is not None:
            on_calls(made)
        if end.is_filtered:
            raise AnswerFiltered(f"{self.name} ended an answer by its filter")

    async def _relay(
        self, response: HttpResponse, relay: StreamRelay, raw: Mapping[str, Any]
    ) -> ProviderAnswer | None:
        if response.status >= 300:
            return await self._whole(response, self.config.read_s)
        splitter = ProviderEventSplitter()
        whole = bytearray()

        def take(data: bytes) -> bool:
            if splitter.is_between_events and relay.pass_single(data):
                return splitter.is_done
            if whole or (splitter.is_new and is_whole(data)):
                self._add(whole, data if whole else data.lstrip())
                return False
            relay.take(splitter.push(data))
            return splitter.is_done

        def is_life() -> bool:
            # Before the answer begins, comments are legal until `first_token_s` is over.
            return not relay.has_begun or relay.has_news

        try:
            await read_body(response.body, take, self.config.read_s, is_life)
        except HttpError:
            # After the end of all choices a failure of the connection loses nothing.
            if not (splitter.is_done or relay.is_whole):
                raise
        if whole:
            answer = self._answer(response, bytes(whole), raw, may_be_filtered=True)
            if answer.status != 200:
                return answer
            relay.take(stream_of(answer.body))
        else:
            self._end(splitter, relay, tells_end=self._tells_end(response))
        return None

    def _tells_end(self, response: HttpResponse) -> bool:
        """Whether the end of the response's body is known from the end of its connection."""
        return self._given_client is not None or not _FRAMES.isdisjoint(dict(response.headers))

    def _end(self, splitter: ProviderEventSplitter, relay: StreamRelay, *, tells_end: bool) -> None:
        """Take the end of a response's body, which `tells_end` if it is no lost connection: then
        choices that have not come do not come. Some servers ignore `n`.
        """
        if not splitter.is_done:
            relay.take(splitter.flush())
            relay.note_rest(splitter.rest)
        if splitter.is_done:
            return
        if not (relay.is_whole or (tells_end and relay.has_begun and relay.is_finished)):
            words = self._failures.shown(relay.last_words)
            text = f"{self.name} ended its stream early"
            raise ProviderUnavailable(f"{text}: {words}" if words else text, words=words)
        # No [DONE], but every choice has said why it ended, and the body is whole.
        relay.take(DONE)

    async def forward(
        self,
        path: str,
        content_type: str,
        body: bytes,
        respond: Callable[[HttpResponse, tuple[Header, ...]], Awaitable[None]],
        *,
        headers: Iterable[Header] = (),
    ) -> None:
        """POST `body` to a path below the API's root. `respond` gets the response, and the headers
        that are forwarded to the client, and passes it on.

        Raises `ProviderUnavailable` before `respond` is called, `ProviderCut` after it.
        """
        has_begun = False
        kind = content_type.encode("latin-1")
        try:
            async with self._exchange(
                path, headers, b"*/*", kind, body, self.config.answer_s
            ) as response:
                try:
                    self._failures.check_status(response)
                except ProviderUnavailable as failure:
                    await self._failures.note_words(failure, response)
                    raise
                pieces = BoundedBody(response.body, self.config.read_s)
                bounded = HttpResponse(response.status, response.headers, pieces)
                checked = await self._checked(path, bounded, body)
                has_begun = True
                await respond(checked, self._failures.forwarded(response))
        except (ProviderUnavailable, *_EXCHANGE_ERRORS) as error:
            await respond(self._refused(self._failures.refusal_in(error, has_begun=has_begun)), ())

    async def _checked(self, path: str, response: HttpResponse, asked: bytes) -> HttpResponse:
        """`response` to the body `asked` with a body in which an error is in the API's form, and
        which ends well if it answers raw prompts. Raises `ProviderUnavailable` and `BadStream`.
        """
        kind = dict(response.headers).get(b"content-type", b"")
        if response.status < 300 and path == _COMPLETIONS:
            options = _asked_in(asked)
            if options.stream is True and not kind.startswith(_JSON):
                stream = CheckedStream(
                    response.body,
                    asks_one=options.asks_one,
                    tells_end=self._given_client is not None,
                )
                await stream.begin()
                return HttpResponse(200, [(b"content-type", _EVENTS)], stream)
            answer = await self._whole(response, self.config.read_s)
            if answer.status == 200 and options.stream is True:
                has_usage = asks_for_usage({"stream_options": options.stream_options})
                body = stream_of(answer.body, has_usage=has_usage)
                return HttpResponse(200, [(b"content-type", _EVENTS)], WholeBody(body))
            return HttpResponse(answer.status, [(b"content-type", _JSON)], WholeBody(answer.body))
        if response.status < 300:
            return await self._begun(path, response, kind)
        body = await first_bytes(response)
        self._failures.check_refusal(response.status, body)
        told = error_of(response.status, body)
        if told is not None and (told.code == OVERFLOW or not has_form(body)):
            return self._refused(told)
        return HttpResponse(
            response.status, response.headers, WholeBody(self._failures.redacted(body))
        )

    async def _begun(self, path: str, response: HttpResponse, kind: bytes) -> HttpResponse:
        """`response` to a request that is neither a chat nor a raw prompt, once its beginning was
        looked at. Raises `ProviderUnavailable` and `BadStream` if it is no answer.
        """
        first, is_whole = bytearray(), True
        async for data in response.body:
            first += data
            if len(first) >= MAX_WORDS_BYTES or not kind.startswith(_JSON):
                is_whole = False
                break
        try:
            check_other_answer(path, kind, bytes(first), is_whole=is_whole)
        except NotAnAnswer as error:
            if error.reported.refusal is not None:
                raise BadStream(str(error), reported=error.reported) from error
            raise self._failures.no_answer(error, response.status) from error
        rest = WholeBody(b"") if is_whole else response.body
        return HttpResponse(response.status, response.headers, BegunBody(bytes(first), rest))

    def _refused(self, error: ApiError) -> HttpResponse:
        answer = self._failures.refusal(error)
        return HttpResponse(answer.status, [(b"content-type", _JSON)], WholeBody(answer.body))

    def _ask_chat(
        self,
        raw: Mapping[str, Any],
        model: str,
        headers: Iterable[Header],
        accept: bytes,
        read_s: float,
    ) -> AbstractAsyncContextManager[HttpResponse]:
        body = _encode({**raw, "model": model})
        return self._exchange(_CHAT, headers, accept, _JSON, body, read_s)

    def _exchange(
        self,
        path: str,
        headers: Iterable[Header],
        accept: bytes,
        content_type: bytes,
        body: bytes,
        read_s: float,
    ) -> AbstractAsyncContextManager[HttpResponse]:
        named = [*headers, (b"accept", accept), (b"content-type", content_type), *self._headers]
        if b"user-agent" not in dict(named):
            named.append(_USER_AGENT)
        config = self.config
        return self._connections().exchange(
            "POST",
            _address(self.name, self._url + path)[0],
            named,
            body,
            connect_s=config.connect_s,
            write_s=config.read_s,
            read_s=read_s,
        )

    def _connections(self) -> ProviderClient:
        if self._given_client is not None:
            return self._given_client
        if self._client is None:
            self._client = client_for(self._url)
        return self._client

    async def _whole(
        self, response: HttpResponse, silence_s: float, raw: Mapping[str, Any] | None = None
    ) -> ProviderAnswer:
        body = bytearray()

        def take(data: bytes) -> bool:
            self._add(body, data)
            return False

        try:
            if not response.body.pass_ready(take):
                await read_body(response.body, take, silence_s)
        except HttpError:
            if not is_refusal(response.status):
                raise
            # The body cannot be read, but the status is known: nothing is charged.
        whole = bytes(body)
        if response.status < 300 and is_stream(whole):
            try:
                whole = whole_of(whole, raw)
            except BadStream as error:
                if error.reported.refusal is None:
                    raise
                return self._failures.refusal(error.reported.refusal)
        return self._answer(response, whole, raw)

    def _add(self, body: bytearray, data: bytes) -> None:
        body += data
        if len(body) > MAX_ANSWER_BYTES:
            raise ProviderUnavailable(f"{self.name} sent over {MAX_ANSWER_BYTES} bytes")

    def _answer(
        self,
        response: HttpResponse,
        whole: bytes,
        raw: Mapping[str, Any] | None,
        *,
        may_be_filtered: bool = False,
    ) -> ProviderAnswer:
        """The answer or refusal in the body `whole`. Raises `ProviderUnavailable`, also for an
        answer that a filter ended unless it `may_be_filtered`.
        """
        status = 200 if response.status < 300 else response.status  # some servers send 201
        if status != 200:
            self._failures.check_refusal(status, whole)
        headers = self._failures.forwarded(response)
        try:
            checked = check_answer(status, whole, raw)
        except NotAnAnswer as error:
            refusal = error.reported.refusal or self._failures.plain_refusal(status, whole)
            if refusal is not None:
                return self._failures.refusal(refusal)
            raise self._failures.no_answer(error, status) from error
        if status == 200:
            answer = ProviderAnswer(200, checked.body, headers, checked.usage, checked.made)
            if checked.is_filtered and not may_be_filtered:
                text = f"{self.name} ended the answer by its filter"
                raise ProviderUnavailable(text, filtered=answer)
            return answer
        unsaid = ApiError(status, f"{self.name} refuses this request and says no reason.")
        told = error_of(status, whole) or unsaid
        if told.code == OVERFLOW:
            return self._failures.refusal(told)
        if not has_form(whole):
            whole = told.body()
        return ProviderAnswer(status, self._failures.redacted(whole), headers)


def _unchanged(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return raw


def _asked_in(body: bytes) -> _Asked:
    """The fields of a JSON body that decide how its answer is checked."""
    try:
        return msgspec.json.decode(body, type=_Asked)
    except FAULTS:
        return _Asked()


@lru_cache(maxsize=1024)
def _address(name: str, url: str) -> tuple[str, str]:
    """The request target of `url`, and its server as `host:port`. Raises `ConfigError`."""
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError as error:
        raise ConfigError(f"base_url of provider {name}: {error}") from error
    if not host or "@" in parts.netloc:
        raise ConfigError(f"base_url of provider {name} needs a host, and no user name before it")
    query = f"?{quote(parts.query, safe=_TARGET)}" if parts.query else ""
    usual_port = ":443" if parts.scheme == "https" else ":80"
    return quote(parts.path, safe=_TARGET) + query, parts.netloc.lower().removesuffix(usual_port)


def client_for(url: str) -> HttpClient | ProxiedClient:
    """A client for `url`: ours, unless the environment (HTTP_PROXY and the like) names a proxy for
    it. Takes 20 ms for the certificates.
    """
    if getproxies():
        from gateway.upstream.proxied import ProxiedClient  # noqa: PLC0415 (imports httpx: 12 MB)

        client = ProxiedClient(url)
        if client.has_proxy:
            return client
    return HttpClient(url)
