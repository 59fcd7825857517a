"""The field `response_format` of a chat: its check, its instruction and its grammar.

Owns the types of formats, those of other servers included. Must not know the other fields of a
request.
"""

from typing import Any, Final

import msgspec

from gateway.api.errors import ApiError, invalid
from gateway.api.output_grammar import OutputGrammar, form_grammar, schema_grammar
from gateway.api.request import Message

_FORMATS: Final = ("text", "json_object", "json_schema")
_FOREIGN_FORMATS: Final = {"regex": "regex", "grammar": "gbnf", "structural_tag": "structural_tag"}
"""Types of formats that Together, Fireworks, TGI and vLLM have, and what they are."""
_PATTERNS: Final = ("regex", "pattern", "value")
_SCHEMAS: Final = ("schema", "value")
"""The field with the schema, beside the type: llama.cpp's name, then TGI's."""
_JSON_ONLY: Final = "Answer with one JSON object and with nothing else."

_ANY_OBJECT: Final = {"type": "object"}

_encode: Final = msgspec.json.Encoder().encode


def instructed(messages: tuple[Message, ...], given: dict[str, Any]) -> tuple[Message, ...]:
    """`messages` with the instruction for the response format `given` at the end of the system
    text: a model that knows what it is to write writes it better. Providers get the field itself.
    """
    instruction = _format_instruction(given)
    if instruction is None:
        return messages
    first, *rest = messages
    if first.role not in ("system", "developer"):
        return (Message(role="system", content=instruction), *messages)
    content = f"{first.content}\n\n{instruction}"
    return (msgspec.structs.replace(first, content=content), *rest)


def _format_instruction(given: dict[str, Any]) -> str | None:
    """The sentence that describes the format `given` to the model; None if the format allows any
    text.
    """
    kind = given.get("type")
    if kind == "text" or _is_foreign(given):
        return None
    found = _bare_schema(given)
    if kind not in _FORMATS and not (kind == "json" and found):
        raise _bad_format("type", f"must be one of {', '.join(_FORMATS)}, not {kind!r}")
    if found is not None:
        _check_strict(given, "strict")
        return _schema_instruction(found[1])
    if kind == "json_object":
        return _JSON_ONLY
    wrapper = given.get("json_schema")
    if not isinstance(wrapper, dict):
        raise _bad_format("json_schema", "must be an object")
    schema = wrapper.get("schema")
    if not isinstance(schema, dict):
        raise _bad_format("json_schema.schema", "must be an object")
    _check_strict(wrapper, "json_schema.strict")
    return _schema_instruction(schema)


def _check_strict(given: dict[str, Any], field: str) -> None:
    """Raise `ApiError` 400 unless `strict` is a boolean or null. A value such as "true" would
    otherwise count as false, and the schema would not be enforced.
    """
    if not isinstance(given.get("strict"), bool | None):
        raise _bad_format(field, "must be true or false")


def _is_foreign(given: dict[str, Any]) -> bool:
    """Whether OpenAI's API lacks this format."""
    kind = given.get("type")
    return isinstance(kind, str) and kind in _FOREIGN_FORMATS


def _foreign_grammar(given: dict[str, Any]) -> OutputGrammar:
    kind = given["type"]
    if kind == "structural_tag":
        return form_grammar("response_format", kind, given)
    names = _PATTERNS if kind == "regex" else (kind,)
    name = next((name for name in names if given.get(name) is not None), names[0])
    return form_grammar(f"response_format.{name}", _FOREIGN_FORMATS[kind], given.get(name))


def _schema_instruction(schema: dict[str, Any]) -> str:
    return f"{_JSON_ONLY} It must be valid for this JSON schema:\n{_encode(schema).decode()}"


def _bare_schema(given: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The schema beside the type and its field, as servers of others take it, if it is there."""
    if given.get("json_schema") is not None:
        return None
    name = next((name for name in _SCHEMAS if given.get(name) is not None), None)
    if name is None:
        return None
    schema = given[name]
    if not isinstance(schema, dict):
        raise _bad_format(name, "must be an object")
    return name, schema


def format_grammar(given: dict[str, Any]) -> OutputGrammar | None:
    """The grammar of the checked response format. Only a strict schema must be enforced, and a
    schema beside the type, because llama.cpp and TGI always enforce it.
    """
    if given["type"] == "text":
        return None
    if _is_foreign(given):
        return _foreign_grammar(given)
    if (found := _bare_schema(given)) is not None:
        name, schema = found
        is_strict = given.get("strict") is True
        field = f"response_format.{name}"
        return schema_grammar(schema, field, is_strict=is_strict, is_required=True)
    if given["type"] == "json_object":
        return schema_grammar(_ANY_OBJECT, "response_format", is_strict=False, is_required=False)
    wrapper = given["json_schema"]
    is_strict = wrapper.get("strict") is True
    field = "response_format.json_schema.schema"
    return schema_grammar(wrapper["schema"], field, is_strict=is_strict, is_required=is_strict)


def _bad_format(path: str, text: str) -> ApiError:
    where = f"response_format.{path}"
    return invalid(where, f"'{where}' {text}.")
