"""Answers without the reasoning, for clients that ask for none of it.

Owns the fields by which they ask, and the formats around those of a chat. The model may reason
nevertheless, and its reasoning counts as tokens of the answer. Must not know any other format.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.api.api_format import ApiFormat, BodyBuilder, StreamFormatter
from gateway.api.errors import ApiError
from gateway.api.events import ChoiceEvent, ContentEvent, ReasoningDelta, Started, Usage

QUIET_FIELDS: Final = frozenset({"include_reasoning", "reasoning", "reasoning_format"})
"""vLLM's and OpenRouter's, OpenRouter's newer one, which is an object, and Groq's."""


def hides_reasoning(raw: Mapping[str, Any]) -> bool:
    """Whether a chat that has one of these fields asks for an answer without reasoning."""
    nested = raw.get("reasoning")
    return (
        raw.get("include_reasoning") is False
        or raw.get("reasoning_format") == "hidden"
        or (isinstance(nested, dict) and nested.get("exclude") is True)
    )


def quiet_format(api: ApiFormat) -> ApiFormat:
    """The format `api` without reasoning."""
    return replace(
        api,
        streamed=lambda head: _QuietStream(api.streamed(head)),
        whole=lambda head: _QuietBody(api.whole(head)),
    )


class _QuietStream:
    """A `StreamFormatter`."""

    def __init__(self, inner: StreamFormatter) -> None:
        self._inner = inner
        self.head = inner.head
        self.keep_alive = inner.keep_alive
        self.done = inner.done

    def format(self, event: ChoiceEvent) -> bytes:
        """See `StreamFormatter`."""
        return b"" if isinstance(event, ReasoningDelta) else self._inner.format(event)

    def error(self, error: ApiError) -> bytes:
        """See `StreamFormatter`."""
        return self._inner.error(error)


class _QuietBody:
    """A `BodyBuilder`."""

    def __init__(self, inner: BodyBuilder) -> None:
        self._inner = inner

    def add(self, event: ContentEvent) -> None:
        """See `BodyBuilder`."""
        if not isinstance(event, ReasoningDelta):
            self._inner.add(event)

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:
        """See `BodyBuilder`."""
        return self._inner.body(started, usage)
