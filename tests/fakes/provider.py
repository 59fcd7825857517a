"""An OpenAI-compatible API on a real loopback port, with knobs for every way to fail."""

import functools
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import trio

KEY = "sk-provider-secret"


@dataclass
class Recorded:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class FakeProvider:
    """Answers chat requests with `words`, one per chunk.

    `status` other than 200 answers with `error_body`. `delay_s` passes before the head,
    `first_delay_s` between head and first word. `cut_after`: the connection breaks after so many
    words. `comments` are SSE comments before the first word. `extra` is put into every chunk.
    `usage` is told in whole answers, and in streams that ask for it, in a chunk of its own.
    `ends` False leaves the closing [DONE] out. No word leaves before `go_on` is set; `before_first`
    is called right before the first one does. After the last event the connection stays open for
    `linger_s`, then ends in order, or not if `breaks`. The last word's chunk says `finish`.
    """

    words: tuple[str, ...] = ("Hello", " from", " afar")
    status: int = 200
    error_body: bytes = b'{"error":{"message":"no","type":"x","param":null,"code":"y"}}'
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    first_delay_s: float = 0.0
    cut_after: int | None = None
    comments: int = 0
    extra: dict[str, Any] = field(default_factory=lambda: {"x_provider": {"shard": 7}})
    usage: dict[str, Any] | None = None
    stream_error: bool = False
    ends: bool = True
    go_on: trio.Event | None = None
    before_first: Callable[[], None] = lambda: None
    linger_s: float = 0.0
    breaks: bool = False
    finish: str | None = "stop"
    requests: list[Recorded] = field(default_factory=list)
    gone: trio.Event = field(default_factory=trio.Event)
    base_url: str = ""

    async def serve(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        self.base_url = f"http{'s' if tls else ''}://127.0.0.1:{port}/v1"
        handle = self._connection if tls is None else functools.partial(self._over_tls, tls)
        async with trio.open_nursery() as nursery:
            task_status.started(self.base_url)
            await trio.serve_listeners(handle, listeners, handler_nursery=nursery)

    async def _over_tls(self, tls: ssl.SSLContext, stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, tls, server_side=True)
        try:
            await secure.do_handshake()
        except trio.BrokenResourceError:
            self.gone.set()
            return
        await self._connection(secure)

    async def _connection(self, stream: trio.abc.Stream) -> None:
        try:
            async with stream:
                await self._exchange(stream, h11.Connection(h11.SERVER))
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            self.gone.set()

    async def _exchange(self, stream: trio.abc.Stream, parser: h11.Connection) -> None:
        body, request = b"", None
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return
        assert request is not None
        headers = {name.decode(): value.decode() for name, value in request.headers}
        recorded = Recorded(request.target.decode(), headers, json.loads(body))
        self.requests.append(recorded)
        await trio.sleep(self.delay_s)
        await self._answer(stream, parser, recorded.body)

    async def _answer(
        self, stream: trio.abc.Stream, parser: h11.Connection, body: dict[str, Any]
    ) -> None:
        async def send(event: h11.Event) -> None:
            await stream.send_all(parser.send(event) or b"")

        streamed = bool(body.get("stream")) and self.status == 200
        kind = "text/event-stream" if streamed else "application/json"
        headers = [("content-type", kind), ("connection", "close"), *self.headers.items()]
        await send(h11.Response(status_code=self.status, headers=headers))
        if self.status != 200:
            await send(h11.Data(data=self.error_body))
        elif streamed:
            options = body.get("stream_options") or {}
            usage = self.usage if options.get("include_usage") else None
            for at, event in enumerate(self.events(body["model"], usage)):
                if at == self.comments:
                    await trio.sleep(self.first_delay_s)
                    if self.go_on is not None:
                        await self.go_on.wait()
                    self.before_first()
                if self.cut_after is not None and at - self.comments >= self.cut_after:
                    await send(h11.Data(data=event[: len(event) // 2]))
                    return
                await send(h11.Data(data=event))
            await trio.sleep(self.linger_s)
            if self.breaks:
                return
        elif self.cut_after is not None:
            return
        else:
            await send(h11.Data(data=self.whole(body["model"])))
        await send(h11.EndOfMessage())

    def events(self, model: str, usage: dict[str, Any] | None = None) -> list[bytes]:
        """The SSE events of a streamed answer."""
        if self.stream_error:
            return [b'data: {"error": {"message": "overheated"}}\n\n']
        chunks = [
            {
                "id": "up-1",
                "object": "chat.completion.chunk",
                "model": model,
                "choices": [
                    {
                        "index": 0,
                        "delta": {"content": word},
                        "finish_reason": self.finish if at == len(self.words) else None,
                    }
                ],
                **self.extra,
            }
            for at, word in enumerate(self.words, 1)
        ]
        if usage is not None:
            chunks.append({"id": "up-1", "model": model, "choices": [], "usage": usage})
        events = [b": still thinking\n\n"] * self.comments
        events += [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
        return [*events, b"data: [DONE]\n\n"] if self.ends else events

    def whole(self, model: str) -> bytes:
        """The body of an answer in one piece."""
        message = {"role": "assistant", "content": "".join(self.words)}
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        told = {} if self.usage is None else {"usage": self.usage}
        answer = {"id": "up-1", "model": model, "choices": [choice], **told, **self.extra}
        return json.dumps(answer).encode()


STORY = "Once there was a fox.\n\nIt ran over\n    the hill, and then home again. The end."


@dataclass
class StoryProvider(FakeProvider):
    """Answers with `story`, and goes on with it behind a last message of the assistant, which must
    be its beginning.
    """

    story: str = STORY

    async def _answer(
        self, stream: trio.abc.Stream, parser: h11.Connection, body: dict[str, Any]
    ) -> None:
        self.begin(body)
        await super()._answer(stream, parser, body)

    def begin(self, body: dict[str, Any]) -> None:
        """Set the words that answer this request."""
        last, rest = body["messages"][-1], self.story
        if last["role"] == "assistant":
            assert rest.startswith(last["content"]), last
            rest = rest[len(last["content"]) :]
        self.words = tuple(re.findall(r"\s+|\S+", rest))


@asynccontextmanager
async def open_provider(provider: FakeProvider | None = None) -> AsyncIterator[FakeProvider]:
    """A provider that listens for the length of the block."""
    provider = provider if provider is not None else FakeProvider()
    async with trio.open_nursery() as nursery:
        await nursery.start(provider.serve)
        yield provider
        nursery.cancel_scope.cancel()
