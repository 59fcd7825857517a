"""Sends the requests of a cell to one server.

Owns the connections, the clock and the deadlines. Must not know which figures are computed.

One thread holds all streams, so the client's own time is part of every time that it measures. The
garbage collector is off during a load, and the CPU time is returned with the answers.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import trio

from benchmarks.http.answer import OK, HttpAnswer
from benchmarks.http.workload import RequestChain, WorkloadRequest
from protocol.errors import ConfigError, HermaError, HttpError, KeptConnectionClosed
from protocol.transport.http_client import HttpClient

TEMPERATURE: Final = 0.6
_MAX_ERROR_BYTES: Final = 4096
_KINDS: Final = {
    "ConnectError": "not connected",
    "KeptConnectionClosed": "cut",
    "ReadError": "cut",
    "RemoteProtocolError": "cut",
}


class ServerSilent(HermaError):
    """A server does not answer a request that the benchmark needs."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server: its base address with `/v1`, and the model to ask; "" means the first that it
    lists. `key` is sent only to this server.
    """

    name: str
    url: str
    model: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"<Endpoint {self.name} {self.url}>"


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of all requests. After `patience_s` of silence an answer counts as stalled."""

    output_tokens: int
    patience_s: float
    ignores_eos: bool = True


class ServerConnections:
    """One server's connections, at most `max_streams`."""

    def __init__(self, endpoint: Endpoint, options: RequestOptions, max_streams: int) -> None:
        self.endpoint = endpoint
        self._options = options
        try:
            self._http = HttpClient(endpoint.url, max_connections=max_streams, max_idle=max_streams)
        except ValueError as error:
            raise ConfigError(f"--url: {error}") from None
        self._path = urlsplit(endpoint.url).path.rstrip("/")
        self._headers = [(b"content-type", b"application/json")]
        if endpoint.key:
            self._headers.append((b"authorization", f"Bearer {endpoint.key}".encode()))
        self._running: dict[int, tuple[HttpAnswer, trio.CancelScope]] = {}

    async def first_model(self) -> str:
        """The first model that the server lists. Raises `ServerSilent`."""
        body, where = b"", f"{self.endpoint.name}: GET {self.endpoint.url}/models"
        try:
            with trio.fail_after(self._options.patience_s):
                async with self._http.exchange(
                    "GET", f"{self._path}/models", self._headers
                ) as response:
                    async for data in response.body:
                        body += data
            if response.status != OK:
                raise ServerSilent(f"{where} answers {response.status}: {_start_of(body)}")
            return str(msgspec.json.decode(body)["data"][0]["id"])
        except trio.TooSlowError as error:
            raise ServerSilent(f"{where}: no answer in {self._options.patience_s:g} s") from error
        except HttpError as error:
            raise ServerSilent(
                f"{where}: {error}; start a server there, or name one with --url"
            ) from error
        except (msgspec.DecodeError, LookupError, TypeError) as error:
            raise ServerSilent(f"{where} lists no model: {_start_of(body)}") from error

    async def ask(self, request: WorkloadRequest, output_tokens: int) -> HttpAnswer:
        """One answer, outside of any load. Raises `ServerSilent`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.end_stalled)
            answer = await self._answer(self._body(request, output_tokens))
            nursery.cancel_scope.cancel()
        if answer.error_kind is not None:
            url = f"{self.endpoint.url}/chat/completions"
            raise ServerSilent(
                f"{self.endpoint.name}: POST {url}: {answer.error_kind}: {answer.error_detail}"
            )
        return answer

    async def load(
        self,
        chains: Sequence[RequestChain],
        streams: int,
        output_tokens: int,
        count_answer: Callable[[], None],
        starts_s: Sequence[float] = (),
    ) -> tuple[list[tuple[WorkloadRequest, HttpAnswer]], float]:
        """Answers to all `chains`, `streams` of them at once, and the CPU seconds of this process.
        `count_answer` is called after each answer. The streams begin after `starts_s`, all at once
        without.
        """
        waiting = iter(
            [[(one, self._body(one, output_tokens)) for one in chain] for chain in chains]
        )
        answers: list[tuple[WorkloadRequest, HttpAnswer]] = []

        async def run_chains(start_s: float) -> None:
            await trio.sleep(start_s)
            for chain in waiting:
                for request, body in chain:
                    answers.append((request, await self._answer(body)))
                    count_answer()

        gc.collect()
        gc.disable()
        began_s = time.process_time()
        try:
            async with trio.open_nursery() as watching:
                watching.start_soon(self.end_stalled)
                async with trio.open_nursery() as nursery:
                    for start_s in starts_s or [0.0] * streams:
                        nursery.start_soon(run_chains, start_s)
                watching.cancel_scope.cancel()
        finally:
            gc.enable()
        return answers, time.process_time() - began_s

    async def answer(self, request: WorkloadRequest, output_tokens: int) -> HttpAnswer:
        """One answer of a load whose owner runs `end_stalled`."""
        return await self._answer(self._body(request, output_tokens))

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    async def _answer(self, body: bytes) -> HttpAnswer:
        answer = HttpAnswer(time.perf_counter())
        with trio.CancelScope() as scope:
            self._running[id(answer)] = answer, scope
            try:
                await self._exchange(body, answer)
            except HttpError as error:
                answer.fail(_KINDS.get(type(error).__name__, "protocol error"), str(error))
            finally:
                del self._running[id(answer)]
        return answer

    async def _exchange(self, body: bytes, answer: HttpAnswer) -> None:
        try:
            await self._stream(body, answer)
        except KeptConnectionClosed:
            # The server closed an idle connection just then. The clock runs on.
            await self._stream(body, answer)

    async def _stream(self, body: bytes, answer: HttpAnswer) -> None:
        target, clock = f"{self._path}/chat/completions", time.perf_counter
        async with self._http.exchange("POST", target, self._headers, body) as response:
            if not _is_stream(response.status, response.headers):
                start = b""
                async for data in response.body:
                    start = (start + data)[:_MAX_ERROR_BYTES]
                answer.reject(response.status, start)
                return
            feed = answer.feed
            async for data in response.body:
                feed(data, clock())
            answer.end()

    async def end_stalled(self) -> None:
        """End stalled answers until cancelled. One task watches all streams: a deadline moved at
        every read costs more.
        """
        patience_s = self._options.patience_s
        while True:
            await trio.sleep(patience_s / 8)
            now = time.perf_counter()
            for answer, scope in self._running.values():
                if now - answer.last_at > patience_s:
                    answer.fail("stalled", f"no content for {patience_s:g} s")
                    scope.cancel()

    def _body(self, request: WorkloadRequest, output_tokens: int) -> bytes:
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": request.messages,
            "max_tokens": output_tokens,
            "temperature": TEMPERATURE,
            "top_p": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._options.ignores_eos:
            body["ignore_eos"] = True
        return json.dumps(body).encode()


def _is_stream(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    kind = next((value for name, value in headers if name == b"content-type"), b"")
    return status == OK and kind.startswith(b"text/event-stream")


def _start_of(body: bytes) -> str:
    return body[:200].decode(errors="replace")
