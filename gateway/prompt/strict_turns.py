"""The turns of a conversation in forms that strict templates take.

Owns what agents send and templates of some models refuse: system turns behind the first one,
arguments that are no object, a history without a user, neighbours of one role. Each form keeps
every text, and keeps it in its place, so that a prompt still begins as that of the request before.
Must not know templates.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

Turn = dict[str, Any]

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
    """As `settled_turns`, where the user begins and neighbours of the user are one turn."""
    alternating: list[Turn] = []
    for turn in settled_turns(turns):
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


def _joined(turns: Sequence[Turn], role: str) -> Turn:
    """One turn, with the fields of the first."""
    text = "\n\n".join(turn["content"] for turn in turns if turn["content"])
    return {**turns[0], "role": role, "content": text}
