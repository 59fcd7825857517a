"""Answering from a tool's result.

Owns the forms of results: fields, lists, texts, errors, bare success. One field is answered in a
sentence when the user asked for it, else all are listed.
"""

import json
from typing import Any, Final

from training.data.asking import draw_arguments, draw_request
from training.data.entities import code
from training.data.example import (
    Call,
    ExpectedAnswer,
    TrainingExample,
    answer,
    calling,
    tool_result,
    user,
)
from training.data.offering import offered, reasoning
from training.data.toolbox import ToolSpec, draw_tool
from training.data.world import World

SKILL: Final = "tool_result"

DONE: Final = "Done."
LONG: Final = "The tool has answered with a long text."

_ASKING_FIELD: Final = (
    "What is the {field} of the {thing}?", "Tell me the {field} of the {thing}.",
    "Which {field} does the {thing} have?",
    "{verb} the {thing} and tell me the {field}.", "I want to know the {field} of the {thing}.",
    "Can you find out the {field} of the {thing}?", "Look up the {field} of the {thing}.",
    "Please give me the {field} of the {thing}.", "I need the {field} of the {thing}.",
    "Do you know the {field} of the {thing}?", "Check the {field} of the {thing}.",
    "Find the {field} of the {thing}",
)  # fmt: skip
_FIELDS: Final = (
    "price", "status", "size", "color", "weight", "owner", "date", "name", "total", "level",
    "version", "temperature", "amount", "speed", "height", "address", "type", "condition",
    "humidity", "duration", "distance", "balance", "score", "author", "location", "quantity", "id",
)  # fmt: skip
_ERRORS: Final = (
    "not found", "no access", "timeout", "the {thing} is locked", "no such {thing}",
    "service is down",
    "permission denied", "unknown {thing}", "connection refused", "invalid id", "{thing} not found",
    "the server does not answer", "no {thing} called {word}", "too busy, try later",
)  # fmt: skip


def make(world: World) -> TrainingExample:
    spec = draw_tool(world)
    arguments: dict[str, Any] = {}
    if world.chance(0.4):
        question, result, reply = _field(world, spec)
    else:
        arguments = draw_arguments(world, spec)
        question = draw_request(world, spec, arguments)
        result, reply = draw_result(world, spec)
    call = calling([Call(spec.name, arguments)], reasoning([(spec.topic, spec.name)]))
    messages = (user(question), call, tool_result(result), answer(reply))
    return TrainingExample(
        SKILL,
        messages,
        offered(world, spec, world.pick((0, 0, 1, 2, 3))),
        ExpectedAnswer("text", (reply,)),
    )


def draw_result(world: World, spec: ToolSpec) -> tuple[str, str]:
    """The tool's result, and the answer to a request that names no field."""
    chance = world.random()
    if chance < 0.33:
        return _all_fields(world)
    if chance < 0.53:
        return _list(world)
    if chance < 0.7:
        return _error(world, spec)
    return _success(world) if chance < 0.86 else _text(world)


def _field(world: World, spec: ToolSpec) -> tuple[str, str, str]:
    """A request for one of the fields."""
    fields = _fields(world)
    field = world.pick(list(fields))
    words = field.replace("_", " ")
    asked = world.pick(_ASKING_FIELD)
    question = asked.format(field=words, thing=spec.thing, verb=spec.verbs[0].capitalize())
    return question, _dumped(world, fields), f"The {words} is {_written(fields[field])}."


def _all_fields(world: World) -> tuple[str, str]:
    fields = _fields(world)
    listed = ", ".join(
        f"{field.replace('_', ' ')}: {_written(value)}" for field, value in fields.items()
    )
    return _dumped(world, fields), f"Result: {listed}"


def _list(world: World) -> tuple[str, str]:
    items = world.several(
        lambda: world.word() if world.chance(0.6) else world.name(), world.between(0, 5)
    )
    key = world.pick(("items", "results", "names", "files", "hits", "matches", "data", "found"))
    result = json.dumps({key: items}) if world.chance(0.7) else json.dumps(items)
    return result, f"I found: {', '.join(items)}" if items else "I found nothing."


def _error(world: World, spec: ToolSpec) -> tuple[str, str]:
    error = world.pick(_ERRORS).format(thing=spec.thing, word=world.word())
    form = world.random()
    if form < 0.5:
        result = json.dumps({"error": error})
    elif form < 0.8:
        result = json.dumps({"ok": False, "error": error})
    else:
        result = f"Error: {error}"
    return result, f"The tool failed: {error}"


def _success(world: World) -> tuple[str, str]:
    forms = ('{"ok": true}', '{"status": "ok"}', '{"success": true}', "ok", "OK", "done", '"ok"',
    "success",
             '{"status": "success"}', '{"result": "ok"}', '{"done": true}', "null", "{}",
             "")  # fmt: skip
    return world.pick(forms), DONE


def _text(world: World) -> tuple[str, str]:
    if world.chance(0.2):
        words = [world.word() for _ in range(world.between(30, 150))]
        return world.pick((" ", "\n", ", ")).join(words), LONG
    text = " ".join(world.word() for _ in range(world.between(1, 10)))
    return text, f"Result: {text}"


def _fields(world: World) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for _ in range(world.between(1, 4)):
        chance = world.random()
        field = world.pick(_FIELDS) if chance < 0.5 else world.noun()
        if chance > 0.85:
            field = f"{world.of('nouns')}_{world.pick(_FIELDS)}"
        fields[field] = _value(world)
    return fields


def _value(world: World) -> object:
    chance = world.random()
    if chance < 0.35:
        return world.between(0, world.pick((9, 99, 9999)))
    if chance < 0.45:
        return world.between(1, 9999) / 10
    if chance < 0.6:
        return world.name() if chance < 0.53 else world.place()
    if chance < 0.7:
        return code(world)
    return world.word() if chance < 0.85 else f"{world.quality()} {world.noun()}"


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _dumped(world: World, fields: dict[str, Any]) -> str:
    return json.dumps(fields, indent=2) if world.chance(0.15) else json.dumps(fields)
