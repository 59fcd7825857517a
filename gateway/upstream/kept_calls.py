"""What upstreams want back of the calls that they made: fields of a call that Herma does not know,
such as the thought signatures of Gemini, and the reasoning before it, which DeepSeek and Kimi need.

Owns what is kept of an answer with calls, by the ids of the calls, and how it goes into the history
of the next request: clients of Messages and Responses have no place for such fields, and many
clients do not send reasoning back. Bounded in bytes; what is forgotten is not sent. Must not know
streams, or which upstream is asked.
"""

from collections.abc import Iterable
from typing import Any, Final, final

import msgspec

from gateway.api import ByteLru

MAX_KEPT_BYTES: Final = 32 * 2**20
MAX_REASONING_CHARS: Final = 2**20
REASONING: Final = ("reasoning_content", "reasoning")
"""The two names of the field, the more common one first."""
_THOUGHTS: Final = frozenset({*REASONING, "reasoning_details", "reasoning_text", "thinking"})
_ANSWERED: Final = ("refusal", "annotations", "audio", "function_call")
"""Fields of answers that mean nothing when they are null. Clients send them back as they came."""

_encode: Final = msgspec.json.Encoder().encode


class CallsMade(msgspec.Struct, frozen=True):
    """The calls of an answer: the id and the unknown fields of each, and the reasoning before them
    with the name of its field.
    """

    calls: tuple[tuple[str, dict[str, Any]], ...]
    reasoning: str = ""
    field: str = REASONING[0]


class _Kept(msgspec.Struct, frozen=True):
    extra: dict[str, Any]
    reasoning: str
    field: str


@final
class KeptCalls:
    """Keeps the calls of answers. `key` is the client's, `source` names an upstream: only the one
    that sent a field gets it back.
    """

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._kept: ByteLru[tuple[str, str, str], _Kept] = ByteLru(max_bytes, _size)

    def note(self, key: str, source: str, made: CallsMade) -> None:
        """Keep the fields that the upstream wants back. The reasoning is kept with the first
        call.
        """
        reasoning = made.reasoning if len(made.reasoning) <= MAX_REASONING_CHARS else ""
        entries = []
        for at, (call_id, extra) in enumerate(made.calls):
            thought = "" if at else reasoning
            if extra or thought:
                entries.append(((key, source, call_id), _Kept(extra, thought, made.field)))
        if entries:
            self._kept.put(entries)

    def restored(
        self, raw: dict[str, Any], key: str, source: str, field: str | None = None
    ) -> dict[str, Any]:
        """`raw` with what `source` wants back, and with the reasoning of each message under one
        name: `field`. If that is "none", `source` knows no reasoning and may refuse a message with
        any field that it does not know, so that null fields of answers go too. Without `field` it
        is the name that the upstream used, or of two names in a message the first of `REASONING`
        that says something.
        """
        messages = raw.get("messages")
        if not isinstance(messages, list):
            return raw
        changed: list[Any] | None = None
        for at, one in enumerate(messages):
            if isinstance(one, dict) and one.get("role") == "assistant":
                message = self._message(one, key, source, field)
                if message is not one:
                    changed = list(messages) if changed is None else changed
                    changed[at] = message
        return raw if changed is None else {**raw, "messages": changed}

    def _message(
        self, message: dict[str, Any], key: str, source: str, field: str | None
    ) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if calls and len(self._kept) and isinstance(calls, list):
            message = self._with_kept(message, calls, key, source, field)
        if field == "none":
            return _without_thoughts(message)
        named = [name for name in REASONING if name in message]
        told = [name for name in named if message[name] is not None]
        if len(named) < 2 and (not told or field in (None, told[0])):
            return message
        rest = {name: value for name, value in message.items() if name not in REASONING}
        if not told:
            return rest
        said = next((name for name in told if message[name]), told[0])
        return {**rest, field or said: message[said]}

    def _with_kept(
        self,
        message: dict[str, Any],
        calls: list[Any],
        key: str,
        source: str,
        field: str | None,
    ) -> dict[str, Any]:
        found: list[Any] = []
        thought: _Kept | None = None
        for call in calls:
            call_id = call.get("id") if isinstance(call, dict) else None
            kept = self._kept.get((key, source, call_id)) if isinstance(call_id, str) else None
            if kept is None:
                found.append(call)
                continue
            thought = kept if kept.reasoning else thought
            found.append({**kept.extra, **call} if kept.extra else call)
        if not all(map(_is_same, found, calls)):
            message = {**message, "tool_calls": found}
        if thought is not None and field != "none" and not any(map(message.get, REASONING)):
            message = {**message, field or thought.field: thought.reasoning}
        return message


def reasoning_in(messages: Iterable[object]) -> tuple[str, str]:
    """The reasoning in deltas or messages, and the name of its field."""
    texts: list[str] = []
    field = REASONING[0]
    for message in messages:
        for name in REASONING:
            text = message.get(name) if isinstance(message, dict) else None
            if isinstance(text, str) and text:
                texts.append(text)
                field = name
                break
    return "".join(texts), field


def _without_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    gone = _THOUGHTS.intersection(message)
    gone |= {name for name in _ANSWERED if name in message and message[name] is None}
    return {name: value for name, value in message.items() if name not in gone} if gone else message


def _is_same(one: object, other: object) -> bool:
    return one is other


def _size(key: tuple[str, str, str], kept: _Kept) -> int:
    extra = len(_encode(kept.extra)) if kept.extra else 0
    return 200 + sum(map(len, key)) + len(kept.reasoning) + extra
