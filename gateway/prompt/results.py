"""Which result belongs to which call.

Owns the pairing of the calls of a conversation with their results, which clients send late, in
another order, twice, or not at all; and results whose calls a client has compacted away. Must not
know templates.
"""

from collections.abc import Mapping, Sequence

from gateway.prompt.turns import THOUGHTS, Turn, with_calls, without

_Place = tuple[int, int]
"""Of a call: that of its turn, and its own in the turn."""


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
    """The conversation where a turn has one call, with its result behind it. Of a turn with several
    the first has the text.
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


def _results(turns: Sequence[Turn]) -> Mapping[_Place, int]:
    """The place of each call's result, by the places of the turn and of the call in it. Ids may be
    used again, as servers that number the calls of an answer do: a result is that of the last call
    before it with its id, and only the first one counts. One without an id is that of the first
    call without a result in the turn before.
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
            asked = latest if call_id is None else callers.get(call_id, [])
            place = next((place for place in asked if place not in results), None)
            if place is not None:
                results[place] = at
    return results


def _by_id(calls: Sequence[Turn], places: Sequence[_Place]) -> dict[str, list[_Place]]:
    found: dict[str, list[_Place]] = {}
    for call, place in zip(calls, places, strict=True):
        found.setdefault(call["id"], []).append(place)
    return found


def _empty_result(call: Turn) -> Turn:
    name = call["function"]["name"]
    return {"role": "tool", "content": "", "name": name, "tool_call_id": call["id"]}
