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


def type_of(value: object) -> str:
    """The type of a value; a number that is written as a whole one is an integer."""
    return _OF_PYTHON[type(value)]
