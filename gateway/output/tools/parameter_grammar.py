"""Arguments that are written as one tag per parameter, as a grammar.

Owns which values stand as plain text and which as JSON, and what of a schema that leaves out. The
parameters come in the order of the schema. Must not know a format beyond the tags around values.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

_OPTIONS: Final = "x-guidance"
_SHARED: Final = ("$defs", "definitions", _OPTIONS)
"""What a part of a schema refers to."""

_LENGTHS: Final = ("minLength", "maxLength")
_WHOLE: Final = ("anyOf", "oneOf", "allOf", "$ref", "if", "not", "patternProperties")
"""Keywords that say more of an object than its properties."""


class ParameterTags(NamedTuple):
    """Before a name, between name and value, and behind the value."""

    before: str
    named: str
    end: str


class Limit(NamedTuple):
    """A keyword that is not enforced, at `pointer`."""

    pointer: str
    keyword: str


def parameter_rules(rule: str, schema: str, tags: ParameterTags) -> list[str]:
    """The lines of `rule` for arguments of the schema, which is JSON."""
    given = _decoded(schema)
    if _whole_keywords(given) or not isinstance(given.get("properties"), dict):
        return _any_parameters(rule, tags)
    required = frozenset(given.get("required") or ())
    parts: list[str] = []
    lines: list[str] = []
    for at, (name, value) in enumerate(given["properties"].items()):
        part = f"{rule}_{at}"
        parts.append(part if name in required else f"{part}?")
        lines += _value_rules(part, name, _shared(given, value), tags)
    return [f"{rule}: {' '.join(parts) or _EMPTY}", *lines]


def unenforceable(schema: str) -> tuple[Limit, ...]:
    """What the rules of such a schema leave out."""
    given = _decoded(schema)
    if whole := _whole_keywords(given):
        return tuple(Limit(f"/{keyword}", keyword) for keyword in whole)
    properties = given.get("properties")
    if not isinstance(properties, dict):
        return ()
    return tuple(_limits_of_texts(properties))


_EMPTY: Final = '""'


def _limits_of_texts(properties: Mapping[str, Any]) -> Iterator[Limit]:
    for name, value in properties.items():
        if isinstance(value, dict) and _is_text(value) and not _choices(value):
            step = name.replace("~", "~0").replace("/", "~1")
            yield from (
                Limit(f"/properties/{step}/{keyword}", keyword) for keyword in _left_out(value)
            )


def _left_out(value: Mapping[str, Any]) -> list[str]:
    """The keywords of a string that its rule leaves out."""
    given = _LENGTHS if _pattern(value) is not None else ("pattern",)
    return [keyword for keyword in ("format", *given) if keyword in value]


def _pattern(value: Mapping[str, Any]) -> str | None:
    """The pattern of the whole text, without its anchors."""
    pattern = value.get("pattern")
    if value.get("type") != "string" or not isinstance(pattern, str):
        return None
    if not pattern.startswith("^") or not pattern.endswith("$") or pattern.endswith("\\$"):
        return None
    return pattern[1:-1]


def _value_rules(
    rule: str, name: str, schema: Mapping[str, Any], tags: ParameterTags
) -> Iterator[str]:
    before, end = _quoted(f"{tags.before}{name}{tags.named}"), _quoted(tags.end)
    choices = _choices(schema)
    if choices:
        yield f"{rule}: {before} ({' | '.join(map(_quoted, choices))}) {end}"
    elif (pattern := _pattern(schema)) is not None:
        yield f"{rule}: {before} /{_slashed(f'({pattern})')}/ {end}"
    elif _is_text(schema):
        yield f"{rule}: {before} {rule}_text"
        yield _text_until(f"{rule}_text", tags, _times(schema))
    else:
        yield f"{rule}: {before} {rule}_json {end}"
        yield f"{rule}_json: %json {json.dumps(schema, ensure_ascii=False)}"


def _any_parameters(rule: str, tags: ParameterTags) -> list[str]:
    before, named = _quoted(tags.before), _quoted(tags.named)
    return [
        f"{rule}: ({before} /[A-Za-z0-9_.-]+/ {named} {rule}_text)*",
        _text_until(f"{rule}_text", tags),
    ]


def _text_until(rule: str, tags: ParameterTags, times: str = "*") -> str:
    """Any text of so many characters, and the first end behind it."""
    return f"{rule}[lazy]: /(.|\\n){times}{_slashed(tags.end)}/"


def _times(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return f"{{{least},{most}}}" if least or most != "" else "*"


def _slashed(pattern: str) -> str:
    """As it stands between the slashes of the grammar."""
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\/", pattern).replace("\n", "\\n")


def _is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a value may be a string, which stands without quotes; so does a value of any type."""
    kinds = schema.get("type")
    if kinds is not None:
        return "string" in (kinds if isinstance(kinds, list) else [kinds])
    for keyword in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(keyword), list):
            return any(isinstance(one, dict) and _is_text(one) for one in parts)
    return not any(keyword in schema for keyword in ("allOf", "$ref", "properties", "items"))


def _choices(schema: Mapping[str, Any]) -> list[str]:
    """The texts of an enumeration of strings."""
    given = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(given, list) or not all(isinstance(one, str) and one for one in given):
        return []
    return given


def _whole_keywords(schema: Mapping[str, Any]) -> list[str]:
    return [keyword for keyword in _WHOLE if keyword in schema]


def _shared(schema: Mapping[str, Any], value: object) -> dict[str, Any]:
    part = dict(value) if isinstance(value, dict) else {}
    return {**part, **{name: schema[name] for name in _SHARED if name in schema}}


@lru_cache(maxsize=256)
def _decoded(schema: str) -> dict[str, Any]:
    found = json.loads(schema)
    return found if isinstance(found, dict) else {}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
