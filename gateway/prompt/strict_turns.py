"""The turns of a conversation in forms that strict templates take.

Owns what agents send and templates of some models refuse: system turns behind the first one,
arguments that are no object, a history without a user, calls without results and results without
calls, neighbours of one role, long ids of calls. Each form keeps every text, and keeps it in its
place, so that a prompt still begins as that of the request before. Must not know templates.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from gateway.prompt.results import paired_turns
from gateway.prompt.turns import Turn, joined, with_calls
from gateway.prompt.written_calls import hermes_text, spelled_calls

_ID_CHARS: Final = 9
INSTRUCTIONS: Final = frozenset({"system", "developer"})
_NO_ANSWER: Final = " "
"""The text of an assistant that was interrupted: some templates refuse an empty one."""


def settled_turns(turns: Sequence[Turn]) -> list[Turn]:
    """One system turn, of all at the beginning; those behind it are the user's. Some turn is the
    user's, and the arguments of every call are an object.
    """
    first = list(takewhile(lambda turn: turn["role"] in INSTRUCTIONS, turns))
    rest = [_settled(turn) for turn in turns[len(first) :]]
    if all(turn["role"] != "user" for turn in rest):
        rest.insert(0, {"role": "user", "content": ""})
    return [joined(first, "system"), *rest] if first else rest


def answered_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Like `settled_turns`, with results placed after the turn of their calls. A call without a
    result has an empty one, and a result without a call is the user's text.
    """
    return settled_turns(paired_turns(turns, fills=True))


def alternating_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Like `answered_turns`, but the user begins, neighbours of one role are merged into one turn,
    and between two turns of the user the assistant says at least that it was interrupted. Ids of
    calls have nine letters and digits, as Mistral's templates demand; ids from other servers are
    longer.
    """
    return list(_alternating(_without_neighbours(answered_turns(turns))))


def spoken_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Like `alternating_turns`, for a template that has no turns for calls and results: a call is
    text of the assistant and a result text of the user, in the tags of Hermes' models, whose format
    is the one read from models without a format of their own.
    """
    return alternating_turns(all_text(turns))


def instructed_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Like `alternating_turns`, after a system turn, which is empty if the conversation has
    none.
    """
    found = alternating_turns(turns)
    has_system = bool(found) and found[0]["role"] == "system"
    return found if has_system else [{"role": "system", "content": ""}, *found]


def all_text(turns: Sequence[Turn]) -> list[Turn]:
    """Calls are text of the assistant and results text of the user, in the tags of Hermes' models;
    nothing else changes.
    """
    paired = [_told(turn) if turn["role"] == "tool" else turn for turn in paired_turns(turns)]
    return spelled_calls(paired, hermes_text)


def _told(turn: Turn) -> Turn:
    text = f"<tool_response>\n{turn['content']}\n</tool_response>"
    return {"role": "user", "content": text}


def _without_neighbours(turns: Sequence[Turn]) -> list[Turn]:
    alone: list[Turn] = []
    for given in map(_with_short_ids, turns):
        turn, role = given, given["role"]
        if role == "assistant" and not turn["content"] and "tool_calls" not in turn:
            if turn.keys() <= {"role", "content"}:
                continue
            turn = {**turn, "content": _NO_ANSWER}  # the turn has only thoughts
        if alone and role != "tool" and alone[-1]["role"] == role:
            alone[-1] = joined([alone[-1], turn], role)
        else:
            alone.append(turn)
    return alone


def _alternating(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns with neighbours of one role joined. Turns of calls and results are not counted as
    turns, as in Mistral's templates.
    """
    before, said = "system", "assistant"
    for turn in turns:
        role = turn["role"]
        if role == "assistant" and before == "system":
            yield {"role": "user", "content": ""}
            said = "user"
        elif role == said == "user":
            yield {"role": "assistant", "content": _NO_ANSWER}
        yield turn
        before = role
        if role == "user" or (role == "assistant" and "tool_calls" not in turn):
            said = role


def _settled(turn: Turn) -> Turn:
    if turn["role"] in INSTRUCTIONS:
        return {**turn, "role": "user"}
    if "tool_calls" in turn:
        return with_calls(turn, [_with_object(call) for call in turn["tool_calls"]])
    return turn


def _with_object(call: Turn) -> Turn:
    function = call["function"]
    if isinstance(function["arguments"], dict):
        return call
    return {**call, "function": {**function, "arguments": {"arguments": function["arguments"]}}}


def _with_short_ids(turn: Turn) -> Turn:
    if "tool_calls" in turn:
        return with_calls(turn, [{**call, "id": _short(call["id"])} for call in turn["tool_calls"]])
    if "tool_call_id" in turn:
        return {**turn, "tool_call_id": _short(turn["tool_call_id"])}
    return turn


def _short(call_id: str) -> str:
    if len(call_id) == _ID_CHARS and call_id.isalnum():
        return call_id
    return hashlib.blake2b(call_id.encode()).hexdigest()[:_ID_CHARS]
