"""An answer in the form that was not asked for: in one piece instead of a stream, or the reverse.

Owns how each becomes the other. Some servers know no streams for some models and send one JSON
object, some proxies know nothing but streams. Must not know connections.
"""

import codecs
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.api import DONE
from gateway.upstream.relay import BadStream, StreamRelay
from gateway.upstream.sse import ProviderEventSplitter, data_of, event_of, index_of, split_events
from gateway.upstream.stream_end import StreamEnd
from gateway.upstream.usage import StreamUsage, joined

_EVENT_STARTS: Final = (b"data:", b"event:", b"id:", b"retry:", b": ", b":\n")
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode

Fields = dict[str, Any]

_SAID_ONCE: Final = frozenset({"id", "name", "type"})
"""Fields of a call or a sound that are sent whole: later values are not appended."""


def is_stream(body: bytes) -> bool:
    """Whether a body that should be a JSON object is a stream of events."""
    return _begun(body).startswith(_EVENT_STARTS)


def is_whole(data: bytes) -> bool:
    """Whether a body that should be a stream is a whole answer, by its first bytes: a JSON object,
    or the white space that some servers send before one to keep the connection alive.
    """
    begun = _begun(data)
    return begun.startswith(b"{") or not begun


def _begun(data: bytes) -> bytes:
    return data.removeprefix(codecs.BOM_UTF8).lstrip()


def stream_of(body: bytes, *, has_usage: bool = True) -> bytes:
    """The events of a stream that says what `body` says, a whole answer that was checked. The usage
    is in a chunk of its own, or in the last one with a choice.
    """
    answer = _decode(body)
    usage = answer.pop("usage", None)
    choices = answer.pop("choices")
    is_raw = isinstance(choices[0].get("text"), str)
    head = {**answer, "object": "text_completion" if is_raw else "chat.completion.chunk"}
    numbers = list(map(index_of, choices))
    if len(set(numbers)) < len(choices):
        numbers = list(range(len(choices)))
    numbered = zip(choices, numbers, strict=True)
    chunks = [{**head, "choices": [part]} for one, at in numbered for part in _parts(one, at)]
    if isinstance(usage, dict) and has_usage:
        chunks.append({**head, "choices": []})
    if isinstance(usage, dict):
        chunks[-1]["usage"] = usage
    return b"".join(map(event_of, chunks)) + DONE


def _parts(choice: Fields, index: int) -> tuple[Fields, Fields]:
    """The content of the choice with that index, and why it ended."""
    if isinstance(choice.get("text"), str):
        end = {"index": index, "text": "", "finish_reason": choice.get("finish_reason") or "stop"}
        return {**choice, "index": index, "finish_reason": None}, end
    message = choice.get("message")
    delta: Fields = dict(message) if isinstance(message, dict) else {}
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        delta["tool_calls"] = [
            {**call, "index": at} for at, call in enumerate(calls) if isinstance(call, dict)
        ]
    rest = {name: value for name, value in choice.items() if name not in {"message", "index"}}
    reason = rest.pop("finish_reason", None) or ("tool_calls" if calls else "stop")
    said = {**rest, "index": index, "delta": delta, "finish_reason": None}
    return said, {"index": index, "delta": {}, "finish_reason": reason}


def whole_of(body: bytes, raw: Mapping[str, Any] | None = None) -> bytes:
    """The whole answer that the stream `body` says. Raises `BadStream` if it is none."""
    passed: list[bytes] = []
    usage = StreamUsage(lambda _: None, is_ours=False)
    is_raw = raw is None
    end = StreamEnd(raw)
    relay = StreamRelay(passed.append, usage, lambda: True, end, is_chat=not is_raw, is_raw=is_raw)
    splitter = ProviderEventSplitter()
    try:
        relay.take(splitter.push(body))
        relay.take(splitter.flush())
        relay.note_rest(splitter.rest)
    except BadStream as error:
        if error.filtered is None:
            if relay.has_begun:
                error.reported = error.reported.late()
            raise
        return _folded(error.filtered)
    if not relay.has_begun:
        raise BadStream("ended its stream without an answer", words=relay.last_words)
    if not relay.is_finished:
        raise BadStream("ended its stream early", words=relay.last_words)
    return _folded(b"".join(passed))


def _folded(events: bytes) -> bytes:
    answer: Fields = {}
    choices: dict[int, Fields] = {}
    for event in split_events(events):
        data = data_of(event)
        if not data.startswith(b"{"):
            continue
        chunk = _decode(data)
        told = chunk.pop("choices", None)
        for choice in told if isinstance(told, list) else ():
            if isinstance(choice, dict):
                _add(choices, choice)
                if isinstance(choice.get("usage"), dict):  # as Moonshot's API sends it
                    chunk["usage"] = choice["usage"]
        if isinstance(part := chunk.get("usage"), dict):
            chunk["usage"] = joined(answer.get("usage"), part)
        answer |= {name: value for name, value in chunk.items() if value is not None}
    is_raw = any("text" in choice for choice in choices.values())
    kind = "text_completion" if is_raw else "chat.completion"
    answer |= {"object": kind, "choices": [choices[at] for at in sorted(choices)]}
    return _encode(answer)


def _add(choices: dict[int, Fields], part: Fields) -> None:
    """Add what a chunk says of one choice."""
    index = index_of(part)
    choice = choices.setdefault(index, {"index": index, "finish_reason": None})
    delta, text = part.get("delta"), part.get("text")
    if isinstance(text, str):  # the answer to a raw prompt
        choice["text"] = choice.get("text", "") + text
    elif "text" not in choice:
        message = choice.setdefault("message", {"role": "assistant", "content": None})
        for name, value in (delta if isinstance(delta, dict) else {}).items():
            _join(message, name, value)
    if part.get("finish_reason"):
        choice["finish_reason"] = part["finish_reason"]
    scores = part.get("logprobs")
    for name, values in (scores if isinstance(scores, dict) else {}).items():
        whole = choice.setdefault("logprobs", {})
        if isinstance(values, list):  # one entry per token
            whole[name] = [*(whole.get(name) or ()), *values]
        else:
            whole.setdefault(name, values)


def _join(message: Fields, name: str, value: object) -> None:
    """Add a field of a delta: texts, lists and what is in objects grow, anything else is
    replaced. A text beside parts is one of them.
    """
    if value is None or name == "role":
        return
    before = message.get(name)
    if isinstance(before, str) and isinstance(value, list):
        before = [_part(before)] if before else []
    elif isinstance(before, list) and isinstance(value, str):
        value = [_part(value)] if value else []
    if name == "tool_calls" and isinstance(value, list):
        _join_calls(message.setdefault(name, []), value)
    elif (isinstance(before, str) and isinstance(value, str) and name not in _SAID_ONCE) or (
        isinstance(before, list) and isinstance(value, list)
    ):
        message[name] = before + value  # type: ignore[operator]  # both of one type
    elif isinstance(before, dict) and isinstance(value, dict):
        for inner, part in value.items():
            _join(before, inner, part)
    else:
        message[name] = value


def _part(text: str) -> Fields:
    return {"type": "text", "text": text}


def _join_calls(calls: list[Fields], parts: list[Any]) -> None:
    """Add parts of calls, whose numbers count from 0: the relay wrote them so."""
    for part in parts:
        number, function = part["index"], part["function"]
        text = function.get("arguments") or ""
        if number == len(calls):
            rest = {name: value for name, value in part.items() if name != "index"}
            calls.append({**rest, "function": {**function, "arguments": text}})
        elif number < len(calls):
            calls[number]["function"]["arguments"] += text
