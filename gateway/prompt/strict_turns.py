"""The turns of a conversation in forms that strict templates take.

Owns what agents send and templates of some models refuse: system turns behind the first one,
arguments that are no object, a history without a user, neighbours of one role, long ids of calls.
Each form keeps every text, and keeps it in its place, so that a prompt still begins as that of the
request before. Must not know templates.
"""

import hashlib
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

Turn = dict[str, Any]

_ID_CHARS: Final = 9
_INSTRUCTIONS: Final = frozenset({"system", "developer"})


def settled_turns(turns: Sequence[Turn]) -> list[Turn]:
    """One system turn, of all at the beginning; those behind it are the user's. Some turn is the
    user's, and the arguments of every call are an object.
    """
    first = list(takewhile(lambda turn: turn["role"] in _INSTRUCTIONS, turns))
    rest = [_settled(turn) for turn in turns[len(first) :]]
    if all(turn["role"] != "user" for turn in rest):
        rest.insert(0, {"role": "user", "content": ""})
    return [_joined(first, "system"), *rest] if first else rest


def alternating_turns(turns: Sequence[Turn]) -> list[Turn]:
    """As `settled_turns`, where the user begins and neighbours of the user are one turn. Ids of
    calls have nine letters and digits, as those of Mistral's models; another server's are longer.
    """
    alternating: list[Turn] = []
    for turn in map(_with_short_ids, settled_turns(turns)):
        last = alternating[-1]["role"] if alternating else "system"
        if turn["role"] == last == "user":
            alternating[-1] = _joined([alternating[-1], turn], "user")
            continue
        if turn["role"] == "assistant" and last == "system":
            alternating.append({"role": "user", "content": ""})
        alternating.append(turn)
    return alternating


def _settled(turn: Turn) -> Turn:
    if turn["role"] in _INSTRUCTIONS:
        return {**turn, "role": "user"}
    if "tool_calls" in turn:
        return {**turn, "tool_calls": [_with_object(call) for call in turn["tool_calls"]]}
    return turn


def _with_object(call: Turn) -> Turn:
    function = call["function"]
    if isinstance(function["arguments"], dict):
        return call
    return {**call, "function": {**function, "arguments": {"arguments": function["arguments"]}}}


def _with_short_ids(turn: Turn) -> Turn:
    if "tool_calls" in turn:
        calls = [{**call, "id": _short(call["id"])} for call in turn["tool_calls"]]
        return {**turn, "tool_calls": calls}
    if "tool_call_id" in turn:
        return {**turn, "tool_call_id": _short(turn["tool_call_id"])}
    return turn


def _short(call_id: str) -> str:
    if len(call_id) == _ID_CHARS and call_id.isalnum():
        return call_id
    return hashlib.blake2b(call_id.encode()).hexdigest()[:_ID_CHARS]


def _joined(turns: Sequence[Turn], role: str) -> Turn:
    """One turn, with the fields of the first."""
    text = "\n\n".join(turn["content"] for turn in turns if turn["content"])
    return {**turns[0], "role": role, "content": text}
