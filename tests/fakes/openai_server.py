"""A small OpenAI-compatible server on loopback whose answers are good, bad or missing by a script.

It knows no tokenizer: a word is a token. Chats beyond the script get good answers.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import trio
import trio.lowlevel

TEMPLATE_TOKENS = 7
"""The tokens of a request without words."""

_STREAM = [("content-type", "text/event-stream")]
_JSON = [("content-type", "application/json")]


class CutConnection(Exception):
    """The script ends the connection in the middle of an answer."""


@dataclass
class FakeOpenAI:
    """`script` holds a behaviour for each chat after the first `num_good`: good, refuse, error,
    cut, stall, garbage, early, empty, plain (no stream), uncounted (no usage) or overcounted (more
    events than tokens). An event carries `words_per_event` words.
    """

    script: Sequence[str] = ()
    num_good: int = 0
    words_per_event: int = 1
    cached_tokens: int | None = None
    chats: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    url: str = ""

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Listen until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1"
        async with trio.open_nursery() as nursery:
            task_status.started()
            await trio.serve_listeners(self._connection, [listener], handler_nursery=nursery)

    async def _connection(self, stream: trio.SocketStream) -> None:
        wire = h11.Connection(h11.SERVER)
        async with stream:
            try:
                while await self._exchange(wire, stream):
                    wire.start_next_cycle()
            except (CutConnection, trio.BrokenResourceError):
                pass  # by the script, or by a client that has given up

    async def _exchange(self, wire: h11.Connection, stream: trio.SocketStream) -> bool:
        body, request = b"", None
        while not isinstance(event := wire.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                wire.receive_data(await stream.receive_some(65_536))
            elif isinstance(event, h11.ConnectionClosed):
                return False
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
        assert request is not None
        self.keys |= {value.decode() for name, value in request.headers if name == b"authorization"}
        async with aclosing(self._answer(request, body)) as parts:
            async for part in parts:
                await stream.send_all(wire.send(part) or b"")
        return True

    async def _answer(self, request: h11.Request, body: bytes) -> AsyncGenerator[h11.Event, None]:
        if request.target == b"/v1/models":
            yield h11.Response(status_code=200, headers=_JSON)
            yield h11.Data(data=b'{"object": "list", "data": [{"id": "fake-1"}, {"id": "fake-2"}]}')
            yield h11.EndOfMessage()
            return
        chat = json.loads(body)
        number = len(self.chats) - self.num_good
        self.chats.append(chat)
        behaviour = self.script[number] if 0 <= number < len(self.script) else "good"
        if behaviour == "refuse":
            yield h11.Response(status_code=429, headers=_JSON)
            yield h11.Data(data=b'{"error": {"message": "too many sequences"}}')
        else:
            kind = _JSON if behaviour == "plain" else _STREAM
            yield h11.Response(status_code=200, headers=kind)
            for event in self._events(chat, behaviour):
                if event == "stall":
                    await trio.sleep_forever()
                if event == "cut":
                    raise CutConnection
                yield h11.Data(data=event.encode())
                await trio.lowlevel.checkpoint()
        yield h11.EndOfMessage()

    def _events(self, chat: dict[str, Any], behaviour: str) -> Iterator[str]:
        limit = chat["max_tokens"]
        count = {"early": limit // 2, "empty": 0}.get(behaviour, limit)
        yield _event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        for start in range(0, count, self.words_per_event):
            text = " word" * min(self.words_per_event, count - start)
            if start >= count // 2 and behaviour in {"error", "cut", "stall", "garbage"}:
                yield {
                    "error": _event(error={"message": "the engine died", "code": 502}),
                    "garbage": 'data: {"choices": [}\n\n',
                }.get(behaviour, behaviour)
            yield _event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])
        yield _event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
        if behaviour != "uncounted":
            counted = count // 2 if behaviour == "overcounted" else count
            yield _event(choices=[], usage=self._usage(chat, counted))
        yield "data: [DONE]\n\n"

    def _usage(self, chat: dict[str, Any], completion_tokens: int) -> dict[str, Any]:
        words = sum(len(message["content"].split()) for message in chat["messages"])
        usage: dict[str, Any] = {
            "prompt_tokens": words + TEMPLATE_TOKENS,
            "completion_tokens": completion_tokens,
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage


def _event(**fields: Any) -> str:
    return f"data: {json.dumps(fields)}\n\n"


@asynccontextmanager
async def open_fake_openai(server: FakeOpenAI) -> AsyncIterator[FakeOpenAI]:
    """The server, for the length of the block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        yield server
        nursery.cancel_scope.cancel()
