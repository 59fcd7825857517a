"""Output grammars: the fields of a request that constrain the form of its answer.

Owns their names (OpenAI's, vLLM's, llama.cpp's and Ollama's), their bounds and their meaning as a
grammar. Must not know models: nothing is compiled here, so the engine finds a schema that cannot be
enforced.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from gateway.api.errors import ApiError, invalid
from gateway.schemas import CLOSED, LeftOut, SchemaTooLarge, enforceable
from protocol.messages import MAX_GRAMMAR_BYTES, GrammarKind
from protocol.reading import FAULTS

MAX_DEPTH: Final = 64
"""The bound on the nesting of objects and arrays within a schema."""

MAX_CHOICES: Final = 4096

_OPTIONS: Final = "x-guidance"
"""The key by which a schema gives options to llguidance. Options that a client sends are
replaced.
"""

_WHITE_SPACE: Final = r"( {0,2}|\r?\n[ \t]{0,40})"
"""Between the tokens of JSON: spaces, or a line break and an indentation. Without a bound a small
model writes line breaks until its limit."""

_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}

_FIELDS: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "regex": "regex",
    "guided_choice": "choice",
    "choice": "choice",
    "guided_grammar": "grammar",
    "lark": "grammar",
    "ebnf": "grammar",
    "guided_json_object": "json_object",
    "json_schema": "json",
    "format": "format",
    "grammar": "gbnf",
}
"""vLLM's names until 0.11, short ones, SGLang's, and at last those of llama.cpp and Ollama; the
values are vLLM's names since, or name what only those two have.
"""

_NESTED: Final = "structured_outputs"
_KINDS: Final = frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"})
_OPTIONS_BESIDE: Final = frozenset(
    {
        "disable_additional_properties",
        "disable_any_whitespace",
        "disable_fallback",
        "whitespace_pattern",
        "_backend",
        "_backend_was_auto",
    }
)
"""vLLM's fields beside the kinds: options of its backends."""

GRAMMAR_FIELDS: Final = frozenset({*_FIELDS, _NESTED})

_SUBSCHEMAS: Final = frozenset(
    {"items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames"}
)
_LISTS: Final = frozenset({"anyOf", "oneOf", "prefixItems", "items"})
_MAPS: Final = frozenset({"properties", "$defs", "definitions", "patternProperties"})


class OutputGrammar(msgspec.Struct, frozen=True):
    """The constraint that the client set in `field`. `is_required`: the request is refused if no
    engine can enforce it. `left_out` says what of a schema is not in it. One that `is_foreign` is
    written as only some external engines and providers read it.
    """

    kind: GrammarKind
    text: str
    field: str
    is_required: bool = True
    left_out: tuple[LeftOut, ...] = ()
    is_foreign: bool = False


class SchemaSource(NamedTuple):
    """A JSON schema for engines as one line, and what of the given one it leaves out."""

    text: str
    left_out: tuple[LeftOut, ...] = ()


def schema_grammar(
    schema: Mapping[str, Any], field: str, *, is_strict: bool, is_required: bool
) -> OutputGrammar:
    """The grammar of a JSON schema; see `schema_source`. Raises `ApiError` 400."""
    source = schema_source(schema, field, is_strict=is_strict, is_lenient=not is_required)
    return OutputGrammar("json_schema", source.text, field, is_required, source.left_out)


def schema_source(
    schema: Mapping[str, Any], field: str, *, is_strict: bool, is_lenient: bool = False
) -> SchemaSource:
    """The part of a JSON schema that can be enforced. `is_strict`: objects have no properties that
    the schema does not name. `is_lenient`: the client accepts that keywords are left out, and the
    engine may leave out more. Raises `ApiError` 400 for one that is too large or too deep.
    """
    _check_depth(schema, field)
    try:
        shown, left_out = enforceable(closed(schema) if is_strict else schema)
    except SchemaTooLarge as error:
        raise too_large(field) from error
    shown[_OPTIONS] = {"whitespace_pattern": _WHITE_SPACE, "lenient": is_lenient}
    return SchemaSource(_bounded(json.dumps(shown, ensure_ascii=False), field), left_out)


def given_grammar(raw: Mapping[str, Any]) -> OutputGrammar | None:
    """The grammar of the only field of `GRAMMAR_FIELDS` that is set. Raises `ApiError` 400."""
    given = [
        (name, kind, raw[name])
        for name, kind in _FIELDS.items()
        if raw.get(name) not in (None, False)
        # Clients of Ollama and llama.cpp send these empty for "none".
        and not (raw[name] == "" and kind in ("format", "gbnf"))
    ]
    nested = raw.get(_NESTED)
    if nested is not None:
        if not isinstance(nested, dict):
            raise invalid(_NESTED, f"'{_NESTED}' must be an object.")
        for unknown in sorted(nested.keys() - _KINDS - _OPTIONS_BESIDE):
            known = ", ".join(sorted(_KINDS))
            text = f"'{_NESTED}.{unknown}' is unknown; the forms of an answer are {known}."
            raise invalid(f"{_NESTED}.{unknown}", text)
        given += [
            (f"{_NESTED}.{kind}", kind, nested[kind])
            for kind in sorted(_KINDS)
            if nested.get(kind) not in (None, False)
        ]
    if not given:
        return None
    if len(given) > 1:
        raise invalid(given[1][0], f"'{given[0][0]}' and '{given[1][0]}' cannot go together.")
    return form_grammar(*given[0])


def form_grammar(field: str, kind: str, value: object) -> OutputGrammar:
    """The grammar of a field whose value is of that kind, one of the values of `_FIELDS` or of
    `_KINDS`. Raises `ApiError` 400.
    """
    if kind == "format":
        kind = "json_object" if value == "json" else "json"
    if kind == "json_object":
        return schema_grammar(_ANY_OBJECT, field, is_strict=False, is_required=True)
    if kind == "json":
        return schema_grammar(_schema(value, field), field, is_strict=False, is_required=True)
    if kind == "choice":
        return OutputGrammar("lark", _bounded(_choices(value, field), field), field)
    if kind == "structural_tag" and isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str) or not value:
        raise invalid(field, f"'{field}' must be a string that is not empty.")
    if kind in ("gbnf", "structural_tag"):
        return OutputGrammar("lark", _bounded(value, field), field, is_foreign=True)
    return OutputGrammar("regex" if kind == "regex" else "lark", _bounded(value, field), field)


def _schema(value: object, field: str) -> Mapping[str, Any]:
    """An object, or the text of one."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except FAULTS as error:
            raise invalid(field, f"'{field}' is not valid JSON.") from error
    if not isinstance(value, dict):
        raise invalid(field, f"'{field}' must be a JSON schema, which is an object.")
    return value


def _choices(value: object, field: str) -> str:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICES:
        raise invalid(field, f"'{field}' must be a list of 1 to {MAX_CHOICES} strings.")
    if not all(isinstance(one, str) and one for one in value):
        raise invalid(field, f"'{field}' must have strings that are not empty.")
    return "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in value) + "\n"


def _bounded(text: str, field: str) -> str:
    if len(text) > MAX_GRAMMAR_BYTES or len(text.encode("utf-8", "replace")) > MAX_GRAMMAR_BYTES:
        raise too_large(field)
    return text


def too_large(field: str) -> ApiError:
    """The error for a grammar that is over the bound of the wire."""
    return invalid(field, f"'{field}' is larger than {MAX_GRAMMAR_BYTES // 1024} KiB.")


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which objects that name their properties have no others, unless the schema allows
    them itself; they have the mark `CLOSED`. Parts of an `allOf` stay as they are: each would
    forbid what the others name. An object with such parts has the mark alone.
    """
    copy = _with_parts(schema, closed, _LISTS, _SUBSCHEMAS)
    if "properties" in copy and "additionalProperties" not in copy:
        copy[CLOSED] = True
        if "allOf" not in copy:
            copy["additionalProperties"] = False
    return copy


def _with_parts(
    schema: Mapping[str, Any],
    change: Callable[[Mapping[str, Any]], dict[str, Any]],
    lists: frozenset[str],
    subschemas: frozenset[str],
) -> dict[str, Any]:
    """A copy whose parts are changed: those in maps, and those under the keys in `lists` and
    `subschemas`.
    """

    def changed(part: object) -> object:
        return change(part) if isinstance(part, dict) else part

    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            copy[key] = {name: changed(one) for name, one in value.items()}
        elif key in lists and isinstance(value, list):
            copy[key] = [changed(one) for one in value]
        elif key in subschemas:
            copy[key] = changed(value)
        else:
            copy[key] = value
    return copy


def _check_depth(schema: Mapping[str, Any], field: str) -> None:
    """Raise `ApiError` 400 if the schema is too deep. It is a loop, because recursion would exceed
    the interpreter's limit.
    """
    level: list[object] = [schema]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise invalid(field, f"'{field}' is nested more than {MAX_DEPTH} levels deep.")
        level = [inner for value in level for inner in _inner(value)]


def _inner(value: object) -> Iterator[object]:
    values = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        yield from (one for one in values if isinstance(one, dict | list))  # type: ignore[attr-defined]
