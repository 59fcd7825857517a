"""The types of JSON, as schemas name them.

Owns their names, the words that people write for them, and which type a value has. Must not know
what a schema demands beside its types.
"""

from collections.abc import Mapping
from typing import Any, Final

TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
SYNONYMS: Final[Mapping[str, str]] = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "none": "null",
}
_OF_PYTHON: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}


def named_types(named: object) -> list[Any]:
    """The types in the value of a keyword `type`, which may be one."""
    return named if isinstance(named, list) else [named]


def types_of_both(one: object, two: object) -> list[Any]:
    """The types that the values of two keywords `type` allow: an integer is a number."""
    first, second = named_types(one), named_types(two)
    found = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    found += [kind for kind in second if kind == "integer" and "number" in first]
    return list(dict.fromkeys(found))


def type_of(value: object) -> str:
    """The type of a value; a number that is written as a whole one is an integer."""
    return _OF_PYTHON[type(value)]
