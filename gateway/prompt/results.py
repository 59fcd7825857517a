"""Which result belongs to which call.

Owns the pairing of the calls of a conversation with their results, which clients send late, in
another order, twice, or not at all; and results whose calls a client has compacted away. Must not
know templates.
"""

from collections.abc import Collection, Mapping, Sequence

from gateway.prompt.turns import THOUGHTS, Turn, with_calls, without

_Place = tuple[int, int]
"""The place of a call: the index of its turn, and its own within the turn."""


def paired_turns(turns: Sequence[Turn], *, fills: bool = False) -> list[Turn]:
    """The conversation where results stand right behind the turn of their calls, in its order. A
    result without a call is the user's text, in its place. With `fills` a call without a result has
    an empty one.
    """
    results = _results(turns)
    places = set(results.values())
    paired: list[Turn] = []
    for at, turn in enumerate(turns):
        if turn["role"] == "tool":
            if at not in places:
                paired.append({"role": "user", "content": turn["content"]})
            continue
        paired.append(turn)
        for number, call in enumerate(turn.get("tool_calls", ())):
            found = results.get((at, number))
            if found is not None:
                paired.append(turns[found])
            elif fills:
                paired.append(_empty_result(call))
    return paired


def single_calls(turns: Sequence[Turn]) -> list[Turn]:
    """The conversation with one call in each turn, followed by its result. A turn with several
    calls is split, and the first part has the turn's text.
    """
    results = _results(turns)
    moved: set[int] = set()
    single: list[Turn] = []
    for at, turn in enumerate(turns):
        calls = turn.get("tool_calls", ())
        if len(calls) < 2:
            if at not in moved:
                single.append(turn)
            continue
        rest = {**without(turn, *THOUGHTS), "content": ""}
        for number, call in enumerate(calls):
            single.append(with_calls(rest if number else turn, [call]))
            found = results.get((at, number))
            if found is not None:
                single.append(turns[found])
                moved.add(found)
    return single


def ordered_results(turns: Sequence[Turn]) -> list[Turn]:
    """The conversation for a template that does not write whose result a result is: results stand
    behind the turn of their calls, in its order, as mistral-common writes them from v11 on. An
    earlier call without a result gets an empty one before the result of a later call. A result of
    no call, or a second result of one call, has a line that says so.
    """
    calls: Sequence[Turn] = ()
    number = 0
    for turn in turns:
        if turn["role"] == "tool":
            if calls and not _may_answer(turn, calls[number : number + 1]):
                return _in_order(turns)
            number += 1
        elif "tool_calls" in turn:
            calls, number = turn["tool_calls"], 0
    return list(turns)


def _may_answer(result: Turn, expected: Sequence[Turn]) -> bool:
    """Whether a result is that of the expected call, if there is one: by its id, else by its name
    if it has one.
    """
    call_id, name = result.get("tool_call_id"), result.get("name")
    if call_id:
        return any(call["id"] == call_id for call in expected)
    return name is None or all(call["function"]["name"] == name for call in expected)


def _in_order(turns: Sequence[Turn]) -> list[Turn]:
    results = _results(turns)
    places = set(results.values())
    called = {call["id"] for turn in turns for call in turn.get("tool_calls", ())}
    ordered: list[Turn] = []
    is_beside = False
    for at, turn in enumerate(turns):
        if turn["role"] == "tool":
            if at not in places:
                ordered.append(_named(turn, called) if is_beside else turn)
            continue
        ordered.append(turn)
        calls = turn.get("tool_calls", ())
        is_beside = bool(calls)
        answered = [number for number in range(len(calls)) if (at, number) in results]
        for number in range(answered[-1] + 1 if answered else 0):
            found = results.get((at, number))
            ordered.append(_empty_result(calls[number]) if found is None else turns[found])
    return ordered


def _named(turn: Turn, called: Collection[str]) -> Turn:
    """A result that belongs to no call of its turn, with a line that says so."""
    call_id = turn.get("tool_call_id")
    if not call_id:
        return turn
    if call_id in called:
        line = f"[A second result of the call {call_id}:]"
    else:
        line = f"[The result of the call {call_id}, which is not part of this conversation:]"
    return {**turn, "content": f"{line}\n{turn['content']}"}


def _results(turns: Sequence[Turn]) -> Mapping[_Place, int]:
    """The place of each call's result, by the places of the turn and of the call in it. Ids may be
    used again, as servers that number the calls of an answer do: a result is that of the last call
    before it with its id, and only the first one counts. A result without an id belongs to the
    first call without a result in the turn before, of the function that it names if that was
    called.
    """
    results: dict[_Place, int] = {}
    callers: dict[str, list[_Place]] = {}
    latest: list[_Place] = []
    for at, turn in enumerate(turns):
        calls = turn.get("tool_calls", ())
        if calls:
            latest = [(at, number) for number in range(len(calls))]
            callers |= _by_id(calls, latest)
        elif turn["role"] == "tool":
            call_id = turn.get("tool_call_id")
            asked = callers.get(call_id, []) if call_id else _by_name(turns, latest, turn)
            place = next((place for place in asked if place not in results), None)
            if place is not None:
                results[place] = at
    return results


def _by_id(calls: Sequence[Turn], places: Sequence[_Place]) -> dict[str, list[_Place]]:
    found: dict[str, list[_Place]] = {}
    for call, place in zip(calls, places, strict=True):
        found.setdefault(call["id"], []).append(place)
    return found


def _by_name(turns: Sequence[Turn], places: Sequence[_Place], result: Turn) -> Sequence[_Place]:
    """The places whose calls are of the function that the result names; all places if there is
    none.
    """
    name = result.get("name")
    named = [
        (at, number)
        for at, number in places
        if turns[at]["tool_calls"][number]["function"]["name"] == name
    ]
    return named or places


def _empty_result(call: Turn) -> Turn:
    name = call["function"]["name"]
    return {"role": "tool", "content": "", "name": name, "tool_call_id": call["id"]}
