"""What shape the answer is to have, told to the model in words.

Owns the check of `response_format` and the sentence that stands for it in a local model's prompt:
nothing forces the model to obey. Providers get the field itself. Must not know templates.
"""

from typing import Any, Final

import msgspec

from gateway.api.chat_request import Message
from gateway.api.errors import ApiError, invalid

_KINDS: Final = ("text", "json_object", "json_schema")
_JSON_ONLY: Final = "Answer with one JSON object and with nothing else."
_encode = msgspec.json.Encoder().encode


def format_instruction(given: dict[str, Any] | None) -> str | None:
    """The sentence for `given`; None if any text will do. Raises `ApiError` 400."""
    if given is None:
        return None
    kind = given.get("type")
    if kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise _bad("type", f"must be one of {known}, not {kind!r}")
    if kind == "text":
        return None
    if kind == "json_object":
        return _JSON_ONLY
    wrapper = given.get("json_schema")
    if not isinstance(wrapper, dict):
        raise _bad("json_schema", "must be an object")
    schema = wrapper.get("schema")
    if not isinstance(schema, dict):
        raise _bad("json_schema.schema", "must be an object")
    return f"{_JSON_ONLY} It must be valid for this JSON schema:\n{_encode(schema).decode()}"


def instructed(messages: tuple[Message, ...], instruction: str | None) -> tuple[Message, ...]:
    """`messages` with `instruction` at the end of the system text, made if there is none."""
    if instruction is None:
        return messages
    first, *rest = messages
    if first.role not in ("system", "developer"):
        return (Message(role="system", content=instruction), *messages)
    content = f"{first.content}\n\n{instruction}"
    return (msgspec.structs.replace(first, content=content), *rest)


def _bad(path: str, text: str) -> ApiError:
    where = f"response_format.{path}"
    return invalid(where, f"'{where}' {text}.")
