"""Edits of the context that Anthropic's `context_management` asks for, on the messages of a chat.

Owns which results and thoughts are cleared, and the report of it. Tokens are estimated, four
characters each, since nothing here knows the model. Edits that are not known, and compaction by the
server, are named as ignored. Must not know blocks of the Messages API.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from gateway.api.errors import invalid

CLEARED: Final = "[This result was cleared to save context.]"
CHARS_PER_TOKEN: Final = 4

_TRIGGER: Final = {"type": "input_tokens", "value": 100_000}
_KEEP: Final = {"type": "tool_uses", "value": 3}
_FIELD: Final = "context_management.edits"

_encode: Final = msgspec.json.Encoder().encode

Message = dict[str, Any]
Edit = dict[str, Any]


class EditedContext(msgspec.Struct, frozen=True):
    """`applied` has an object for each edit that changed something; `ignored` has the types of
    those that Herma does not know.
    """

    messages: list[Message]
    applied: list[Edit] = []
    ignored: list[str] = []


def edited_context(messages: list[Message], given: object) -> EditedContext:
    """`messages` after the edits of `context_management`. Raises `ApiError` 400."""
    edits = given.get("edits") if isinstance(given, dict) else None
    if edits is None:
        return EditedContext(messages)
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
        raise invalid(_FIELD, f"'{_FIELD}' must be a list of objects.")
    applied: list[Edit] = []
    ignored: list[str] = []
    for at, edit in enumerate(edits):
        kind = str(edit.get("type"))
        apply = next((one for name, one in _EDITS.items() if kind.startswith(name)), None)
        if apply is None:
            ignored.append(kind)
            continue
        messages, report = apply(messages, edit, f"{_FIELD}[{at}]")
        if report:
            applied.append({"type": kind, **report})
    return EditedContext(messages, applied, ignored)


def _clear_tool_uses(
    messages: list[Message], edit: Edit, where: str
) -> tuple[list[Message], Edit | None]:
    """Clear the oldest results, except those to keep, once the number of results or tokens exceeds
    the trigger.
    """
    results = [at for at, message in enumerate(messages) if message["role"] == "tool"]
    kind, most = _amount(edit, "trigger", _TRIGGER, where)
    _, num_kept = _amount(edit, "keep", _KEEP, where)
    _, least = _amount(edit, "clear_at_least", {"type": "input_tokens", "value": 0}, where)
    if (_tokens(messages) if kind == "input_tokens" else len(results)) <= most:
        return messages, None
    calls = _calls(messages)
    excluded = edit.get("exclude_tools") or []
    old = [
        at
        for at in results[: max(0, len(results) - num_kept)]
        if messages[at]["content"] != CLEARED
        and calls.get(messages[at]["tool_call_id"]) not in excluded
    ]
    changed = list(messages)
    for at in old:
        changed[at] = {**messages[at], "content": CLEARED}
    inputs = edit.get("clear_tool_inputs")
    if inputs:
        ids = {messages[at]["tool_call_id"] for at in old}
        names = None if inputs is True else set(inputs)
        changed = [_without_inputs(message, ids, names) for message in changed]
    num_cleared = _tokens(messages) - _tokens(changed)
    if not old or num_cleared < least:
        return messages, None
    return changed, {"cleared_tool_uses": len(old), "cleared_input_tokens": max(0, num_cleared)}


def _without_inputs(message: Message, ids: set[str], names: set[str] | None) -> Message:
    """The message without the arguments of the calls of these ids (and names, if given)."""
    calls = message.get("tool_calls")
    if not calls or not any(call["id"] in ids for call in calls):
        return message
    left = [
        {**call, "function": {**call["function"], "arguments": "{}"}}
        if call["id"] in ids and (names is None or call["function"]["name"] in names)
        else call
        for call in calls
    ]
    return {**message, "tool_calls": left}


def _clear_thinking(
    messages: list[Message], edit: Edit, where: str
) -> tuple[list[Message], Edit | None]:
    """Clear the thoughts of all turns but the last ones."""
    keep = edit.get("keep")
    if keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all"):
        return messages, None
    _, num_kept = _amount(edit, "keep", {"type": "thinking_turns", "value": 1}, where)
    thinking = [at for at, message in enumerate(messages) if message.get("reasoning_content")]
    old = thinking[: max(0, len(thinking) - num_kept)]
    if not old:
        return messages, None
    changed = list(messages)
    for at in old:
        changed[at] = {k: v for k, v in messages[at].items() if k != "reasoning_content"}
    num_cleared = _tokens(messages) - _tokens(changed)
    return changed, {"cleared_thinking_turns": len(old), "cleared_input_tokens": num_cleared}


_EDITS: Final[
    dict[str, Callable[[list[Message], Edit, str], tuple[list[Message], Edit | None]]]
] = {"clear_tool_uses_": _clear_tool_uses, "clear_thinking_": _clear_thinking}


def _amount(edit: Edit, name: str, default: Edit, where: str) -> tuple[str, int]:
    """The unit and the number in that field of an edit. Raises `ApiError` 400."""
    given = edit.get(name)
    if given is None:
        given = default
    value = given.get("value") if isinstance(given, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        text = f"'{where}.{name}' must have a 'type' and a 'value', which is a whole number."
        raise invalid(f"{where}.{name}", text)
    return str(given.get("type")), value


def _calls(messages: Sequence[Message]) -> dict[str, str]:
    """The names of functions by the ids of their calls."""
    return {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or ()
    }


def _tokens(messages: Sequence[Message]) -> int:
    return len(_encode(messages)) // CHARS_PER_TOKEN
