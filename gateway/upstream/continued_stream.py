"""The chunks of an upstream that goes on with another's answer, as the client gets them.

Owns the seam: one id for the whole stream, no white space twice, a stop string that was begun
before the cut, and usage that adds up. The bytes before the seam were sent and never change. Must
not know upstreams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import msgspec

from gateway.api import DONE, Usage
from gateway.upstream.sent_answer import SentAnswer
from gateway.upstream.sse import data_of, event_of, split_events
from protocol.errors import HermaError

MARK: Final = "x_herma_resumed"
"""The field of the first chunk behind the seam: who goes on."""

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class StopReached(HermaError):
    """The answer has ended by a stop string over the seam; its end was passed on."""


class NotContinued(HermaError):
    """The upstream does not go on with the text: it begins to think."""


@final
class ContinuedStream:
    """Takes events of the other upstream, `by`; `on_events` gets those for the client. `stops` are
    the stop strings of the request, which the answer keeps with `keeps_stop`. `has_passed` is for
    the owner: whether the client has got any.
    """

    def __init__(
        self,
        sent: SentAnswer,
        on_events: Callable[[bytes], None],
        by: str,
        *,
        stops: tuple[str, ...] = (),
        keeps_stop: bool = False,
    ) -> None:
        text = sent.text
        self._head = {**sent.head, MARK: by}
        self._on_events = on_events
        self._tokens = sent.tokens
        self._space: str | None = text[len(text.rstrip()) :] or None
        self._held = ""
        self._tail = text[-max((len(stop) - 1 for stop in stops), default=0) :] if stops else ""
        self._stops = stops if self._may_stop("", stops) else ()
        self._window = ""
        self._keeps_stop = keeps_stop
        self.has_passed = False

    def take(self, events: bytes) -> None:
        """Pass events on. Raises `StopReached`, `NotContinued`."""
        written = [
            self._written(event)
            for event in split_events(events)
            if (data := data_of(event)).startswith((b"{", b"[DONE]")) or not data.strip()
        ]
        if whole := b"".join(written):
            self._on_events(whole)

    def usage(self, usage: Usage) -> Usage:
        """The usage of the whole answer: what was sent is no part of its prompt."""
        moved = min(self._tokens, usage.prompt_tokens - 1)
        prompt_tokens = usage.prompt_tokens - moved
        return msgspec.structs.replace(
            usage,
            prompt_tokens=prompt_tokens,
            cached_tokens=min(usage.cached_tokens, prompt_tokens),
            completion_tokens=usage.completion_tokens + moved,
        )

    def _written(self, event: bytes) -> bytes:
        data = data_of(event)
        if not data.startswith(b"{"):
            return event
        chunk = _decode(data)
        choices = [one for one in chunk.get("choices") or () if isinstance(one, dict)]
        for choice in choices:
            delta = choice.get("delta")
            if isinstance(delta, dict):
                self._take_delta(choice, delta)
        is_empty = bool(choices) and not any(
            one.get("delta") or one.get("finish_reason") for one in choices
        )
        if isinstance(usage := chunk.get("usage"), dict):
            chunk["usage"] = self._usage_field(usage)
        elif is_empty:
            return b""
        return self._event({**chunk, **self._head})

    def _event(self, chunk: dict[str, Any]) -> bytes:
        self._head.pop(MARK, None)
        return event_of(chunk)

    def _take_delta(self, choice: dict[str, Any], delta: dict[str, Any]) -> None:
        if delta.get("reasoning_content") or delta.get("reasoning"):
            raise NotContinued("began to think in place of going on with the text")
        delta.pop("role", None)
        is_over = bool(choice.get("finish_reason") or delta.get("tool_calls"))
        content = delta.pop("content", None)
        if isinstance(content, str) or (is_over and content is None):
            content = self._without_space(content or "", is_over=is_over)
            content = self._without_stop(content, is_over=is_over)
        if content:
            delta["content"] = content

    def _without_space(self, content: str, *, is_over: bool) -> str:
        """`content` without the white space that was sent: the other upstream was asked to go on
        before it, because templates cut it off.
        """
        if self._space is None:
            return content
        self._window += content
        rest = self._window.lstrip()
        if not rest and not is_over:
            return ""
        lead = self._window[: len(self._window) - len(rest)]
        space, self._space, self._window = self._space, None, ""
        return (lead.removeprefix(space) if lead.startswith(space) else "") + rest

    def _may_stop(self, window: str, stops: tuple[str, ...]) -> bool:
        """Whether a stop string that has begun before the seam may go on behind `window`."""
        joined = self._tail + window
        starts = range(len(self._tail))
        return any(stop.startswith(joined[at:]) for at in starts for stop in stops)

    def _without_stop(self, content: str, *, is_over: bool) -> str:
        if not self._stops or not (content or is_over):
            return content
        self._held += content
        joined = self._tail + self._held
        for stop in self._stops:
            at = joined.find(stop)
            if 0 <= at < len(self._tail):
                kept = joined[len(self._tail) : at + len(stop)] if self._keeps_stop else ""
                self._end(kept)
        if not is_over and self._may_stop(self._held, self._stops):
            return ""
        content, self._held, self._stops = self._held, "", ()
        return content

    def _end(self, content: str) -> None:
        """End the answer here. Raises `StopReached`."""
        delta = {"content": content} if content else {}
        choice = {"index": 0, "delta": delta, "finish_reason": "stop"}
        self._on_events(self._event({**self._head, "choices": [choice]}) + DONE)
        raise StopReached("a stop string ends over the seam")

    def _usage_field(self, usage: dict[str, Any]) -> dict[str, Any]:
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if not isinstance(prompt, int) or not isinstance(completion, int):
            return usage
        whole = self.usage(Usage(prompt, 0, completion))
        changed: dict[str, Any] = {
            "prompt_tokens": whole.prompt_tokens,
            "completion_tokens": whole.completion_tokens,
        }
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(cached := details.get("cached_tokens"), int):
            cached = min(cached, whole.prompt_tokens)
            changed["prompt_tokens_details"] = {**details, "cached_tokens": cached}
        return {**usage, **changed}


def ended_by_length(sent: SentAnswer) -> bytes:
    """The end of an answer that was cut where its bound on tokens was reached."""
    choice = {"index": 0, "delta": {}, "finish_reason": "length"}
    return event_of({**sent.head, "choices": [choice]}) + DONE
