"""Arguments that are written as one tag per parameter, as a grammar.

Owns which values stand as plain text and which as JSON, and what of a schema that leaves out. The
parameters come in the order of the schema. Must not know a format beyond the tags around values.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from gateway.output.tools.schema_parts import SchemaParts
from gateway.output.tools.value_tags import ValueTags, slashed
from gateway.schemas import FORMAT_PATTERNS, named_types, type_of

OPTIONS: Final = "x-guidance"
_SHARED: Final = ("$defs", "definitions", OPTIONS)
"""Keywords of a schema that its parts refer to or depend on."""

_LENGTHS: Final = ("minLength", "maxLength")
_WHOLE: Final = ("oneOf", "if", "not", "patternProperties")
"""Keywords that say more of an object than its properties."""

_OTHER: Final = ("properties", "required", "additionalProperties", "items", "prefixItems")
"""Keywords of a schema that names no type and is not about texts."""

_EMPTY: Final = '""'
_NULL: Final = "null"
_STRING: Final = "string"
_JSON_TYPES: Final = ("number", "boolean", "null", "array", "object")
_KEYWORDS: Final = {
    "array": ("items", "prefixItems"),
    "object": ("properties", "required", "additionalProperties"),
}
"""For each type: the keywords by which a schema that names no type is about values of that type."""


class UnenforcedKeyword(NamedTuple):
    """A keyword that is not enforced, at `pointer`."""

    pointer: str
    keyword: str


class Parameters(NamedTuple):
    """Arguments that come one by one, between these tags."""

    tags: ValueTags

    def rules(self, rule: str, schema: str) -> Sequence[str]:
        """The lines of `rule` for arguments of the schema, which is JSON."""
        return _compiled(self.tags, rule, schema)[0]

    def limits(self, schema: str) -> tuple[UnenforcedKeyword, ...]:
        """The keywords that the rules of this schema leave out."""
        return _compiled(self.tags, "limits", schema)[1]


@lru_cache(maxsize=512)
def _compiled(
    tags: ValueTags, rule: str, schema: str
) -> tuple[tuple[str, ...], tuple[UnenforcedKeyword, ...]]:
    """The lines of `rule` and what they leave out: agents repeat their tools with every turn."""
    rules = _Rules(tags, rule, decoded(schema))
    rules.write()
    return tuple(rules.lines), tuple(dict.fromkeys(rules.limits))


class _Rules:
    """The rules of one tool's arguments."""

    def __init__(self, tags: ValueTags, rule: str, root: dict[str, Any]) -> None:
        self._tags = tags
        self._rule = rule
        self._root = root
        self._parts = SchemaParts(root)
        self._num_values = 0
        self.lines: list[str] = []
        self.limits: list[UnenforcedKeyword] = []

    def write(self) -> None:
        """Write all rules, the rules of the arguments first."""
        given = {key: value for key, value in self._root.items() if key not in _SHARED}
        found = list(self._parts.alternatives(given, partial(self._leave_out, "")))
        has_names = any(isinstance(one.get("properties"), dict) for one in found)
        says_more = [keyword for keyword in _WHOLE if keyword in self._root]
        whole = f"{self._rule}_json"
        if (says_more or not has_names) and (written := self._tags.whole(whole)):
            self.limits.clear()
            self.lines = [f"{self._rule}: {written}", self._json(whole, self._root)]
            return
        for keyword in says_more:
            self._leave_out("", keyword)
        parts = [self._parameters(one) for one in found] if has_names else [self._any_parameters()]
        self.lines.insert(0, f"{self._rule}: {' | '.join(parts)}")

    def _leave_out(self, at: str, keyword: str) -> None:
        self.limits.append(UnenforcedKeyword(f"{at}/{keyword}", keyword))

    def _parameters(self, schema: Mapping[str, Any]) -> str:
        """The parameters of one form of the arguments, in the order of the schema."""
        required = frozenset(schema.get("required") or ())
        parts: list[str] = []
        for name, value in schema.get("properties", {}).items():
            if value is False:
                continue
            part = f"{self._rule}_{self._num_values}"
            self._num_values += 1
            parts.append(part if name in required else f"{part}?")
            at = f"/properties/{name.replace('~', '~0').replace('/', '~1')}"
            ways = list(self._parts.alternatives(value, partial(self._leave_out, at)))
            write = self._typed if self._tags.is_typed else self._untyped
            self.lines.append(f"{part}: {write(part, name, value, ways or [{}], at)}")
        return " ".join(parts) or _EMPTY

    def _untyped(
        self, rule: str, name: str, schema: object, ways: Sequence[Mapping[str, Any]], at: str
    ) -> str:
        """A parameter: texts stand as they are, what cannot be a text is JSON."""
        texts = [one for one in ways if _is_text(one)]
        if not texts:
            self.lines.append(self._json(f"{rule}_json", schema))
            return f"{self._tags.key(name, '')} {rule}_json {self._tags.end}"
        forms = self._texts(rule, texts, at)
        if any(_is_null(one) for one in ways):
            forms.append(self._tags.literal(_NULL))
        return f"{self._tags.key(name, _STRING)} ({' | '.join(dict.fromkeys(forms))})"

    def _typed(
        self, rule: str, name: str, schema: object, ways: Sequence[Mapping[str, Any]], at: str
    ) -> str:
        """A parameter whose tag says the type of its value."""
        forms = []
        if texts := [one for one in ways if _is_text(one)]:
            parts = " | ".join(dict.fromkeys(self._texts(rule, texts, at)))
            forms.append(f"{self._tags.key(name, _STRING)} ({parts})")
        for kind in _JSON_TYPES:
            if any(kind in _json_types(one) for one in ways):
                forms.append(f"{self._tags.key(name, kind)} {rule}_{kind} {self._tags.end}")
                self.lines.append(self._json(f"{rule}_{kind}", _of_type(schema, kind)))
        return " | ".join(forms)

    def _json(self, rule: str, schema: object) -> str:
        """The rule of a value that is JSON."""
        shared = {name: self._root[name] for name in _SHARED if name in self._root}
        shown = {**schema, **shared} if isinstance(schema, dict) else shared
        return f"{rule}: %json {json.dumps(shown, ensure_ascii=False)}"

    def _texts(self, rule: str, texts: Sequence[Mapping[str, Any]], at: str) -> list[str]:
        """The forms of a text with their ends. Notes what they leave out."""
        forms: list[str] = []
        for index, schema in enumerate(texts):
            if choices := _choices(schema):
                written = [one for choice in choices if (one := self._tags.literal(choice))]
                forms += written
                if written:
                    continue
                self._leave_out(at, "const" if "const" in schema else "enum")
            pattern = pattern_of(schema)
            for keyword in _LENGTHS if pattern is not None else ("pattern",):
                if keyword in schema:
                    self._leave_out(at, keyword)
            text = f"{rule}_text{index or ''}"
            forms.append(text)
            of_length = rf"(.|\n){_times(schema)}"
            regex = of_length if pattern is None else slashed(f"({pattern})")
            self.lines += self._tags.text(text, regex)
        return forms

    def _any_parameters(self) -> str:
        text = f"{self._rule}_text"
        self.lines += self._tags.text(text, r"(.|\n)*")
        return f"({self._tags.any_key()} {text})*"


def pattern_of(schema: Mapping[str, Any]) -> str | None:
    """The pattern of the whole text, without its anchors: its own or that of its format."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return FORMAT_PATTERNS.get(schema.get("format", ""))
    if not pattern.startswith("^") or not pattern.endswith("$") or pattern.endswith("\\$"):
        return None
    return pattern[1:-1]


def _times(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return f"{{{least},{most}}}" if least or most != "" else "*"


def _is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a value may be a string, which stands without quotes; so does a value of any type."""
    kinds = schema.get("type")
    if kinds is not None and "string" not in named_types(kinds):
        return False
    if (values := _values(schema)) is not None:
        return any(isinstance(one, str) and one for one in values)
    return kinds is not None or not any(keyword in schema for keyword in _OTHER)


def _json_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types of JSON, other than texts, that a value may have."""
    kinds = schema.get("type")
    if (values := _values(schema)) is not None:
        found = _without_integers(map(type_of, values))
    elif kinds is None:
        words = [kind for kind, keys in _KEYWORDS.items() if any(key in schema for key in keys)]
        found = set(words or _JSON_TYPES)
    else:
        found = set(_JSON_TYPES)
    if kinds is not None:
        found &= _without_integers(named_types(kinds))
    return frozenset(found)


def _without_integers(kinds: Iterable[str]) -> set[str]:
    """The types with numbers for integers, which are written alike."""
    return {"number" if kind == "integer" else kind for kind in kinds}


def _of_type(schema: object, kind: str) -> object:
    """The schema of those values that have this type."""
    names = (kind, "integer") if kind == "number" else (kind,)
    if isinstance(schema, dict) and schema.get("type") in names:
        return schema
    return {"allOf": [schema, {"type": kind}]}


def _is_null(schema: Mapping[str, Any]) -> bool:
    """Whether the schema names null as a type or value."""
    if (values := _values(schema)) is not None:
        return None in values
    return "null" in named_types(schema.get("type"))


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values of an enumeration."""
    given = [schema["const"]] if "const" in schema else schema.get("enum")
    return given if isinstance(given, list) else None


def _choices(schema: Mapping[str, Any]) -> list[str]:
    """The texts of an enumeration."""
    return [one for one in _values(schema) or () if isinstance(one, str) and one]


@lru_cache(maxsize=256)
def decoded(schema: str) -> dict[str, Any]:
    """The schema of a tool."""
    found = json.loads(schema)
    return found if isinstance(found, dict) else {}
