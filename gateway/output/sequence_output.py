"""Token ids of one choice -> turn events, over all workers that compute it.

Owns the order of the stages (detokenise, reasoning, stop strings, tool calls), the bound of a
sequence, the count of tokens that the client pays for, whether it may have seen something, and
which log-probabilities belong to the text that it sees. Must not know workers, HTTP or how a stage
works.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final, Literal, final

import msgspec

from gateway.api import (
    ChoiceFinished,
    ReasoningDelta,
    StopReason,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEvent,
    TopLogprob,
    TurnEvent,
)
from gateway.output.answer_format import Splitter
from gateway.output.detokenizer import Detokenizer, PlainTexts, TokenBytes
from gateway.output.reasoning import ANSWER, REASONING, ReasoningSplitter, Split
from gateway.output.stop_strings import StopMatcher
from gateway.output.tools.parser import ToolParser
from protocol.errors import WireError
from protocol.messages import TokenItem, TokenLogprobs
from protocol.tokens import TOKEN_BYTES, unpack_tokens

Reason = Literal["stop", "length"]
Emit = Callable[[TurnEvent], object]
TextEvent = TextDelta | ToolCallEvent
OutputEvent = ReasoningDelta | TextEvent | ChoiceFinished
PlainEvent = TextDelta | ReasoningDelta | ToolCallArguments

_NONE: Final[frozenset[int]] = frozenset()
_NO_MARKS: Final[frozenset[str]] = frozenset()

_event_of: Final[Callable[..., Callable[[str], PlainEvent]]] = lru_cache(maxsize=256)(partial)
"""A function from text to an event of a choice, or of its call. All streams share one object for
each, so that it stays in the CPU cache.
"""


@final
class EventSink:
    """The present receiver of events: `emit` changes when the client of an answer comes or leaves.
    The sink may be called like a function. The token path reads `emit` instead, which saves a call
    and three objects that are in no CPU cache.
    """

    __slots__ = ("emit",)

    def __init__(self, emit: Emit) -> None:
        self.emit = emit

    def __call__(self, event: TurnEvent) -> None:
        self.emit(event)


class SequenceOutput:
    """Takes token ids; events go to `emit`. One of `end_ids` ends the sequence, or `max_tokens`.

    `packed` holds the tokens as on the wire: for a thousand long answers, lists of numbers would
    take most of the memory. `has_text`: the client may have seen some of the answer. `num_unsent`:
    tokens that the client pays for but workers do not send, such as the one that ends the sequence.
    """

    __slots__ = (
        "_end_ids",
        "_max_bytes",
        "_pipeline",
        "_sink",
        "has_text",
        "num_unsent",
        "packed",
    )

    def __init__(
        self,
        pipeline: "OutputPipeline",
        emit: Emit,
        *,
        max_tokens: int,
        end_ids: frozenset[int],
    ) -> None:
        self._pipeline = pipeline
        self._sink = emit if isinstance(emit, EventSink) else EventSink(emit)
        self._max_bytes = max_tokens * TOKEN_BYTES
        self._end_ids = end_ids
        self.packed = bytearray()
        self.has_text = False
        self.num_unsent = 0

    @property
    def num_tokens(self) -> int:
        return len(self.packed) // TOKEN_BYTES

    @property
    def num_left(self) -> int:
        return self._max_bytes // TOKEN_BYTES - self.num_tokens

    @property
    def last_tool(self) -> str:
        """The tool that the answer has called last; "" without a call."""
        return self._pipeline.last_tool

    @property
    def completion_tokens(self) -> int:
        """Tokens that the client pays for."""
        return self.num_tokens - self._pipeline.num_unread + self.num_unsent

    @property
    def reasoning_tokens(self) -> int:
        return self._pipeline.reasoning_tokens

    def take_item(self, item: TokenItem) -> bool:
        """`take` for tokens from a worker, with a fast path for a single plain token."""
        packed = item.ids
        pipeline = self._pipeline
        texts = pipeline.plain
        if texts is not None and len(self.packed) < self._max_bytes and (text := texts[packed]):
            self.packed += packed
            self.has_text = True
            if pipeline.plain_is_reasoning:
                pipeline.reasoning_tokens += 1
            self._sink.emit(pipeline.plain_event(text))
            return False
        return self.take(packed, item.logprobs)

    def take(self, packed: bytes, logprobs: Sequence[TokenLogprobs] = ()) -> bool:
        """The next tokens; True once a stop string or a lone call has ended the choice. Raises
        `WireError` for more tokens than were ordered, and unless there are none or one
        log-probability per token.
        """
        ids = unpack_tokens(packed)
        if logprobs and len(logprobs) != len(ids):
            raise WireError(f"{len(logprobs)} log-probabilities came for {len(ids)} tokens")
        if len(self.packed) + len(packed) > self._max_bytes:
            num_ordered = self._max_bytes // TOKEN_BYTES
            raise WireError(f"over {num_ordered} tokens came, against the order")
        self.packed += packed
        for event in self._pipeline.push(ids, logprobs):
            self.has_text = True
            self._sink.emit(event)
        return self._pipeline.stopped

    def finish(self, reason: Reason) -> None:
        for event in self._pipeline.finish(reason):
            if type(event) is not ChoiceFinished:
                self.has_text = True
            self._sink.emit(event)

    def complete_already(self) -> Reason | None:
        """The reason for which the choice is complete already; None if it is not."""
        last = unpack_tokens(bytes(self.packed[-TOKEN_BYTES:]))
        if not self._end_ids.isdisjoint(last):
            return "stop"
        return None if self.num_left else "length"


class OutputPipeline:
    """The stages of the choice `index`.

    The client pays for all tokens except `num_unread`: those after the one that completes a stop
    string. `stopped`: a stop matched, or the only call that is wanted is complete, so the caller
    aborts the work and calls `finish("stop")`. Stops end the answer, never the reasoning, whose
    text often spells them (vllm#52393): `stops`, and the tokens `stop_ids`, which are text of the
    reasoning. Ids in `silent_ids` (those that end the sequence anywhere: end-of-text ids) count
    but have no text. `token_bytes` is needed for
    log-probabilities. Without `tool_parser` (the client asked for no tools) markup is text.
    `reasoning_tokens` counts tokens of reasoning, tags included; `reasoning` finds them, by default
    those between `<think>` and `</think>`.

    Nearly all tokens are plain: no stage looks into them, holds them back or changes them. The
    caller may look up a token in `plain` and, if it has a text there, make that an event with
    `plain_event` instead of a `push`, counting it if `plain_is_reasoning`. While `plain` is None,
    every token has to be pushed.
    """

    __slots__ = (
        "_detokenizer",
        "_index",
        "_is_answer",
        "_logprobs",
        "_may_stop",
        "_reasoning",
        "_silent_ids",
        "_stop_ids",
        "_stops",
        "_tool_parser",
        "num_unread",
        "plain",
        "plain_event",
        "plain_is_reasoning",
        "reasoning_tokens",
        "stopped",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopMatcher,
        tool_parser: ToolParser | None = None,
        *,
        index: int = 0,
        silent_ids: frozenset[int] = _NONE,
        stop_ids: frozenset[int] = _NONE,
        token_bytes: TokenBytes | None = None,
        reasoning: Splitter | None = None,
    ) -> None:
        self._reasoning: Splitter = reasoning or ReasoningSplitter()
        self._detokenizer = detokenizer
        self._stops = stops
        self._tool_parser = tool_parser
        self._index = index
        self._silent_ids = silent_ids
        self._stop_ids = stop_ids
        self._logprobs = _PendingLogprobs(token_bytes) if token_bytes is not None else None
        # Read once per token.
        self._may_stop = stops.can_match
        self._is_answer = self._reasoning.state == "answer"
        self.stopped = False
        self.num_unread = 0
        self.reasoning_tokens = 0
        self.plain: PlainTexts | None = None
        self.plain_event: Callable[[str], PlainEvent] = _event_of(TextDelta, index)
        self.plain_is_reasoning = False

    def push(
        self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()
    ) -> Sequence[OutputEvent]:
        """Events of new tokens; `logprobs` has one entry per id, or none at all."""
        reasoning = answer = ""
        for at, token_id in enumerate(ids):
            if self.stopped:
                self.num_unread += len(ids) - at
                break
            if token_id in self._stop_ids and self._reasoning.state in ANSWER:
                answer += self._rest().answer
                self.stopped = True
                continue
            text = "" if token_id in self._silent_ids else self._detokenizer.push_one(token_id)
            if self._logprobs is not None and logprobs and token_id not in self._silent_ids:
                self._logprobs.add(token_id, logprobs[at], len(text))
            if not self._is_answer:
                split = self._through_reasoning(text)
                reasoning += split.reasoning
                text = split.answer
            answer += self._through_stops(text) if text and self._may_stop else text
        events = self._events(reasoning, answer)
        self._look_ahead()
        return events

    def finish(self, reason: Literal["stop", "length"]) -> list[OutputEvent]:
        """The rest of the text, then `ChoiceFinished`. A stop after tool calls becomes
        "tool_calls". An answer that was cut, or whose last call breaks off, ends with "length"
        instead, because clients execute the calls of a "tool_calls".
        """
        reasoning = answer = ""
        if not self.stopped:
            rest = self._rest()
            reasoning, answer = rest.reasoning, rest.answer
        is_cut = reason == "length" and not self.stopped
        events: list[OutputEvent] = []
        if reasoning or answer:
            events += self._events(reasoning, answer)
        if self._tool_parser is not None:
            matched = self._stops.matched
            is_cut = is_cut or (matched is not None and not self._tool_parser.is_end(matched))
            held = self._tool_parser.flush(is_cut=is_cut)
            if self._logprobs is not None:
                self._add_logprobs(self._logprobs, held)
            events += held
        if self._logprobs is not None and (left := self._logprobs.take()):
            # These log-probabilities belong to tokens whose text is in tool calls.
            events.append(TextDelta(self._index, "", left))
        if self.stopped:
            reason = "stop"
        stop = self._stops.matched if self.stopped else None
        events.append(ChoiceFinished(self._index, self._reason(reason), stop))
        return events

    @property
    def last_tool(self) -> str:
        """See `SequenceOutput`."""
        return "" if self._tool_parser is None else self._tool_parser.last_name

    def _reason(self, reason: Literal["stop", "length"]) -> StopReason:
        parser = self._tool_parser
        if reason == "length" or parser is None or not parser.num_calls:
            return reason
        if parser.broke_off:
            return "stop" if self.stopped else "length"
        return "tool_calls"

    def _rest(self) -> Split:
        """What the detokenizer, the splitter and the stop matcher hold back."""
        reasoning, answer = "", self._detokenizer.flush()
        if not self._is_answer:
            first, last = self._reasoning.push(answer), self._reasoning.flush()
            reasoning = first.reasoning + last.reasoning
            answer = first.answer + last.answer
        if self._may_stop:
            answer = self._through_stops(answer) if answer else ""
            answer = answer if self.stopped else answer + self._stops.flush()
        return Split(reasoning, answer)

    def _look_ahead(self) -> None:
        """Set which tokens are plain if they come next; plain tokens do not change the answer.
        White space at a text's end is held back only beside reasoning and calls.
        """
        self.plain = None
        self.plain_is_reasoning = not self._is_answer
        if self.stopped or self._logprobs is not None or not self._detokenizer.is_whole:
            return
        if self._may_stop and not self._stops.is_quiet:
            return
        parser = self._tool_parser
        if not self._is_answer:
            if self._reasoning.is_quiet:
                self.plain = self._detokenizer.plain(
                    self._reasoning.marks, silent_ids=self._silent_ids
                )
                self.plain_event = _event_of(ReasoningDelta, self._index)
        elif parser is None:
            self.plain = self._texts_without(_NO_MARKS, may_end_in_space=True)
            self.plain_event = _event_of(TextDelta, self._index)
        elif parser.is_quiet:
            self.plain = self._texts_without(parser.marks)
            self.plain_event = _event_of(TextDelta, self._index)
        elif (call_index := parser.open_string) is not None:
            self.plain = self._texts_without(parser.string_marks, may_end_in_space=True)
            self.plain_event = _event_of(ToolCallArguments, self._index, call_index)

    def _texts_without(
        self, marks: frozenset[str], *, may_end_in_space: bool = False
    ) -> PlainTexts | None:
        if self._may_stop:
            marks |= self._stops.marks
        silent_ids = self._silent_ids | self._stop_ids if self._stop_ids else self._silent_ids
        return self._detokenizer.plain(
            marks, silent_ids=silent_ids, may_end_in_space=may_end_in_space
        )

    def _through_stops(self, text: str) -> str:
        num_hidden = self._stops.num_held + len(text)
        shown = self._stops.push(text)
        if self._stops.matched is not None:
            self.stopped = True
            if self._logprobs is not None:
                self._logprobs.cut(num_hidden - len(shown))
        return shown

    def _through_reasoning(self, text: str) -> Split:
        """The text of one token behind the splitter. The token counts as reasoning if it opens,
        continues or closes a block of reasoning.
        """
        reasoning = self._reasoning
        before = reasoning.state
        split = reasoning.push(text)
        self.reasoning_tokens += before in REASONING or reasoning.state in REASONING
        self._is_answer = reasoning.state == "answer"
        return split

    def _events(self, reasoning: str, text: str) -> Sequence[OutputEvent]:
        events: list[TextEvent] = []
        if text:
            parser = self._tool_parser
            events = [TextDelta(self._index, text)] if parser is None else parser.push(text)
            if parser is not None and parser.is_full:
                self.stopped = True
            if self._logprobs is not None:
                self._add_logprobs(self._logprobs, events)
        return [ReasoningDelta(self._index, reasoning), *events] if reasoning else events

    def _add_logprobs(self, logprobs: "_PendingLogprobs", events: list[TextEvent]) -> None:
        """Add the log-probabilities that wait for a text to the first text after their tokens."""
        at = next((at for at, event in enumerate(events) if isinstance(event, TextDelta)), None)
        if at is not None and (entries := logprobs.take()):
            events[at] = msgspec.structs.replace(events[at], logprobs=entries)


class _PendingLogprobs:
    """Entries of tokens whose text was not emitted yet, each with the number of characters before
    it.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._entries: list[tuple[int, TokenLogprob]] = []
        self._num_chars = 0

    def add(self, token_id: int, logprobs: TokenLogprobs, num_chars: int) -> None:
        """One token that added `num_chars` characters to the text."""
        entry = spelled_logprob(self._token_bytes, token_id, logprobs)
        self._entries.append((self._num_chars, entry))
        self._num_chars += num_chars

    def cut(self, num_hidden: int) -> None:
        """Drop entries of tokens that start within the last `num_hidden` characters: a stop."""
        num_shown = self._num_chars - num_hidden
        self._entries = [entry for entry in self._entries if entry[0] < num_shown]

    def take(self) -> tuple[TokenLogprob, ...]:
        taken = tuple(entry for _, entry in self._entries)
        self._entries.clear()
        return taken


def spelled_logprob(
    token_bytes: TokenBytes, token_id: int, logprobs: TokenLogprobs
) -> TokenLogprob:
    """The entry of one token in an answer."""
    spelled = token_bytes.bytes_of(token_id)
    top = []
    for other, logprob in logprobs.top:
        known = token_bytes.bytes_of(other)
        top.append(TopLogprob(_text(known), logprob, list(known)))
    return TokenLogprob(_text(spelled), logprobs.logprob, list(spelled), tuple(top))


def _text(spelled: bytes) -> str:
    return spelled.decode("utf-8", "replace")
