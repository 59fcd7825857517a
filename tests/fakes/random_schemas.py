"""Random JSON schemas whose values are bounded: a random model ends most of them by itself."""

import random
from typing import Any

_WORDS = ("city", "unit", "count", "tags", "when", "über", "a b", 'q"uote', "x-y")


def random_schema(rng: random.Random) -> dict[str, Any]:
    """An object of nested objects, arrays, enums, unions, numbers, strings and references."""
    schema = _object(rng, depth=3)
    if rng.random() < 0.4:
        schema["$defs"] = {"one": _leaf(rng), "two": _object(rng, depth=1)}
        names = rng.sample(sorted(schema["$defs"]), rng.randint(1, 2))
        for name in names:
            schema["properties"][f"ref {name}"] = {"$ref": f"#/$defs/{name}"}
        schema["required"] = [*schema["required"], f"ref {names[0]}"]
    return schema


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.randrange(6) if depth > 0 else 5
    if kind == 0:
        return _object(rng, depth - 1)
    if kind == 1:
        least = rng.randint(0, 2)
        items = _value(rng, depth - 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + 1}
    if kind == 2:
        return {"anyOf": [_value(rng, depth - 1), {"type": "null"}, {"type": "boolean"}]}
    return _leaf(rng)


def _leaf(rng: random.Random) -> dict[str, Any]:
    low, length = rng.randint(-1000, 1000), rng.randint(0, 12)
    return rng.choice(
        (
            {"type": "string", "minLength": length, "maxLength": length + rng.randint(0, 12)},
            {"type": "string", "pattern": "^[a-z]{2,5}-[0-9]{1,3}$"},
            {"type": "string", "format": "date"},
            {"enum": [1, "two", None, 3.5, {"four": [5]}]},
            {"const": rng.choice(_WORDS)},
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)},
            {"type": "number", "minimum": -5, "maximum": 5.5},
            {"type": ["boolean", "null"]},
        )
    )


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_WORDS, rng.randint(1, 4))
    properties = {name: _value(rng, depth) for name in names}
    required = [name for name in names if rng.random() < 0.7]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
