"""Arguments that are written as one tag per parameter, as a grammar.

Owns which values stand as plain text and which as JSON, and what of a schema that leaves out. The
parameters come in the order of the schema. Must not know a format beyond the tags around values.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from gateway.output.tools.schema_parts import alternatives
from gateway.schemas import FORMAT_PATTERNS

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


class UnenforcedKeyword(NamedTuple):
    """A keyword that is not enforced, at `pointer`."""

    pointer: str
    keyword: str


class ParameterTags(NamedTuple):
    """Before a name, between name and value, and behind the value: texts, or with `are_tokens` in
    Lark, where no text holds `never` (a regular expression).
    """

    before: str
    named: str
    end: str
    are_tokens: bool = False
    never: str = ""

    def rules(self, rule: str, schema: str) -> Sequence[str]:
        """The lines of `rule` for arguments of the schema, which is JSON."""
        return _compiled(self, rule, schema)[0]

    def limits(self, schema: str) -> tuple[UnenforcedKeyword, ...]:
        """What the rules of such a schema leave out."""
        return _compiled(self, "limits", schema)[1]

    def key(self, name: str) -> str:
        """All that is before the value of a parameter."""
        if self.are_tokens:
            return f"{self.before} {quoted(name)} {self.named}"
        return quoted(f"{self.before}{name}{self.named}")

    def pieces(self) -> tuple[str, str, str]:
        """The tags in Lark."""
        tags = self.before, self.named, self.end
        return tags if self.are_tokens else (quoted(tags[0]), quoted(tags[1]), quoted(tags[2]))


@lru_cache(maxsize=512)
def _compiled(
    tags: ParameterTags, rule: str, schema: str
) -> tuple[tuple[str, ...], tuple[UnenforcedKeyword, ...]]:
    """The lines of `rule` and what they leave out: agents repeat their tools with every turn."""
    rules = _Rules(tags, rule, decoded(schema))
    rules.write()
    return tuple(rules.lines), tuple(dict.fromkeys(rules.limits))


class _Rules:
    """The rules of one tool's arguments."""

    def __init__(self, tags: ParameterTags, rule: str, root: dict[str, Any]) -> None:
        self._tags = tags
        self._rule = rule
        self._root = root
        self._num_values = 0
        self.lines: list[str] = []
        self.limits: list[UnenforcedKeyword] = []

    def write(self) -> None:
        """All rules; those of the arguments come first."""
        for keyword in _WHOLE:
            if keyword in self._root:
                self._leave_out("", keyword)
        given = {key: value for key, value in self._root.items() if key not in _SHARED}
        found = list(alternatives(given, self._root, partial(self._leave_out, "")))
        if any(isinstance(one.get("properties"), dict) for one in found):
            parts = [self._parameters(one) for one in found]
        else:
            parts = [self._any_parameters()]
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
            self.lines.append(f"{part}: {self._value(part, name, value)}")
        return " ".join(parts) or _EMPTY

    def _value(self, rule: str, name: str, schema: object) -> str:
        """A parameter: texts stand as they are, what cannot be a text is JSON."""
        before, end = self._tags.key(name), self._tags.pieces()[2]
        at = f"/properties/{name.replace('~', '~0').replace('/', '~1')}"
        ways = list(alternatives(schema, self._root, partial(self._leave_out, at)))
        texts = [one for one in ways if _is_text(one)]
        if not texts:
            shown = {**schema, **self._shared()} if isinstance(schema, dict) else self._shared()
            self.lines.append(f"{rule}_json: %json {json.dumps(shown, ensure_ascii=False)}")
            return f"{before} {rule}_json {end}"
        forms = [f"({form}) {end}" for one in texts if (form := self._exact(one, at))]
        if any(_is_null(one) for one in ways):
            forms.append(f"{quoted(_NULL)} {end}")
        for index, one in enumerate(one for one in texts if not _is_exact(one)):
            text = f"{rule}_text{index or ''}"
            forms.append(text)
            self.lines += self._text(text, _times(one))
        return f"{before} ({' | '.join(dict.fromkeys(forms))})"

    def _exact(self, schema: Mapping[str, Any], at: str) -> str:
        """The choices or the pattern of a text; empty if it has neither. Notes what is left out."""
        if choices := _choices(schema):
            return " | ".join(map(quoted, choices))
        pattern = pattern_of(schema)
        for keyword in _LENGTHS if pattern is not None else ("pattern",):
            if keyword in schema:
                self._leave_out(at, keyword)
        return "" if pattern is None else f"/{slashed(f'({pattern})')}/"

    def _any_parameters(self) -> str:
        before, named, _ = self._tags.pieces()
        text = f"{self._rule}_text"
        self.lines += self._text(text, "*")
        return f"({before} /[A-Za-z0-9_.-]+/ {named} {text})*"

    def _text(self, rule: str, times: str) -> list[str]:
        """Any text of so many characters, and the first end behind it."""
        tags = self._tags
        if not tags.are_tokens:
            return [f"{rule}[lazy]: /(.|\\n){times}{slashed(tags.end)}/"]
        text = rule.upper()
        return [
            f"{rule}: {text} {tags.end}",
            f"{text}: /(.|\\n){times}/ & ~/(.|\\n)*{slashed(tags.never)}(.|\\n)*/",
        ]

    def _shared(self) -> dict[str, Any]:
        """The keywords of the root that the schema of a part needs beside its own."""
        return {name: self._root[name] for name in _SHARED if name in self._root}


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


def slashed(pattern: str) -> str:
    """As it stands between the slashes of the grammar."""
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\/", pattern).replace("\n", "\\n")


def _is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a value may be a string, which stands without quotes; so does a value of any type."""
    kinds = schema.get("type")
    if kinds is not None and "string" not in (kinds if isinstance(kinds, list) else [kinds]):
        return False
    if (values := _values(schema)) is not None:
        return any(isinstance(one, str) and one for one in values)
    return kinds is not None or not any(keyword in schema for keyword in _OTHER)


def _is_null(schema: Mapping[str, Any]) -> bool:
    """Whether a value may be null by name."""
    if (values := _values(schema)) is not None:
        return None in values
    kinds = schema.get("type")
    return kinds == "null" or (isinstance(kinds, list) and "null" in kinds)


def _is_exact(schema: Mapping[str, Any]) -> bool:
    return bool(_choices(schema)) or pattern_of(schema) is not None


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


def quoted(text: str) -> str:
    """A literal of the grammar; its escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)
