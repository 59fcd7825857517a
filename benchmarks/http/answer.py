"""One streamed answer, read from the socket.

Owns the parsing of an event, the times of content, and the faults of an answer. Must not know
sockets or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

OK: Final = 200
_MAX_DETAIL_CHARS: Final = 200


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class ServerUsage(msgspec.Struct):
    """The server's counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """The prompt tokens from a cache; None if the server does not report them."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[object] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: ServerUsage | None = None
    error: object = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True)
class HttpAnswer:
    """One answer. `content_at` are the times of reads that brought content, `events` the number of
    content events in each of them. `error_kind` is None while nothing is wrong.
    """

    sent_at: float
    content_at: list[float] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    usage: ServerUsage | None = None
    finish_reason: str | None = None
    error_kind: str | None = None
    error_detail: str = ""
    is_done: bool = False
    _rest: bytes = b""

    @property
    def num_events(self) -> int:
        """The number of events with content."""
        return sum(self.events)

    @property
    def last_at(self) -> float:
        """The time of the last read of the answer, or of the request if there was none."""
        return self.content_at[-1] if self.content_at else self.sent_at

    def feed(self, data: bytes, now: float) -> None:
        """Read the bytes of one read of the body, which came at `now`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        count = 0
        for line in lines:
            if line.startswith(b"data:"):
                count += self._read_event(line[5:].strip())
        if count:
            self.content_at.append(now)
            self.events.append(count)

    def end(self) -> None:
        """Check a body that is complete."""
        if not self.is_done:
            self.fail("cut", "the stream ended without [DONE]")
        elif not self.content_at:
            self.fail("empty", f"no content came; usage {self.usage}")

    def reject(self, status: int, body: bytes) -> None:
        """Record an answer that is not a stream of events."""
        detail = body.decode(errors="replace").strip()
        if status == OK:
            self.fail("no stream", detail)
        else:
            self.fail(f"HTTP {status}", detail)

    def fail(self, kind: str, detail: str) -> None:
        """Record a failure; the first one counts."""
        if self.error_kind is None:
            self.error_kind, self.error_detail = kind, detail[:_MAX_DETAIL_CHARS]

    def _read_event(self, data: bytes) -> bool:
        """Read an event; return whether it has content."""
        if data == b"[DONE]":
            self.is_done = True
            return False
        try:
            chunk = _decode(data)
        except msgspec.DecodeError as error:
            self.fail("garbage", f"{error}: {data.decode(errors='replace')}")
            return False
        if chunk.error is not None:
            self.fail("error event", str(chunk.error))
        if chunk.usage is not None:
            self.usage = chunk.usage
        has_content = False
        for choice in chunk.choices:
            delta = choice.delta
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
            if delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls:
                has_content = True
        return has_content
