"""A field of nested JSON, by its path or in words.

Owns the documents and the ways to ask. The reasoning follows the path, so that a name that occurs
in several places is found in the right one.
"""

import json
from typing import Any, Final

from training.data.entities import code
from training.data.example import TrainingExample, plain_case
from training.data.phrasing import phrases
from training.data.world import World

SKILL: Final = "json"
NO_FIELD: Final = "There is no such field."

_BY_PATH: Final = phrases(
    "What is {path}?", "What is the value of {path}?", "What does {path} hold?", "Read {path}.",
    "What is at {path}?", "Which value does {path} have?", "Give me {path}.", "Find {path}.",
    "Extract {path}.", "Return the value of {path}.", "Tell me the value of {path}.", "Get {path}.",
)  # fmt: skip
_BY_WORDS: Final = phrases(
    "What is the {words}?", "Tell me the {words}.", "Give me the {words}.", "Find the {words}.",
    "What is the value of the {words}?", "Which value has the {words}?", "Read the {words}.",
    "Extract the {words}.", "Return the {words}.", "I need the {words}.", "Look up the {words}.",
)  # fmt: skip
_LAYOUTS: Final = (
    "{json}\n\n{question}", "{question}\n\n{json}", "{question} {json}", "JSON: {json}\n{question}",
    "Here is some JSON:\n{json}\n{question}", "{question}\n```json\n{json}\n```",
    "```json\n{json}\n```\n{question}", "Given this JSON: {json} {question}", "{json} {question}",
    "Look at this document.\n{json}\n\n{question}", "```\n{json}\n```\n\n{question}",
    "Data:\n{json}\n\nQuestion: {question}",
)  # fmt: skip
_KEYS: Final = (
    "name", "id", "title", "city", "country", "street", "email", "phone", "price", "amount",
    "total", "status", "type", "color", "size", "weight", "height", "width", "owner", "author",
    "date", "time", "count", "level", "score", "version", "code", "label", "unit", "value", "state",
    "key", "language", "currency", "quantity", "rating", "age", "role", "team", "brand", "model",
    "year", "month", "day", "zip", "path", "url", "host", "port",
)  # fmt: skip
_GROUPS: Final = (
    "user", "address", "order", "customer", "item", "product", "company", "profile", "settings",
    "data", "contact", "account", "payment", "details", "meta", "info", "shipping", "billing",
    "person", "car", "book", "house", "server", "config", "result", "options",
)  # fmt: skip
_ORDINALS: Final = ("first", "second", "third", "fourth")


def make(world: World) -> TrainingExample:
    document, leaves = _document(world)
    path, value = world.pick(leaves)
    if world.chance(0.06):
        path, value = _missing(world, path, leaves)
    in_words = world.chance(0.5)
    asked = world.pick(_BY_WORDS if in_words else _BY_PATH)
    question = asked.format(words=_in_words(path), path=_as_path(world, path))
    indent = 2 if world.chance(0.3) else None
    text = json.dumps(document, indent=indent, separators=_separators(world, indent))
    reply, written = _answer(value)
    think = f"{' > '.join(str(step) for step in path)}: {written}"
    asked = world.pick(_LAYOUTS).format(json=text, question=question)
    return plain_case(SKILL, asked, reply, think, (json.dumps(reply),))


_MISSING: Final = object()
_Path = tuple[str | int, ...]
_Leaf = tuple[_Path, Any]


def _answer(value: object) -> tuple[str, str]:
    """The answer, and the value as the reasoning writes it."""
    if value is _MISSING:
        return NO_FIELD, NO_FIELD
    written = json.dumps(value)
    return (value if isinstance(value, str) else written), written


def _document(world: World) -> tuple[dict[str, Any], list[_Leaf]]:
    leaves: list[_Leaf] = []
    document = _object(world, (), leaves, depth=world.pick((1, 2, 2, 3)))
    return document, leaves


def _object(world: World, at: _Path, leaves: list[_Leaf], depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    keys = world.several(lambda: _key(world, _KEYS), world.between(1, 4))
    for key in keys:
        made[key] = _leaf(world)
        leaves.append(((*at, key), made[key]))
    if depth > 1:
        for group in world.several(lambda: _key(world, _GROUPS), world.between(1, 2)):
            if group in made:
                continue
            if world.chance(0.25):
                made[group] = _array(world, (*at, group), leaves)
            else:
                made[group] = _object(world, (*at, group), leaves, depth - 1)
    if world.chance(0.5):
        made = {key: made[key] for key in world.shuffled(list(made))}
    return made


def _array(world: World, at: _Path, leaves: list[_Leaf]) -> list[Any]:
    keys = world.several(lambda: _key(world, _KEYS), world.between(1, 2))
    items: list[Any] = []
    for index in range(world.between(2, 4)):
        item = {key: _leaf(world) for key in keys}
        leaves.extend(((*at, index, key), item[key]) for key in keys)
        items.append(item)
    return items


def _key(world: World, common: tuple[str, ...]) -> str:
    chance = world.random()
    if chance < 0.6:
        return world.pick(common)
    return world.noun() if chance < 0.9 else f"{world.of('nouns')}_{world.pick(common)}"


def _leaf(world: World) -> object:
    chance = world.random()
    if chance < 0.25:
        return world.between(0, world.pick((9, 99, 9999)))
    if chance < 0.32:
        return world.between(1, 9999) / 100
    if chance < 0.4:
        return world.chance(0.5)
    if chance < 0.42:
        return None
    if chance < 0.6:
        return world.name()
    if chance < 0.7:
        return world.place()
    if chance < 0.8:
        return code(world)
    return world.word() if chance < 0.85 else f"{world.quality()} {world.noun()}"


def _missing(world: World, path: _Path, leaves: list[_Leaf]) -> _Leaf:
    """A path that ends in a name that does not exist."""
    known = {step for one, _ in leaves for step in one}
    while True:
        key = _key(world, _KEYS)
        if key not in known:
            return (*path[:-1], key), _MISSING


def _as_path(world: World, path: _Path) -> str:
    text = ".".join(str(step) for step in path)
    for index in range(len(_ORDINALS)):
        text = text.replace(f".{index}.", f"[{index}].")
    return text if world.chance(0.7) else f"`{text}`"


def _in_words(path: _Path) -> str:
    """("user", "items", 1, "name") is "name of the second of the items of the user"."""
    words = [
        f"{_ORDINALS[step]} one" if isinstance(step, int) else step.replace("_", " ")
        for step in reversed(path)
    ]
    return " of the ".join(words)


def _separators(world: World, indent: int | None) -> tuple[str, str]:
    if indent is None and world.chance(0.3):
        return (",", ":")
    return (",", ": ") if indent else (", ", ": ")
