"""Bytes of a request -> plain values -> a typed body.

Owns JSON, and the 400 that names the field which has the wrong type or is out of bounds. Must not
know what any field means.
"""

import json
import math
import re
from typing import Any, Final, TypeVar

import msgspec

from gateway.api.errors import ApiError, invalid
from gateway.api.tool_schemas import ToolSchemas

Body = TypeVar("Body", bound=msgspec.Struct)

_HALF_A_PAIR: Final = (
    "The body is not valid JSON: a \\u escape of a surrogate pair stands without its other half."
)
_MISSING: Final = re.compile(r"missing required field `(\w+)`")


_LARGE_BYTES: Final = 4096
_tools: Final = ToolSchemas()
_decode: Final = msgspec.json.Decoder().decode
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body` (UTF-8). Raises `ApiError` 400; for a NaN or an infinity, which
    JSON lacks, one that names the field.
    """
    try:
        raw = decode_with_tools(body)
    except UnicodeDecodeError as error:
        raise _unreadable("The body is not valid UTF-8.") from error
    except RecursionError as error:
        raise _unreadable("The body is nested too deeply.") from error
    except msgspec.MsgspecError as error:
        if not body.strip():
            raise _unreadable("The body is empty; send a JSON object.") from error
        _refuse_almost_json(body)
        raise _unreadable(f"The body is not valid JSON: {error}.") from error
    if type(raw) is not dict:
        raise _unreadable("The body must be a JSON object.")
    return raw


def typed_body(raw: dict[str, Any], kind: type[Body]) -> Body:
    """`raw` as a `kind`. Raises `ApiError` 400 that names the first field that does not fit."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        param = path.rstrip("`").lstrip(".") or None
        missing = _MISSING.search(text)
        if missing:
            param = f"{param}.{missing[1]}" if param else missing[1]
            raise invalid(param, f"'{param}' is missing.") from error
        raise invalid(param, f"{label(param)}: {text.replace('`', '')}.") from error


def decode_with_tools(body: bytes) -> Any:  # noqa: ANN401 (JSON of any shape)
    """The JSON in `body`; objects in its field `tools` are read through a memory, as `ToolSchema`.

    A `msgspec.MsgspecError` or `UnicodeDecodeError` says what is wrong with the whole body.
    """
    # To look through a large body takes as long as to find its fields.
    if len(body) < _LARGE_BYTES and b'"tools"' not in body:
        return _decode(body)
    try:
        return {
            name: _tools.read_all(bytes(raw)) if name == "tools" else _decode(raw)
            for name, raw in _fields(body).items()
        }
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _decode(body)


def label(param: str | None) -> str:
    """How a text calls a field. Hermes Agent takes the name of one for a full window."""
    return "The cap on output tokens" if param == "max_tokens" else f"'{param}'"


def _unreadable(text: str) -> ApiError:
    return invalid(None, text, code="invalid_json")


def _refuse_almost_json(body: bytes) -> None:
    """What only a stricter reader finds wrong: halves of surrogate pairs, near whose end msgspec
    calls a whole body truncated, and numbers that are none.
    """
    try:
        lenient = json.loads(body)
        json.dumps(lenient, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _unreadable(_HALF_A_PAIR) from error
    except (ValueError, RecursionError):
        return
    if not isinstance(lenient, dict):
        return
    for name, value in lenient.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid(name, f"{label(name)} must be a finite number.")
