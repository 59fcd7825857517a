"""Turn events -> the bytes of the completions API.

Owns its chunks, its body and its form of log-probabilities. Must not know sockets or when to speak.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec

from gateway.api.api_format import AnswerHead, Dialect
from gateway.api.chat_formatter import DONE, herma_object, usage_chunk, usage_object
from gateway.api.errors import ApiError
from gateway.api.events import (
    ChoiceEvent,
    ContentEvent,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

_AFTER_TEXT: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'
_encode = msgspec.json.Encoder().encode


def completions_dialect(echoes: Sequence[str] = ()) -> Dialect:
    """How the completions API writes; `echoes` are what each choice begins with, if anything."""
    return Dialect(
        id_prefix="cmpl-",
        streamed=lambda head: CompletionsStream(head, echoes),
        whole=lambda head: CompletionsBody(head, echoes),
    )


class CompletionsStream:
    """A `StreamFormatter`: one chunk per event that has text, an end, or the usage."""

    def __init__(self, head: AnswerHead, echoes: Sequence[str] = ()) -> None:
        self._envelope = b"data: " + _encode(_envelope(head))[:-1] + b","
        self._include_usage = head.include_usage
        self._started: Started | None = None
        self._offsets: dict[int, int] = {at: len(echo) for at, echo in enumerate(echoes)}
        self._echoes = echoes
        self._going_on = {0: None}

    def head(self, num_choices: int = 1) -> bytes:
        """The prompts, for those who want them back."""
        self._going_on = dict.fromkeys(range(num_choices))
        return b"".join(self._text(at, echo) for at, echo in enumerate(self._echoes))

    def keep_alive(self) -> bytes:
        """A chunk without text, of a choice that goes on; b"" if there is none."""
        index = next(iter(self._going_on), None)
        return b"" if index is None else self._text(index, "")

    def format(self, event: ChoiceEvent) -> bytes:
        """The bytes for `event`; b"" where the client is told nothing."""
        if type(event) is TextDelta:
            plain = event.logprobs is None
            return self._text(event.index, event.text) if plain else self._scored(event)
        match event:
            case Finished():
                self._going_on.pop(event.index, None)
                return self._choice(event.index, "", reason=event.reason)
            case Usage():
                if not self._include_usage:
                    return b""
                return usage_chunk(self._envelope, event, self._started)
            case Started():
                self._started = event
                return b""
            case _:
                return b""

    def error(self, error: ApiError) -> bytes:
        """An SSE error event; no [DONE] may follow."""
        return b"data: " + error.body() + b"\n\n"

    def done(self) -> bytes:
        """`data: [DONE]`."""
        return DONE

    def _text(self, index: int, text: str) -> bytes:
        prefix = b'%b"choices":[{"index":%d,"text":' % (self._envelope, index)
        return prefix + _encode(text) + _AFTER_TEXT

    def _scored(self, event: TextDelta) -> bytes:
        offset = self._offsets.get(event.index, 0)
        entries = event.logprobs or ()
        self._offsets[event.index] = offset + sum(len(entry.token) for entry in entries)
        return self._choice(event.index, event.text, logprobs=_logprobs(entries, offset))

    def _choice(
        self,
        index: int,
        text: str,
        *,
        logprobs: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return self._envelope + b'"choices":' + _encode([choice]) + b"}\n\n"


class CompletionsBody:
    """A `BodyBuilder`: one object with all choices."""

    def __init__(self, head: AnswerHead, echoes: Sequence[str] = ()) -> None:
        self._head = head
        self._echoes = dict(enumerate(echoes))
        self._choices: dict[int, _Choice] = {}

    def add(self, event: ContentEvent) -> None:
        """See `BodyBuilder`."""
        match event:
            case TextDelta():
                self._choice(event.index).add(event)
            case Finished():
                self._choice(event.index).reason = event.reason
            case ReasoningDelta() | ToolCallStart() | ToolCallArguments() | ToolCallEnd():
                pass  # a raw completion is not read for these
            case _:
                assert_never(event)

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:
        """See `BodyBuilder`."""
        body = _envelope(self._head)
        body["choices"] = [self._choices[index].as_dict(index) for index in sorted(self._choices)]
        if usage is not None:
            body["usage"] = usage_object(usage)
        if started is not None:
            cached = usage.cached_tokens if usage is not None else started.cached_tokens
            body["herma"] = herma_object(started, cached)
        return _encode(body)

    def _choice(self, index: int) -> "_Choice":
        if index not in self._choices:
            self._choices[index] = _Choice(self._echoes.get(index, ""))
        return self._choices[index]


class _Choice:
    """One choice as it grows."""

    def __init__(self, echo: str) -> None:
        self._texts = [echo]
        self._num_echoed = len(echo)
        self._logprobs: list[TokenLogprob] | None = None
        self.reason: str | None = None

    def add(self, delta: TextDelta) -> None:
        """More text."""
        self._texts.append(delta.text)
        if delta.logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *delta.logprobs]

    def as_dict(self, index: int) -> dict[str, Any]:
        """The choice in the API's shape."""
        scores = self._logprobs
        return {
            "index": index,
            "text": "".join(self._texts),
            "logprobs": None if scores is None else _logprobs(scores, self._num_echoed),
            "finish_reason": self.reason,
        }


def _envelope(head: AnswerHead) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
    }


def _logprobs(entries: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """Four lists, one entry per token; `offset` is where the first one's text begins."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            {entry.token: entry.logprob, **{top.token: top.logprob for top in entry.top_logprobs}}
            for entry in entries
        ],
        "text_offset": offsets,
    }
