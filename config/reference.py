"""The reference of all keys of the configuration file, as a page.

Owns its form. Names, types, bounds and defaults come from the tables, descriptions
from their docstrings, and the line of each key from `meanings.toml`.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from config.tables import PATTERNS, Config

_WORDS: Final[Mapping[object, str]] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Any: "any value",
}
_NO_BOUND: Final = 2**31 - 1
"""Bounds from here on only keep numbers within machine words."""

_FILLED: Final = frozenset({"serves", "gateways", "token_budget", "worker_bind"})
"""Keys that come from other tables, or from the host, where they are absent."""

_PAGE: Final = """\
# The configuration file

Every key of `herma.toml`, with its default. An unknown key is an error that names the line and the
nearest key. `herma config check` names all mistakes of a file, `herma config show` prints the value
of each key and where it comes from. `herma config reference` prints this page, which a test
compares with the sources.

Times end in `_s` (seconds) or `_ms` (milliseconds). A dash is a key that is absent by default.
Relative paths are those of the folder in which a command starts; units and containers start in the
folder of the file.
"""


def reference() -> str:
    """The page, in Markdown."""
    parts = [_PAGE]
    for struct in tables():
        parts += ["", *_section(struct)] if struct is not Config else _keys(struct)
    return "\n".join(parts) + "\n"


def meanings() -> dict[str, dict[str, str]]:
    """A line for each key, by table and key."""
    text = files("config").joinpath("meanings.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def tables(top: type[msgspec.Struct] = Config) -> list[type[msgspec.Struct]]:
    """The tables of the file, each before those within it."""
    found: dict[type[msgspec.Struct], None] = {top: None}
    for field in msgspec.structs.fields(top):
        for inner in _structs(field.type):
            found.update(dict.fromkeys(tables(inner)))
    return list(found)


def _structs(kind: object) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in get_args(kind):
        yield from _structs(inner)


def table_title(struct: type[msgspec.Struct]) -> str:
    """A table as its docstring and the page name it, without marks: [[models]]."""
    return _description(struct).partition(": ")[0].strip("`")


def _section(struct: type[msgspec.Struct]) -> Iterator[str]:
    title, _, description = _description(struct).partition(": ")
    yield f"## {title}"
    yield ""
    yield f"{description[:1].upper()}{description[1:]}"
    yield ""
    yield from _keys(struct)


def _description(struct: type[msgspec.Struct]) -> str:
    """The docstring with a paragraph in a line."""
    paragraphs = (struct.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _keys(struct: type[msgspec.Struct]) -> Iterator[str]:
    lines = meanings()[struct.__name__]
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for field in msgspec.structs.fields(struct):
        cells = (f"`{field.name}`", _in_words(field.type), _default(field), lines[field.name])
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(field: msgspec.structs.FieldInfo) -> str:
    """The default in TOML; a word for none."""
    value = field.default
    is_made = field.default_factory is not msgspec.NODEFAULT and field.name not in _FILLED
    if value is msgspec.NODEFAULT and is_made:
        value = field.default_factory()
    if value is msgspec.NODEFAULT and field.name not in _FILLED:
        return "needed"
    has_none = value is None or value is msgspec.NODEFAULT or value in ((), {})
    if has_none or isinstance(value, msgspec.Struct):
        return "-"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _in_words(kind: object) -> str:
    """The values that a key takes, in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _bounded(_in_words(inner[0]), inner[1])
    if origin in (Union, UnionType):
        return " or ".join(_in_words(one) for one in inner if one is not NoneType)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(one)}`" for one in inner)
    if origin is tuple:
        return f"list: {_in_words(inner[0])}"
    if origin is dict:
        return f"by name: {_in_words(inner[1])}"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"table {_description(kind).partition(': ')[0]}"
    return _WORDS[kind]


def _bounded(words: str, bounds: msgspec.Meta) -> str:
    if bounds.pattern is not None:
        return PATTERNS[bounds.pattern]
    least = bounds.ge if bounds.gt is None else bounds.gt
    if least is None:
        return words
    above = "" if bounds.gt is None else "above "
    if bounds.le is None or bounds.le >= _NO_BOUND:
        return f"{words}, {above or 'at least '}{least:,}"
    return f"{words}, {above}{least:,} to {bounds.le:,}"
