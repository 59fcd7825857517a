"""One external engine over HTTP: its facts, its health, and its answers to submissions.

Owns the connections, the API key, and the meaning of a status or a broken connection. Must not know
links, frames or processes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, final

import trio

from protocol.errors import ConfigError, ConnectError, HermaError, HttpError, KeptConnectionClosed
from protocol.messages import RejectReason
from protocol.redaction import CUT, Redaction
from protocol.transport import HttpClient, HttpResponse
from workers.external import (
    AnswerPiece,
    EngineApi,
    EngineError,
    EngineEventSplitter,
    EngineJob,
    EngineLimits,
    EngineQuestions,
    EngineTrouble,
    ExternalAnswer,
    HttpRequest,
)

CONNECT_S: Final = 5.0
ASK_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 16 * 2**20
_MAX_ERROR_BYTES: Final = 65_536
_MAX_SHOWN: Final = 500
_WRITE_S: Final = 60.0
_OK: Final = 200
_NEEDS_KEY: Final = frozenset({401, 403})
_ABSENT: Final = frozenset({404, 405})
_BROKEN: Final = 500
_CHECKS: Final = 5
_BETWEEN_CHECKS_S: Final = 0.05

_BUSY: Final = frozenset({429, 503})
_REFUSED: Final = frozenset({400, 413, 422})


class EngineGone(HermaError):
    """The engine cannot be reached, or says that it is dead."""


class _NoAnswer(HttpError):
    """The engine accepted the question and did not answer in time."""


class EngineRefusal(HermaError):
    """The engine refuses a submission."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@final
class EngineClient:
    """The client of the engine at `url` (http, https, or unix:/PATH), which speaks `api`."""

    def __init__(
        self,
        url: str,
        api: EngineQuestions,
        *,
        api_key: str | None,
        max_connections: int,
        health: str | None = None,
    ) -> None:
        """`health` is the target of the health check; None: it is found out."""
        self.url = url
        self.api = api
        is_local = url.startswith("unix:")
        self._http = HttpClient(
            "http://localhost" if is_local else url,
            uds=url.removeprefix("unix:") if is_local else None,
            max_connections=max_connections,
        )
        self._key = [] if api_key is None else [(b"authorization", f"Bearer {api_key}".encode())]
        self._headers = [(b"content-type", b"application/json"), *self._key]
        self._redaction = Redaction([] if api_key is None else [api_key.encode()])
        self._configured_health = self._health_target = health

    async def refusal(
        self, response: HttpResponse, on_data: Callable[[], None] = lambda: None
    ) -> bytes:
        """The words of an engine about a failure, without its key: it may come in two pieces, so
        they are redacted as a whole, and what is over 64 KiB is left out. `on_data`: some came.
        """
        words = await _start_of(response, _MAX_ERROR_BYTES + 1, on_data)
        if len(words) > _MAX_ERROR_BYTES:
            words = words[:_MAX_ERROR_BYTES] + CUT.encode()
        return self._redaction.of(words)

    def close(self) -> None:
        """Close idle connections."""
        self._http.close()

    async def get(self, target: str) -> tuple[int, bytes]:
        """GET `target`: status and body. Raises `HttpError`, also after five seconds without an
        answer.
        """
        return await self._ask("GET", target, b"", ASK_S)

    async def found(self, targets: Iterable[str]) -> dict[str, bytes]:
        """The bodies of the `targets` that answer a GET with status 200, by target. Raises
        `HttpError`.
        """
        answers = {target: await self.get(target) for target in targets}
        return {target: body for target, (status, body) in answers.items() if status == _OK}

    async def call(self, request: HttpRequest) -> tuple[int, str]:
        """POST `request`, which may take any time: the status and the start of the answer, as text.
        Raises `HttpError`.
        """
        async with self._http.exchange(
            "POST",
            request.target,
            self._headers,
            request.body,
            connect_s=CONNECT_S,
            read_s=math.inf,
        ) as response:
            body = await self.refusal(response)
        return response.status, " ".join(body.decode(errors="replace").split())[:_MAX_SHOWN]

    async def health(self) -> int:
        """The status of the engine's health check. Raises `HttpError`.

        Which target it has is found out once: the first that does not refuse. If that is absent
        later, another server has taken the address, and it is found out again. A target that
        breaks (500) says nothing of the others: `transformers serve` breaks so on its list of
        models where no cache of a hub is, and answers chats.
        """
        if self._health_target is not None:
            status = (await self.get(self._health_target))[0]
            if status not in _ABSENT or self._configured_health is not None:
                return status
            self._health_target = None
        worst = 0
        for target in self.api.health_targets:
            status, body = await self.get(target)
            if status == _OK:
                better = self.api.better_health(target, body)
                self._health_target = target if better is None else better
            if not 400 <= status <= _BROKEN:
                return status
            worst = max(worst, status)
        return worst

    async def check(self) -> bool:
        """Whether the engine answers its health check in time. Raises `EngineGone` if nothing
        listens, or if the engine reports a server error.

        Silence proves nothing: a busy engine may be slow to answer. One broken connection proves
        little: a dying process may have accepted it just before its end. So a broken connection is
        tried again.
        """
        trouble = ""
        for _ in range(_CHECKS):
            try:
                status = await self.health()
            except ConnectError as error:
                raise EngineGone(f"the engine at {self.url} is gone: {error}") from error
            except _NoAnswer:
                return False
            except HttpError as error:
                trouble = str(error)
                await trio.sleep(_BETWEEN_CHECKS_S)
            else:
                if status < 500:
                    return True
                trouble = f"it answers its health check with {status}"
                break
        raise EngineGone(f"the engine at {self.url} is gone: {trouble}")

    async def limits(self) -> EngineLimits:
        """The facts that the engine reports. Raises `ConfigError` for an engine that cannot serve,
        or that refuses our key.
        """
        answers: dict[str, bytes] = {}
        for target in self.api.fact_targets:
            status, body = await self.get(target)
            if status in _NEEDS_KEY:
                raise ConfigError(
                    f"the engine at {self.url} answers {target} with {status}: set api_key_env to "
                    "the variable that holds its key"
                )
            if status == 200:
                answers[target] = body
        return self.api.limits(answers)

    @asynccontextmanager
    async def relay(
        self,
        target: str,
        headers: list[tuple[bytes, bytes]],
        body: bytes | AsyncIterable[bytes],
        num_bytes: int,
    ) -> AsyncIterator[HttpResponse]:
        """The response to a request with `num_bytes` of body, which is sent unchanged, with the
        engine's key. Raises `HttpError`.
        """
        async with self._http.exchange(
            "POST",
            target,
            [*headers, *self._key],
            body,
            num_bytes=num_bytes,
            connect_s=CONNECT_S,
            write_s=_WRITE_S,
        ) as response:
            yield response

    async def answer(
        self, api: EngineApi, answer: ExternalAnswer, on_event: Callable[[AnswerPiece | None], None]
    ) -> None:
        """Run jobs until the answer is over. `on_event` receives the new tokens of each event, or
        None.

        Raises `EngineRefusal`, `EngineError`, or `HttpError` for a connection that breaks.
        """
        while not answer.is_over:
            job = answer.next_job()
            try:
                await self._run(api, job, answer, on_event)
            except KeptConnectionClosed:
                # The engine closed an idle connection and computed nothing: try again on another
                # one.
                await self._run(api, job, answer, on_event)
            except EngineTrouble as trouble:
                if not answer.num_outputs and _says_too_long(str(trouble)):
                    # SGLang refuses so within a stream of status 200.
                    raise EngineRefusal("too_long", str(trouble)) from trouble
                raise

    async def _run(
        self,
        api: EngineApi,
        job: EngineJob,
        answer: ExternalAnswer,
        on_event: Callable[[AnswerPiece | None], None],
    ) -> None:
        request = api.request(job)
        reader = api.reader(job)

        def take(data: bytes) -> bool:
            """Process one event; return whether the caller must stop reading."""
            if (event := reader.read(data)) is not None:
                on_event(answer.take(event))
            return answer.is_over or answer.has_gap

        async with self._http.exchange(
            "POST", request.target, self._headers, request.body, connect_s=CONNECT_S
        ) as response:
            if response.status != 200:
                raise _error_of(response.status, await self.refusal(response))
            if not job.streamed:
                take(await _whole(response))
                return
            part = await _read_events(response, take)
        if not answer.stream_ended():
            raise EngineTrouble(f"the engine's stream ended early{part}")

    async def _ask(
        self, method: str, target: str, body: bytes, limit_s: float
    ) -> tuple[int, bytes]:
        with trio.move_on_after(limit_s):
            async with self._http.exchange(
                method, target, self._headers, body, connect_s=limit_s, read_s=math.inf
            ) as response:
                return response.status, await _start_of(response, MAX_ANSWER_BYTES)
        raise _NoAnswer(f"no answer to {method} {target} in {limit_s:g} s")


async def _read_events(response: HttpResponse, take: Callable[[bytes], bool]) -> str:
    """Read a stream until `take` needs no more; return the place of its end, for a failure."""
    splitter = EngineEventSplitter()
    async for data in response.body:
        if any(map(take, splitter.feed(data))):
            return ""
    if any(map(take, splitter.flush())):
        return ""
    return "" if splitter.is_between else " in the middle of an event"


async def _start_of(
    response: HttpResponse, max_bytes: int, on_data: Callable[[], None] = lambda: None
) -> bytes:
    """The first `max_bytes` of a body; the rest is not read. `on_data`: some came."""
    body = bytearray()
    async for data in response.body:
        on_data()
        body += data
        if len(body) >= max_bytes:
            break
    return bytes(body[:max_bytes])


async def _whole(response: HttpResponse) -> bytes:
    body = await _start_of(response, MAX_ANSWER_BYTES)
    if len(body) == MAX_ANSWER_BYTES:
        raise EngineError(f"an answer in one piece is over {MAX_ANSWER_BYTES} bytes")
    return body


def _error_of(status: int, body: bytes) -> EngineRefusal | EngineError:
    text = " ".join(body.decode(errors="replace").split())[:_MAX_SHOWN]
    detail = f"the engine answers {status}: {text}" if text else f"the engine answers {status}"
    if status in _BUSY:
        return EngineRefusal("busy", detail)
    if status in _REFUSED:
        return EngineRefusal("too_long" if _says_too_long(text) else "invalid", detail)
    return EngineTrouble(detail) if status >= 500 else EngineError(detail)


def _says_too_long(text: str) -> bool:
    """Whether an engine says that a prompt does not fit."""
    lower = text.lower()
    return ("context" in lower and ("length" in lower or "exceed" in lower)) or (
        "input" in lower and "exceeds the maximum allowed length" in lower
    )
