"""The usage that a provider reports for a request.

Owns the usage objects of the OpenAI API and its variants, in whole answers and in streams. A stream
reports usage only on request, so the gateway always requests it. Clients that did not request it
get none: a chunk without choices is dropped, because many clients index `choices[0]` of every
chunk, and a chunk with choices loses the field. An answer that says something has tokens, so a
usage that counts none is not known, and its request costs the most it can. Must not know prices.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, final

import msgspec

from gateway.api import Usage, UsageObject
from gateway.upstream.sse import data_of, event_of, has_text, split_events
from protocol.reading import FAULTS, objects_in

_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')

MAX_TAIL_BYTES: Final = 2**18

T = TypeVar("T")

MAX_COUNT: Final = 2**31 - 1
_SAID: Final = ("content", "reasoning_content", "reasoning", "refusal", "text")
_OUTPUT: Final = ("completion_tokens", "output_tokens")
_COUNTS: Final = frozenset(
    {
        *_OUTPUT, "prompt_tokens", "input_tokens", "total_tokens", "cached_tokens",
        "prompt_cache_hit_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
        "reasoning_tokens",
    }
)  # fmt: skip
_OUTPUT_DETAILS: Final = ("completion_tokens_details", "output_tokens_details")


def _read_usage(given: object) -> Usage | None:
    """The usage in an object of one, which may count the answer alone; None without a count of the
    answer that can be read: it is charged as the worst case then.
    """
    if not isinstance(given, dict):
        return None
    counts = _counts(given)
    prompt, read = counts.get("prompt_tokens"), counts.get("cache_read_input_tokens", 0)
    if prompt is None:
        # Anthropic counts what it reads from its cache and writes there beside the input.
        written = counts.get("cache_creation_input_tokens", 0)
        prompt = counts.get("input_tokens", 0) + read + written
    details = given.get("prompt_tokens_details")
    if not isinstance(details, dict):
        details = given.get("input_tokens_details")
    cached = _counts(details).get("cached_tokens") if isinstance(details, dict) else None
    if not cached:
        # DeepSeek's name and Moonshot's for the cached tokens, and LiteLLM's.
        cached = counts.get("prompt_cache_hit_tokens", counts.get("cached_tokens")) or read
    said = counts.get("completion_tokens", counts.get("output_tokens"))
    total = counts.get("total_tokens")
    if said is None and total is None and not given.keys().isdisjoint(_OUTPUT):
        return None
    # Some count reasoning in the total only, or beside the output; it is charged as output.
    thought = _thought_in(given)
    if said is not None and thought > said:
        said += thought
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=min(prompt, cached),
        completion_tokens=max(said or 0, (total or 0) - prompt if prompt else 0),
        is_estimate=given.get("is_estimate") is True,
    )


def _thought_in(given: Mapping[str, Any]) -> int:
    """The tokens of reasoning, among the details of the output."""
    for name in _OUTPUT_DETAILS:
        if isinstance(details := given.get(name), dict):
            return _counts(details).get("reasoning_tokens", 0)
    return 0


@final
class UsageCount:
    """The usage of one stream, whose chunks may count it in parts or as it grows: some proxies of
    Anthropic's models count the prompt in the first chunk and the answer in the last.
    """

    def __init__(self) -> None:
        self._prompt: Usage = Usage(0, 0, 0)
        self._completion_tokens = 0

    def add(self, data: bytes) -> bool:
        """Read a chunk; returns whether it counts something."""
        answer = _read(_decode, data)
        part = None if answer is None else _part_of(answer.usage, answer.choices)
        if part is None or not (part.prompt_tokens or part.completion_tokens):
            return False
        if part.prompt_tokens >= self._prompt.prompt_tokens:
            self._prompt = part
        self._completion_tokens = max(self._completion_tokens, part.completion_tokens)
        return True

    @property
    def usage(self) -> Usage | None:
        """The usage so far; None without the tokens of the prompt."""
        if not self._prompt.prompt_tokens:
            return None
        return msgspec.structs.replace(self._prompt, completion_tokens=self._completion_tokens)


def _counts(given: Mapping[str, Any]) -> dict[str, int]:
    """The counts in an object, by their names."""
    counts = {}
    for name, value in given.items():
        if name in _COUNTS:
            number = value if type(value) is int else _whole(value)
            if number is not None and 0 <= number <= MAX_COUNT:
                counts[name] = number
    return counts


def _whole(value: object) -> int | None:
    """A whole number that is written with a point, or as a text, as some servers do."""
    if isinstance(value, str) and value.isdecimal():
        value = float(value[:12])
    return int(value) if isinstance(value, float) and value.is_integer() else None


class _Answer(msgspec.Struct):
    usage: Any = None
    choices: Any = None


_decode: Final = msgspec.json.Decoder(_Answer).decode
_decode_any: Final = msgspec.json.Decoder(dict[str, Any]).decode


def usage_of(body: bytes) -> Usage | None:
    """The usage in a whole answer or a chunk, if it holds one that can be read."""
    answer = _read(_decode, body)
    return None if answer is None else _of_answer(answer.usage, answer.choices)


def usage_in(answer: Mapping[str, Any]) -> Usage | None:
    """Like `usage_of`, for a decoded answer."""
    return _of_answer(answer.get("usage"), answer.get("choices"))


def _of_answer(usage: object, choices: object) -> Usage | None:
    """The usage in its field, or in that of the first choice, where Moonshot's streams have it;
    None without prompt tokens, as every prompt has some.
    """
    found = _part_of(usage, choices)
    return found if found is not None and found.prompt_tokens else None


def _part_of(usage: object, choices: object) -> Usage | None:
    """Like `_of_answer`, for a part that may count the answer alone."""
    if isinstance(usage, dict) or not (isinstance(choices, list) and choices):
        return _read_usage(usage)
    return _read_usage(choices[0].get("usage")) if isinstance(choices[0], dict) else None


def may_contain_usage(events: bytes) -> bool:
    """Whether `events` may contain usage; many providers send `"usage": null` in all but one."""
    return events.find(b'"usage"') >= 0 and _USAGE.search(events) is not None


def asks_for_usage(raw: Mapping[str, Any]) -> bool:
    """Whether the client of the streamed request `raw` wants the usage."""
    options = raw.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def with_usage_requested(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The streamed request `raw` with usage requested; `raw` itself if it does so already."""
    if asks_for_usage(raw):
        return raw
    options = raw.get("stream_options")
    asked = options if isinstance(options, dict) else {}
    return {**raw, "stream_options": {**asked, "include_usage": True}}


def without_usage(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The streamed request `raw` without the field that asks for usage."""
    return {name: value for name, value in raw.items() if name != "stream_options"}


class StreamUsage:
    """Reads the events of one stream. `is_ours`: the client did not ask for the usage. The owner
    sets `first`, the first content of the answer: if that says something, `on_usage` gets no usage
    until tokens of the answer are counted.
    """

    def __init__(self, on_usage: Callable[[Usage], None], *, is_ours: bool) -> None:
        self._on_usage = on_usage
        self._is_ours = is_ours
        self._count: UsageCount | None = None  # made when it is needed: a call for each request
        self.first = b""

    def take(self, events: bytes) -> bytes:
        """The part of `events` that the client gets; `on_usage` gets the usage in them."""
        if not may_contain_usage(events):
            return events
        return b"".join([self._for_client(event) for event in split_events(events)])

    def take_late(self, event: bytes) -> None:
        """Read an event behind `[DONE]`, which no client gets: some servers count there."""
        if may_contain_usage(event) and self._add(data_of(event)):
            self.end()

    def end(self) -> None:
        """The answer is whole. One that says nothing may have no tokens."""
        usage = None if self._count is None else self._count.usage
        if usage is None or usage.completion_tokens:
            return
        if not any(map(has_text, split_events(self.first))):
            self._on_usage(usage)

    def _add(self, data: bytes) -> bool:
        """Read a chunk; returns whether it counts something."""
        count = self._count = self._count or UsageCount()
        has_counted = count.add(data)
        if has_counted and (usage := count.usage) is not None and usage.completion_tokens:
            self._on_usage(usage)
        return has_counted

    def _for_client(self, event: bytes) -> bytes:
        data = data_of(event)
        self._add(data)
        # A usage that cannot be read is kept back as well: no client asked for it.
        chunk = _read(_decode_any, data) if self._is_ours else None
        if chunk is None or not isinstance(chunk.get("usage"), dict):
            return event
        if not chunk.get("choices"):
            return b""
        return event_of({k: v for k, v in chunk.items() if k != "usage"})


@final
class UsageTail:
    """Finds the usage in the last bytes of a response of any kind."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._is_whole = True

    def add(self, data: bytes) -> None:
        """More of the response."""
        self._kept += data
        if len(self._kept) > 2 * MAX_TAIL_BYTES:
            self._is_whole = False
            del self._kept[:-MAX_TAIL_BYTES]

    def usage(self, *, is_stream: bool) -> Usage | None:
        """The last usage in the response, if any. A long answer in one piece is not searched."""
        data = bytes(self._kept)
        if not is_stream:
            return usage_of(data) if self._is_whole else None
        count = UsageCount()
        if may_contain_usage(data):
            for event in split_events(data[data.find(b"data:") :]):
                count.add(data_of(event))
        return count.usage


def _read(decode: Callable[[bytes], T], data: bytes) -> T | None:
    try:
        return decode(data)
    except FAULTS:
        return None


def usage_chunk_of(head: Mapping[str, Any], usage: Usage) -> bytes:
    """The last chunk of a stream, which says its usage; `head` has what all chunks say."""
    return event_of({**head, "choices": [], "usage": msgspec.to_builtins(UsageObject.of(usage))})


def joined(before: object, part: dict[str, Any]) -> dict[str, Any]:
    """The usage objects of two chunks of one stream as one."""
    known = before if isinstance(before, dict) else {}
    return {**known, **{name: value for name, value in part.items() if value or name not in known}}


def with_usage(body: bytes, usage: Usage) -> bytes:
    """A whole answer, a JSON object, with that usage."""
    return msgspec.json.encode({**_decode_any(body), "usage": UsageObject.of(usage)})


def said_in(body: bytes) -> str:
    """The texts of the messages of a whole answer, with thoughts and calls."""
    choices = objects_in(_decode_any(body).get("choices"))
    messages = objects_in([choice.get("message") for choice in choices])
    calls = [call for one in messages for call in objects_in(one.get("tool_calls"))]
    functions = objects_in([call.get("function") for call in calls])
    texts = [message.get(name) for message in messages for name in _SAID]
    texts += [one.get(name) for one in functions for name in ("name", "arguments")]
    return " ".join(one for one in texts if isinstance(one, str))
