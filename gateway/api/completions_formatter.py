"""Turn events -> the bytes of the completions API.

Owns its chunks, its body and its form of log-probabilities, as types that are also the API's
description. Must not know sockets or when to send.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.api_format import (
    DONE,
    AnswerHead,
    ApiFormat,
    HermaObject,
    UsageObject,
    error_chunk,
    usage_chunk,
)
from gateway.api.errors import ApiError
from gateway.api.events import (
    ChoiceEvent,
    ChoiceFinished,
    ContentEvent,
    PromptScored,
    ReasoningDelta,
    Started,
    StopReason,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

_AFTER_TEXT: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'
_encode = msgspec.json.Encoder().encode


class Echo(NamedTuple):
    """The prompt with which a choice begins, and its log-probabilities if they are wanted."""

    text: str
    scores: PromptScored | None = None


def completions_format(echoes: Sequence[Echo] = ()) -> ApiFormat:
    """The completions API; `echoes` are the prompts that the choices begin with, if any."""
    return ApiFormat(
        name="completions",
        id_prefix="cmpl-",
        streamed=lambda head: CompletionsStream(head, echoes),
        whole=lambda head: CompletionsBody(head, echoes),
    )


class TextLogprobs(msgspec.Struct):
    """Lists of one entry per token. The first token of a prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    """One of the answers to one of the prompts. In a stream `finish_reason` comes with the last
    chunk.
    """

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: StopReason | None


class TextCompletion(msgspec.Struct):
    """A completion in one piece, and the data of one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageObject | UnsetType = UNSET
    herma: HermaObject | UnsetType = UNSET


class CompletionsStream:
    """A `StreamFormatter`: one chunk per event that has text, an end, or the usage."""

    def __init__(self, head: AnswerHead, echoes: Sequence[Echo] = ()) -> None:
        empty = TextCompletion(head.id, "text_completion", head.created, head.model, [])
        self._envelope = b"data: " + _encode(empty)[: -len(b'"choices":[]}')]
        self._include_usage = head.include_usage
        self._started: Started | None = None
        self._offsets: dict[int, int] = {at: _length(echo) for at, echo in enumerate(echoes)}
        self._echoes = echoes
        self._unfinished = {0: None}

    def head(self, num_choices: int = 1) -> bytes:
        """The prompts, if the client wants them back."""
        self._unfinished = dict.fromkeys(range(num_choices))
        return b"".join(self._echo(at, echo) for at, echo in enumerate(self._echoes))

    def _echo(self, index: int, echo: Echo) -> bytes:
        if echo.scores is None:
            return self._text(index, echo.text)
        return self._choice(TextChoice(index, echo.text, _prompt_logprobs(echo.scores), None))

    def keep_alive(self) -> bytes:
        """See `StreamFormatter`."""
        index = next(iter(self._unfinished), None)
        return b"" if index is None else self._text(index, "")

    def format(self, event: ChoiceEvent) -> bytes:
        """See `StreamFormatter`."""
        match event:
            case TextDelta(index, text, entries):
                if entries is None:
                    return self._text(index, text)
                offset = self._offsets.get(index, 0)
                self._offsets[index] = offset + sum(len(entry.token) for entry in entries)
                return self._choice(TextChoice(index, text, _logprobs(entries, offset), None))
            case ChoiceFinished(index, reason):
                self._unfinished.pop(index, None)
                return self._choice(TextChoice(index, "", None, reason))
            case Usage() if self._include_usage:
                return usage_chunk(self._envelope, event, self._started)
            case Started():
                self._started = event
            case _:
                pass  # a raw completion has no reasoning and no calls
        return b""

    def error(self, error: ApiError) -> bytes:
        """See `StreamFormatter`."""
        return error_chunk(error)

    def done(self) -> bytes:
        """See `StreamFormatter`."""
        return DONE

    def _text(self, index: int, text: str) -> bytes:
        prefix = b'%b"choices":[{"index":%d,"text":' % (self._envelope, index)
        return prefix + _encode(text) + _AFTER_TEXT

    def _choice(self, choice: TextChoice) -> bytes:
        return self._envelope + b'"choices":' + _encode([choice]) + b"}\n\n"


class CompletionsBody:
    """A `BodyBuilder`: one object with all choices."""

    def __init__(self, head: AnswerHead, echoes: Sequence[Echo] = ()) -> None:
        self._head = head
        self._echoes = dict(enumerate(echoes))
        self._choices: dict[int, _Choice] = {}

    def add(self, event: ContentEvent) -> None:
        """See `BodyBuilder`."""
        match event:
            case TextDelta():
                self._choice(event.index).add(event)
            case ChoiceFinished():
                self._choice(event.index).reason = event.reason
            case ReasoningDelta() | ToolCallStart() | ToolCallArguments() | ToolCallEnd():
                pass  # a raw completion is not read for these
            case _:
                assert_never(event)

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:
        """See `BodyBuilder`."""
        return _encode(
            TextCompletion(
                id=self._head.id,
                object="text_completion",
                created=self._head.created,
                model=self._head.model,
                choices=[self._choices[index].as_object(index) for index in sorted(self._choices)],
                usage=UNSET if usage is None else UsageObject.of(usage),
                herma=UNSET if started is None else HermaObject.of(started, usage),
            )
        )

    def _choice(self, index: int) -> "_Choice":
        if index not in self._choices:
            self._choices[index] = _Choice(self._echoes.get(index, Echo("")))
        return self._choices[index]


class _Choice:
    """One choice as it grows."""

    def __init__(self, echo: Echo) -> None:
        self._texts = [echo.text]
        self._echo = echo
        self._logprobs: list[TokenLogprob] | None = None
        self.reason: StopReason | None = None

    def add(self, delta: TextDelta) -> None:
        self._texts.append(delta.text)
        if delta.logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *delta.logprobs]

    def as_object(self, index: int) -> TextChoice:
        scores = self._logprobs
        logprobs = None if scores is None else _logprobs(scores, _length(self._echo))
        if self._echo.scores is not None:
            prompt = _prompt_logprobs(self._echo.scores)
            logprobs = prompt if logprobs is None else _joined(prompt, logprobs)
        return TextChoice(index, "".join(self._texts), logprobs, self.reason)


def _length(echo: Echo) -> int:
    """Where the text of the answer begins, as `text_offset` counts."""
    if echo.scores is None:
        return len(echo.text)
    return len(echo.scores.first) + sum(len(entry.token) for entry in echo.scores.rest)


def _prompt_logprobs(scores: PromptScored) -> TextLogprobs:
    rest = _logprobs(scores.rest, len(scores.first))
    return _joined(TextLogprobs([scores.first], [None], [None], [0]), rest)


def _joined(one: TextLogprobs, two: TextLogprobs) -> TextLogprobs:
    return TextLogprobs(
        tokens=one.tokens + two.tokens,
        token_logprobs=one.token_logprobs + two.token_logprobs,
        top_logprobs=one.top_logprobs + two.top_logprobs,
        text_offset=one.text_offset + two.text_offset,
    )


def _by_text(entry: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens by their text. Parts of a character have the same text: of these the
    likeliest counts, and before it the token itself.
    """
    found = {entry.token: entry.logprob}
    for top in entry.top_logprobs:
        found.setdefault(top.token, top.logprob)
    return found


def _logprobs(entries: Sequence[TokenLogprob], offset: int) -> TextLogprobs:
    """Four lists, one entry per token; the text of the first one begins at `offset`."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return TextLogprobs(
        tokens=[entry.token for entry in entries],
        token_logprobs=[entry.logprob for entry in entries],
        top_logprobs=[_by_text(entry) for entry in entries],
        text_offset=offsets,
    )
