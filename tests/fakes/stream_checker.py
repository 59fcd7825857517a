"""What a streamed answer of ours must be, from its first byte to its last.

Owns the grammar of the stream: framing, one envelope, roles, the order within a choice, tool
calls, one finish each, usage last, `[DONE]` once. Pure: bytes in, a `StreamFault` or the joined
answer out. Must not know who asked, nor how the bytes came.

Streams of a provider pass through the gateway as they are, so of them only the framing is ours to
check: they are known by the id of their first chunk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Never

import msgspec

from gateway.api.custom_tools import arguments_of

OUR_IDS: Final = ("chatcmpl-", "cmpl-")
ENVELOPE: Final = ("id", "object", "created", "model")
KINDS: Final = ("chat.completion.chunk", "text_completion")
REASONS: Final = ("stop", "length", "tool_calls")
USAGE: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


class StreamFault(AssertionError):
    """A stream is not what it must be; the text says which event, and why."""


@dataclass
class StreamedCall:
    """One tool call as its deltas joined it."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class StreamedChoice:
    """One choice as its deltas joined it."""

    text: str = ""
    reasoning: str = ""
    calls: list[StreamedCall] = field(default_factory=list)
    has_role: bool = False
    finish_reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """What a client that joins deltas is left with. Ids of calls are drawn anew per answer."""
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.calls]
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "calls": calls,
            "finish_reason": self.finish_reason,
        }


class StreamChecker:
    """Takes a stream's bytes as they come; raises `StreamFault` at the first that is wrong.

    `counts_along`: the client wants the usage so far in every chunk.
    """

    def __init__(self, *, counts_along: bool = False) -> None:
        self._counts_along = counts_along
        self.choices: dict[int, StreamedChoice] = {}
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.is_done = False
        self.is_foreign = False
        self._envelope: tuple[Any, ...] | None = None
        self._rest = b""
        self._num_events = 0
        self._has_comments = False

    def feed(self, data: bytes) -> None:
        """Check what `data` completes."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            self._take(event)
            self._num_events += 1

    def end(self) -> None:
        """The connection said that the answer is complete: is it?"""
        if self._rest:
            self._fault(f"ended within an event: {self._rest[:80]!r}")
        if not (self.is_done or self.error or self.is_foreign):
            self._fault("ended with neither [DONE] nor an error")

    def answers(self) -> list[dict[str, Any]]:
        """The choices in order, as clients have them."""
        return [self.choices[index].as_dict() for index in sorted(self.choices)]

    def _take(self, event: bytes) -> None:
        if self.is_foreign:
            return
        if self.is_done or self.error:
            self._fault(f"something behind the end: {event[:80]!r}")
        if event.startswith(b":") and self._envelope is None:
            self._has_comments = True  # a provider's, perhaps
            return
        if not event.startswith(b"data: ") or b"\n" in event:
            self._fault(f"no event of one data line: {event[:80]!r}")
        if event == b"data: [DONE]":
            self._check_whole()
            self.is_done = True
            return
        try:
            chunk = msgspec.json.decode(event[6:])
        except msgspec.DecodeError as error:
            self._fault(f"no JSON ({error}): {event[:80]!r}")
        if "error" in chunk:
            self._take_error(chunk["error"])
        else:
            self._take_chunk(chunk)

    def _take_error(self, error: Any) -> None:
        if not isinstance(error, dict) or not error.get("message"):
            self._fault(f"an error without a message: {error!r}")
        self.error = error

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        envelope = tuple(chunk.get(name) for name in ENVELOPE)
        if self._envelope is None:
            self._envelope = envelope
            self.is_foreign = not str(envelope[0]).startswith(OUR_IDS)
            if self.is_foreign:
                return
            self._check(not self._has_comments, "a comment, which clients do not count as life")
            self._check(chunk["object"] in KINDS, f"a chunk of kind {chunk['object']!r}")
        self._check(envelope == self._envelope, f"{envelope} behind {self._envelope}")
        self._check(self.usage is None, "a chunk behind the usage")
        if chunk["choices"]:
            is_clean = self._counts_along or not chunk.get("usage")
            self._check(is_clean, "usage in a chunk that has choices")
            for choice in chunk["choices"]:
                self._take_choice(choice)
        else:
            self._take_usage(chunk.get("usage"))

    def _take_usage(self, usage: Any) -> None:
        self._check(bool(usage), "a chunk without choices, and no usage in it")
        self._check(all(isinstance(usage.get(name), int) for name in USAGE), f"usage {usage}")
        prompt, completion, total = (usage[name] for name in USAGE)
        self._check(prompt + completion == total, f"a total that is no sum: {usage}")
        self._check_whole()
        self.usage = usage

    def _take_choice(self, choice: dict[str, Any]) -> None:
        index = choice["index"]
        told = self.choices.setdefault(index, StreamedChoice())
        self._check(told.finish_reason is None, f"choice {index} goes on behind its finish")
        if "text" in choice:
            told.text += choice["text"]
        else:
            self._take_delta(told, choice["delta"], index)
        if (reason := choice.get("finish_reason")) is not None:
            self._check(reason in REASONS, f"a finish_reason {reason!r}")
            told.finish_reason = reason
            self._check_calls(told, index)

    def _take_delta(self, told: StreamedChoice, delta: dict[str, Any], index: int) -> None:
        role = delta.get("role")
        self._check(
            (role is None) == told.has_role, f"choice {index}: role {role!r}, not once first"
        )
        self._check(role in {None, "assistant"}, f"a role {role!r}")
        told.has_role = True
        thought = delta.get("reasoning_content")
        self._check(thought == delta.get("reasoning"), "a thought under one of its names only")
        if thought:
            self._check(not (told.text or told.calls), f"choice {index} thinks behind its answer")
            told.reasoning += thought
        told.text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            self._take_call(told, call)

    def _take_call(self, told: StreamedChoice, call: dict[str, Any]) -> None:
        place, custom = call["index"], call.get("custom")
        function = call["function"] if custom is None else {"name": custom.get("name")}
        if "id" in call:
            self._check(
                place == len(told.calls), f"call {place} begins as number {len(told.calls)}"
            )
            kind = "function" if custom is None else "custom"
            self._check(call.get("type") == kind, f"a call of type {call.get('type')!r}")
            self._check(bool(call["id"] and function.get("name")), "a call without id or name")
            told.calls.append(StreamedCall(call["id"], function["name"]))
        else:
            last = len(told.calls) - 1
            self._check(place == last, f"arguments of call {place} while call {last} is open")
            self._check(function.get("name") is None, "a name that comes twice")
            if custom is not None:
                function = {"arguments": arguments_of(custom["input"])}
        told.calls[place].arguments += function.get("arguments") or ""

    def _check_calls(self, told: StreamedChoice, index: int) -> None:
        is_call = told.finish_reason == "tool_calls"
        self._check(bool(told.calls) or not is_call, f"choice {index} ends in calls, and has none")
        ids = {call.id for call in told.calls}
        self._check(len(ids) == len(told.calls), f"choice {index}: two calls of one id")
        for call in told.calls if is_call else ():
            if not _is_object(call.arguments):
                self._fault(f"arguments that are no JSON object: {call.arguments[:80]!r}")

    def _check_whole(self) -> None:
        self._check(
            bool(self.choices) and sorted(self.choices) == list(range(len(self.choices))),
            f"choices {sorted(self.choices)}",
        )
        unfinished = [i for i, choice in self.choices.items() if choice.finish_reason is None]
        self._check(not unfinished, f"choices {unfinished} without a finish_reason")

    def _check(self, holds: bool, fault: str) -> None:
        if not holds:
            self._fault(fault)

    def _fault(self, fault: str) -> Never:
        raise StreamFault(f"event {self._num_events}: {fault}")


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        return False


def is_stream(headers: Mapping[str, str]) -> bool:
    """Whether a reply with these headers streams its answer."""
    return headers.get("content-type", "").startswith("text/event-stream")


def check_stream(data: bytes, *, counts_along: bool = False) -> StreamChecker:
    """Check a whole stream. Raises `StreamFault`."""
    checker = StreamChecker(counts_along=counts_along)
    checker.feed(data)
    checker.end()
    return checker


def whole_answers(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of an answer that was not streamed, in the form of `StreamChecker.answers`."""
    return [_whole_answer(choice) for choice in body["choices"]]


def _whole_answer(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice.get("message", {"content": choice.get("text")})
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {
        "text": message["content"] or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [{"name": call["name"], "arguments": call["arguments"]} for call in calls],
        "finish_reason": choice["finish_reason"],
    }
