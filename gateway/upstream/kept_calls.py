"""What upstreams want back of the calls that they made: fields of a call that Herma does not know,
such as the thought signatures of Gemini, and the reasoning before it, which DeepSeek and Kimi need.

Owns what is kept of an answer with calls, by the ids of the calls, and how it goes into the history
of the next request: clients of Messages and Responses have no place for such fields, and many
clients do not send reasoning back. Bounded in bytes; what is forgotten is not sent. Must not know
streams, or which upstream is asked.
"""

import re
from collections.abc import Callable, Iterable
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

_COUNTED: Final = re.compile(r"\D*\d{0,4}|.*[^0-9A-Za-z]\d{1,4}", re.DOTALL)
"""Ids that count calls (`call_0`, `functions.f:0`), so that other conversations have the same."""

_encode: Final = msgspec.json.Encoder().encode
_Name = tuple[str, str, str, str]


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
    that sent a field gets it back. `conversation` names the one that asks; it is called only for
    ids that count, which mean a call of that conversation alone.
    """

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._kept: ByteLru[_Name, _Kept] = ByteLru(max_bytes, _size)

    def note(self, key: str, source: str, made: CallsMade, conversation: Callable[[], str]) -> None:
        """Keep the fields that the upstream wants back, in the place of those of an earlier call
        with that id. The reasoning is kept with the first call.
        """
        reasoning = made.reasoning if len(made.reasoning) <= MAX_REASONING_CHARS else ""
        entries = []
        for at, (call_id, extra) in enumerate(made.calls):
            thought = "" if at else reasoning
            name = _name(key, source, call_id, conversation)
            self._kept.drop(name)
            if extra or thought:
                entries.append((name, _Kept(extra, thought, made.field)))
        if entries:
            self._kept.put(entries)

    def restored(
        self,
        raw: dict[str, Any],
        key: str,
        source: str,
        conversation: Callable[[], str],
        field: str | None = None,
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
                message = self._message(one, key, source, conversation, field)
                if message is not one:
                    changed = list(messages) if changed is None else changed
                    changed[at] = message
        return raw if changed is None else {**raw, "messages": changed}

    def _message(
        self,
        message: dict[str, Any],
        key: str,
        source: str,
        conversation: Callable[[], str],
        field: str | None,
    ) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if calls and len(self._kept) and isinstance(calls, list):
            kept = [self._of(call, key, source, conversation) for call in calls]
            message = _with_kept(message, calls, kept, field)
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

    def _of(
        self, call: object, key: str, source: str, conversation: Callable[[], str]
    ) -> _Kept | None:
        call_id = call.get("id") if isinstance(call, dict) else None
        if not isinstance(call_id, str):
            return None
        return self._kept.get(_name(key, source, call_id, conversation))


def _name(key: str, source: str, call_id: str, conversation: Callable[[], str]) -> _Name:
    return key, source, conversation() if _COUNTED.fullmatch(call_id) else "", call_id


def _with_kept(
    message: dict[str, Any], calls: list[Any], kept: list[_Kept | None], field: str | None
) -> dict[str, Any]:
    found: list[Any] = []
    thought: _Kept | None = None
    for call, one in zip(calls, kept, strict=True):
        if one is None:
            found.append(call)
            continue
        thought = one if one.reasoning else thought
        found.append({**one.extra, **call} if one.extra else call)
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


def _size(key: _Name, kept: _Kept) -> int:
    extra = len(_encode(kept.extra)) if kept.extra else 0
    return 200 + sum(map(len, key)) + len(kept.reasoning) + extra
