"""Values in a notation that is no JSON, as a grammar: what Gemma and LFM2 write between brackets.

Owns how a schema becomes rules of a notation, and what of the schema these leave out. A notation is
its quotes, words and brackets. Must not know formats of calls.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from gateway.output.tools.parameter_grammar import (
    OPTIONS,
    UnenforcedKeyword,
    decoded,
    pattern_of,
)
from gateway.output.tools.schema_parts import SchemaParts, options
from gateway.output.tools.value_tags import quoted, slashed
from gateway.schemas import named_types, type_of

Json = dict[str, Any]

_TYPES: Final = ("string", "integer", "number", "boolean", "null", "array", "object")
_KINDS: Final = {
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "maxProperties",
    ),
}
"""The keywords about values of each type. A schema that names no type is about the type of its
keywords.
"""


class Quotes(NamedTuple):
    """The quotes around a text: `opening` and `closing` in Lark; regular expressions of one `char`
    between them, of a character that is written as itself (`plain`), and of texts that may not
    occur (`never`). `escapes` maps characters to their escaped forms.
    """

    opening: str
    closing: str
    char: str
    plain: str
    never: str = ""
    escapes: tuple[tuple[str, str], ...] = ()

    def literal(self, text: str) -> str | None:
        """Exactly this text; None if it cannot be written."""
        if self.never and re.search(self.never, text):
            return None
        for char, written in self.escapes:
            text = text.replace(char, written)
        return f"{self.opening} {quoted(text)} {self.closing}"


class ObjectNotation(NamedTuple):
    """The brackets of an object, and its names: without quotes (`bare`, a regular expression), or
    in quotes. `after` follows a name, in Lark.
    """

    opening: str
    closing: str
    after: str
    bare: str = ""
    quotes: tuple[Quotes, ...] = ()

    def known(self, name: str) -> str | None:
        """A name and what is behind it; None if it cannot be written."""
        if self.bare and re.fullmatch(self.bare, name):
            return f"{quoted(name)} {self.after}"
        found = [one for quotes in self.quotes if (one := quotes.literal(name)) is not None]
        return f"({' | '.join(found)}) {self.after}" if found else None


class Notation(NamedTuple):
    """`arguments` is the notation of a call's arguments, `objects` that of objects in values.
    `words` are the words for null, true and false. With `is_sorted` the names of an object come in
    their alphabetical order.
    """

    arguments: ObjectNotation
    objects: ObjectNotation
    quotes: tuple[Quotes, ...]
    words: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    comma: str
    is_sorted: bool = False

    def rules(self, rule: str, schema: str) -> Sequence[str]:
        """The lines of `rule` for arguments of the schema, which is JSON."""
        return _compiled(self, rule, schema)[0]

    def limits(self, schema: str) -> tuple[UnenforcedKeyword, ...]:
        """The keywords that the rules of this schema leave out."""
        return _compiled(self, "limits", schema)[1]


@lru_cache(maxsize=512)
def _compiled(
    notation: Notation, rule: str, schema: str
) -> tuple[tuple[str, ...], tuple[UnenforcedKeyword, ...]]:
    """The rules of a schema and what they leave out, cached because agents repeat their tools with
    every turn.
    """
    rules = _Rules(notation, rule, decoded(schema))
    rules.write_arguments()
    return tuple(rules.lines), tuple(dict.fromkeys(rules.limits))


class _Rules:
    """The rules of one tool's arguments; a part of the schema that occurs twice has one rule."""

    def __init__(self, notation: Notation, rule: str, root: Json) -> None:
        self._notation = notation
        self._rule = rule
        self._root = root
        self._parts = SchemaParts(root)
        self._known: dict[str, str] = {}
        self._num_rules = 0
        self.lines: list[str] = []
        self.limits: list[UnenforcedKeyword] = []

    def write_arguments(self) -> None:
        """The arguments are an object in brackets of their own, whatever else the schema allows."""
        given = {key: value for key, value in self._root.items() if key not in {"$defs", OPTIONS}}
        names = self._notation.arguments
        found = self._parts.alternatives(given, lambda keyword: self._leave_out("", keyword))
        parts = [self._object(one, names, "") for one in found]
        self.lines.insert(0, f"{self._rule}: {' | '.join(parts) or self._object({}, names, '')}")

    def _leave_out(self, at: str, keyword: str) -> None:
        self.limits.append(UnenforcedKeyword(f"{at}/{_step(keyword)}", keyword))

    def _new_rule(self) -> str:
        self._num_rules += 1
        return f"{self._rule}_{self._num_rules}"

    def _terminal(self, *lines: str) -> str:
        """A terminal that has to match each of these expressions."""
        key = " & ".join(lines)
        if key not in self._known:
            self._known[key] = name = self._new_rule().upper()
            self.lines.append(f"{name}: {key}")
        return self._known[key]

    def _value(self, schema: object, at: str) -> str:
        """The rule of a value."""
        given = {} if schema is True else schema
        key = json.dumps(given, sort_keys=True)
        if key not in self._known:
            self._known[key] = name = self._new_rule()
            self.lines.append(f"{name}: {self._expression(given, at)}")
        return self._known[key]

    def _expression(self, schema: object, at: str) -> str:
        found = self._parts.flat(schema, lambda keyword: self._leave_out(at, keyword))
        if not isinstance(found, dict):
            if not found:
                self._leave_out(at, "not")
            found = {}
        if "anyOf" in found:
            return " | ".join(self._value(one, at) for one in options(found) if one is not False)
        types = _types(found)
        if "enum" in found or "const" in found:
            values = [found["const"]] if "const" in found else found["enum"]
            written = [self._literal(one) for one in values if _fits(one, types)]
            if parts := [one for one in written if one is not None]:
                return " | ".join(parts)
            self._leave_out(at, "enum")
        return " | ".join(self._of_type(kind, found, at) for kind in types)

    def _of_type(self, kind: str, schema: Json, at: str) -> str:
        null, true, false = self._notation.words
        match kind:
            case "null":
                return _any_of(null)
            case "boolean":
                return _any_of((*true, *false))
            case "integer" | "number":
                return self._number(kind, schema)
            case "array":
                return self._array(schema, at)
            case "object":
                return self._object(schema, self._notation.objects, at)
            case _:
                return self._text(schema, at)

    def _number(self, kind: str, schema: Json) -> str:
        """The rule of a number, which every notation writes as JSON does."""
        bounds = {key: schema[key] for key in _KINDS["number"] if key in schema}
        shared = {OPTIONS: self._root[OPTIONS]} if OPTIONS in self._root else {}
        text = f"%json {json.dumps({'type': kind, **bounds, **shared})}"
        if text not in self._known:
            self._known[text] = name = self._new_rule()
            self.lines.append(f"{name}: {text}")
        return self._known[text]

    def _text(self, schema: Json, at: str) -> str:
        pattern = pattern_of(schema)
        for keyword in ("minLength", "maxLength") if pattern is not None else ("pattern",):
            if keyword in schema:
                self._leave_out(at, keyword)
        parts = []
        for quotes in self._notation.quotes:
            regex = [f"/({quotes.char}){_times(schema, 'Length')}/"]
            if pattern is not None:
                regex = [f"/{slashed(f'({pattern})')}/", f"/({quotes.plain})*/"]
            parts.append(f"{quotes.opening} {self._between(quotes, regex)} {quotes.closing}")
        return " | ".join(parts)

    def _between(self, quotes: Quotes, regex: Sequence[str], taken: str = "") -> str:
        """The terminal of a text, except texts that no text may hold and names that are taken."""
        never = (f"~/(.|\\n)*{quotes.never}(.|\\n)*/",) if quotes.never else ()
        return self._terminal(*regex, *never, *((taken,) if taken else ()))

    def _array(self, schema: Json, at: str) -> str:
        comma = self._notation.comma
        first, items = schema.get("prefixItems", []), schema.get("items", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        first = first[:most]
        rest = ""
        if items is not False and (most is None or most > len(first)):
            rest = self._repeated(
                self._value(items, f"{at}/items"),
                max(least - len(first), 0),
                None if most is None else most - len(first),
                is_first=not first,
            )
        for index in reversed(range(len(first))):
            item = self._value(first[index], f"{at}/prefixItems/{index}")
            rest = f"{f'{comma} ' if index else ''}{item} {rest}"
            rest = rest if index < least else f"({rest})?"
        return f'"[" {rest} "]"'

    def _repeated(self, item: str, least: int, most: int | None, *, is_first: bool) -> str:
        """The grammar of `least` to `most` items. Each has a comma before it, but for the first of
        an array (`is_first`).
        """
        comma = self._notation.comma
        if not is_first:
            return f"({comma} {item}){_braces(least, most)}"
        if most == 0:
            return ""
        if most == 1:
            return item if least else f"{item}?"
        more = _braces(max(least - 1, 0), None if most is None else most - 1)
        found = f"{item} ({comma} {item}){more}"
        return found if least else f"({found})?"

    def _object(self, schema: Json, names: ObjectNotation, at: str) -> str:
        comma = self._notation.comma
        members, others = self._members(schema, names, at), self._others(schema, names, at)
        if not members:
            counts = schema.get("minProperties", 0), schema.get("maxProperties")
            inner = self._repeated(f"({others})", *counts, is_first=True) if others else ""
            return f"{names.opening} {inner} {names.closing}"
        for keyword in ("minProperties", "maxProperties"):
            if keyword in schema:
                self._leave_out(at, keyword)
        rest = self._new_rule()
        self.lines.append(f"{rest}: " + (f"({comma} ({others}))*" if others else '""'))
        ways = [f"({others}) {rest}"] if others else []
        ways.append("")
        for index, (member, is_required) in reversed(list(enumerate(members))):
            way = f"{member} {rest}"
            ways = [way] if is_required else [way, *ways]
            if index == 0:
                break
            self.lines.append(
                f"{(more := self._new_rule())}: "
                + (f"{comma} {way}" if is_required else f"({comma} {member})? {rest}")
            )
            rest = more
        inner = " | ".join(way for way in ways if way)
        inner = f"({inner}){'' if ways[-1] else '?'}"
        return f"{names.opening} {inner} {names.closing}"

    def _members(self, schema: Json, names: ObjectNotation, at: str) -> list[tuple[str, bool]]:
        """The properties that the schema names, each with whether it must be there."""
        required = schema.get("required", ())
        shown = dict(schema.get("properties", {}))
        other = schema.get("additionalProperties", True)
        shown |= {name: other for name in required if name not in shown and other is not False}
        order = sorted(shown, key=str.lower) if self._notation.is_sorted else list(shown)
        found = []
        for name in order:
            if shown[name] is False:
                continue
            where = f"{at}/properties/{_step(name)}"
            if (key := names.known(name)) is not None:
                found.append((f"{key} {self._value(shown[name], where)}", name in required))
            elif name in required:
                self.limits.append(UnenforcedKeyword(where, name))
        return found

    def _others(self, schema: Json, names: ObjectNotation, at: str) -> str:
        """The properties that the schema does not name; empty if there are none."""
        known = [*schema.get("properties", {}), *schema.get("required", ())]
        patterns = schema.get("patternProperties", {})
        taken = [re.escape(name) for name in dict.fromkeys(known)]
        found = []
        for pattern, value in patterns.items():
            body = pattern_of({"type": "string", "pattern": pattern})
            if body is None:
                self._leave_out(f"{at}/patternProperties", pattern)
            elif value is not False:
                where = f"{at}/patternProperties/{_step(pattern)}"
                key = self._other_name(names, f"/{slashed(f'({body})')}/", taken)
                found.append(f"{key} {self._value(value, where)}")
            taken.append(f"({body})")
        other = schema.get("additionalProperties", True)
        if other is not False:
            value = self._value(other, f"{at}/additionalProperties")
            found.append(f"{self._other_name(names, '', taken)} {value}")
        return " | ".join(found)

    def _other_name(self, names: ObjectNotation, regex: str, taken: Sequence[str]) -> str:
        not_taken = f"~/{slashed('|'.join(taken))}/" if taken else ""
        wanted = (regex,) if regex else ()
        if names.bare:
            lines = (f"/{slashed(names.bare)}/", *wanted, *((not_taken,) if not_taken else ()))
            return f"{self._terminal(*lines)} {names.after}"
        quotes = names.quotes[0]
        key = self._between(quotes, [f"/({quotes.plain})+/", *wanted], not_taken)
        return f"{quotes.opening} {key} {quotes.closing} {names.after}"

    def _literal(self, value: object) -> str | None:
        """Exactly this value of JSON; None if it cannot be written."""
        null, true, false = self._notation.words
        if value is None or isinstance(value, bool):
            return f"({_any_of(null if value is None else true if value else false)})"
        if isinstance(value, str):
            found = [one for quotes in self._notation.quotes if (one := quotes.literal(value))]
            return f"({' | '.join(found)})" if found else None
        if not isinstance(value, list | dict):
            return quoted(json.dumps(value))
        names = self._notation.objects
        if isinstance(value, list):
            parts = [self._literal(one) for one in value]
            ends = '"["', '"]"'
        else:
            parts = [
                None if (key := names.known(name)) is None else _joined(key, self._literal(one))
                for name, one in value.items()
            ]
            ends = names.opening, names.closing
        if None in parts:
            return None
        inner = f" {self._notation.comma} ".join(part for part in parts if part)
        return f"{ends[0]} {inner} {ends[1]}"


def _joined(key: str, value: str | None) -> str | None:
    return None if value is None else f"{key} {value}"


def _types(schema: Json) -> list[str]:
    """The types of values that a schema is about."""
    named = schema.get("type")
    if named is not None:
        types = named_types(named)
        return [one for one in types if not (one == "integer" and "number" in types)]
    kinds = [kind for kind, words in _KINDS.items() if any(word in schema for word in words)]
    return kinds or [one for one in _TYPES if one != "integer"]


def _fits(value: object, types: Sequence[str]) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number" in types or ("integer" in types and value == int(value))
    return type_of(value) in types


def _times(schema: Mapping[str, Any], what: str) -> str:
    least, most = schema.get(f"min{what}", 0), schema.get(f"max{what}")
    return _braces(least, most)


def _braces(least: int, most: int | None) -> str:
    if most is None:
        return "*" if least == 0 else f"{{{least},}}"
    return f"{{{least},{most}}}"


def _any_of(texts: Sequence[str]) -> str:
    return " | ".join(map(quoted, texts))


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
