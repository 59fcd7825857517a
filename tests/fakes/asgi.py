"""An ASGI server's side without a network, and a scripted gateway behind the HTTP edge."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio
from starlette.types import ASGIApp, Message

from config import GatewayConfig, KeyConfig
from gateway.api.events import ChoiceFinished, Started, TextDelta, TurnEvent, Usage
from gateway.api.request import ChatRequest
from gateway.http.edge import Edge, EdgeSettings, Emit, FleetGauges
from gateway.http.error_responses import ClientGone, Header, error_of, send_error
from gateway.http.response_writer import EXTENSION, MAX_PENDING_BYTES, Look
from gateway.routing.models import ModelView
from gateway.turn.caller import Caller
from tests.fakes.stream_checker import is_stream
from tests.fakes.stream_checkers import checker_of

STARTED = Started(
    served_by="worker", worker="gpu0", cached_tokens=64, route="prefix 64 of 70", model="alpha"
)
USAGE = Usage(prompt_tokens=70, cached_tokens=64, completion_tokens=2)
ANSWER: tuple[TurnEvent, ...] = (
    STARTED,
    TextDelta(0, "Hello"),
    TextDelta(0, " you"),
    ChoiceFinished(0, "stop"),
    USAGE,
)
LOOPBACK = ("127.0.0.1", 50_000)

Step = float | TurnEvent | Exception | Callable[[Emit], Awaitable[None]]


class Script:
    """A turn that does what its steps say: a number sleeps, an event is emitted, an exception is
    raised, a function runs. Records who asked, and when a turn was cancelled.
    """

    def __init__(self, *steps: Step) -> None:
        self.steps: Sequence[Step] = steps or ANSWER
        self.requests: list[ChatRequest] = []
        self.callers: list[Caller] = []
        self.started = trio.Event()
        self.cancelled_at: float | None = None
        self.cancelled = trio.Event()

    async def run_turn(self, request: ChatRequest, caller: Caller, emit: Emit) -> None:
        self.requests.append(request)
        self.callers.append(caller)
        self.started.set()
        try:
            for step in self.steps:
                await _take(step, emit)
        except trio.Cancelled:
            self.cancelled_at = trio.current_time()
            self.cancelled.set()
            raise


async def _take(step: Step, emit: Emit) -> None:
    if isinstance(step, int | float):
        await trio.sleep(step)
    elif isinstance(step, Exception):
        raise step
    elif isinstance(step, msgspec.Struct):
        emit(step)
    else:
        await step(emit)


def model_view(name: str = "alpha", **changes: Any) -> ModelView:
    """A ready model with a window of 65,536."""
    facts: dict[str, Any] = {
        "name": name,
        "aliases": (),
        "context_length": 65_536,
        "state": "ready",
        "files_digest": bytes(16),
        "block_size": 32,
        "fallback": (),
        "cloud": True,
        "ready_workers": 1,
    }
    return ModelView(**{**facts, **changes})


def scripted_edge(
    script: Script,
    *,
    keys: tuple[KeyConfig, ...] = (),
    models: tuple[ModelView, ...] = (),
    gauges: FleetGauges | None = None,
    draining: bool = False,
    **config: Any,
) -> Edge:
    """An edge whose turns follow `script`."""
    views = models or (model_view(aliases=("default",)),)
    return Edge(
        EdgeSettings(GatewayConfig(**config), keys),
        version="1.2.3",
        run_turn=script.run_turn,
        models=lambda: views,
        gauges=lambda: gauges or FleetGauges(),
        draining=lambda: draining,
        draw=bytes,
        unix_time=lambda: 1_800_000_000.0,
    )


def chat_body(*, stream: bool = True, **fields: Any) -> bytes:
    """A small valid request."""
    message = {"role": "user", "content": "Hi"}
    return msgspec.json.encode(
        {"model": "alpha", "messages": [message], "stream": stream, **fields}
    )


class FakeResponseWriter:
    """A `ResponseWriter` whose peer takes everything at once, or nothing while the exchange does
    not read.

    It looks at the clock at exact times, which the server need not.
    """

    extra_headers: Sequence[Header] = ()

    def __init__(self, exchange: "Exchange") -> None:
        self._exchange = exchange
        self._num_waiting_bytes = 0
        self.wrote_at = 0.0
        self.is_gone = False
        self.num_refused = 0
        self.answering = trio.CancelScope()
        self._is_watched = False

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        self.open(status, [*headers, (b"content-length", b"%d" % len(body))])
        self.end(body)

    def open(self, status: int, headers: Sequence[Header]) -> None:
        assert not self._exchange.writes
        headers = [*headers, *self.extra_headers]
        self._note({"type": "http.response.start", "status": status, "headers": headers})

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

    def give_up(self) -> None:
        self.answering.cancel()

    def whole_body(self, max_bytes: int) -> bytes | None:  # noqa: ARG002
        return None

    def _part(self, chunk: bytes, *, more: bool) -> None:
        if self.is_gone:
            return
        _, last = self._exchange.writes[-1]
        assert last.get("more_body", True), "nothing may follow the end"
        self._note({"type": "http.response.body", "body": chunk, "more_body": more})

    def _note(self, message: dict[str, object]) -> None:
        self._exchange.writes.append((trio.current_time(), message))


@dataclass
class Exchange:
    """One request to the app, as our server hands it over. `writes` are (time, message) as the app
    sent or pushed them. While `reads` is cleared the client reads nothing, so that sends block.
    """

    app: ASGIApp
    method: str = "POST"
    path: str = "/v1/chat/completions"
    body: bytes = b""
    headers: Sequence[tuple[bytes, bytes]] = ()
    client: tuple[str, int] | None = LOOPBACK
    more_body: bool = False
    writes: list[tuple[float, Message]] = field(default_factory=list)
    reads: bool = True
    _resumed: trio.Event = field(default_factory=trio.Event)
    _gone: trio.Event = field(default_factory=trio.Event)
    _asked: bool = False

    def __post_init__(self) -> None:
        self.writer = FakeResponseWriter(self)

    async def run(self) -> "Exchange":
        """Let the app handle the request to its end; what it streams is checked."""
        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "headers": list(self.headers),
            "client": self.client,
            "server": ("127.0.0.1", 8080),
            "extensions": {EXTENSION: self.writer},
        }
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_gone, nursery.cancel_scope)
            with suppress(ClientGone), self.writer.answering:
                error = await error_of(self.app, scope, self._receive, self._send)
                if error is not None and not self.writes:
                    await send_error(self._send, error)
            nursery.cancel_scope.cancel()
        self._check_stream()
        return self

    async def _cancel_when_gone(self, scope: trio.CancelScope) -> None:
        await self._gone.wait()
        self.writer.is_gone = True
        scope.cancel()

    def disconnect(self) -> None:
        """The client leaves."""
        self._gone.set()

    def resume_reading(self) -> None:
        """The client reads again."""
        self.reads = True
        self._resumed.set()

    @property
    def status(self) -> int:
        status: int = self.writes[0][1]["status"]
        return status

    @property
    def head(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.writes[0][1]["headers"]}

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for _, message in self.writes)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.content)

    @property
    def events(self) -> list[Any]:
        """The decoded SSE events; `[DONE]` as the string."""
        return decode_events(self.content)

    @property
    def timed_bodies(self) -> list[tuple[float, list[Any]]]:
        """When each non-empty write came, and the events in it."""
        return [
            (at, decode_events(message["body"]))
            for at, message in self.writes
            if message.get("body")
        ]

    def _check_stream(self) -> None:
        """If it is an answer: the other streams of the gateway are no completions."""
        checker = checker_of(self.path)
        if checker is None or not self.writes or not is_stream(self.head):
            return
        checker.feed(self.content)
        if not self.writes[-1][1].get("more_body"):
            checker.end()

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": self.more_body}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        if not self.reads:
            await self._resumed.wait()
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *self.writer.extra_headers]}
        self.writes.append((trio.current_time(), dict(message)))


def decode_events(content: bytes) -> list[Any]:
    """The SSE events of `content`, decoded."""
    datas = [part.removeprefix(b"data: ") for part in content.split(b"\n\n") if part]
    return ["[DONE]" if data == b"[DONE]" else msgspec.json.decode(data) for data in datas]
