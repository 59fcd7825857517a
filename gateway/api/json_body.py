"""The JSON of a request body: from bytes to an object, and from an object to a typed body.

Owns the decoding, the forms of JSON that are repaired, the cache of tools, and the 400 that names a
field with a wrong type. Must not know what the fields mean.
"""

import json
import math
import re
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import msgspec

from gateway.api.errors import ApiError, invalid
from gateway.api.tool_schemas import ToolSchema, ToolSchemas

Body = TypeVar("Body", bound=msgspec.Struct)

_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape in JSON: a surrogate pair, half of one (group 1), or any other."""
_MISSING: Final = re.compile(r"missing required field `(\w+)`")
_TYPES: Final = re.compile(r"`([^`]*)`")
_JSON_TYPES: Final = {
    "array": "an array",
    "bool": "a boolean",
    "float": "a number",
    "int": "an integer",
    "object": "an object",
    "str": "a string",
}

_LARGE_BYTES: Final = 4096
_tools: Final = ToolSchemas()
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body` (UTF-8; a byte order mark and other forms of Unicode are read
    too). Half of a surrogate pair, as programs in JavaScript leave
    it where they cut a text, is read as U+FFFD. Raises `ApiError` 400, which names the field of a
    NaN or an infinity.
    """
    try:
        # Searching a large body takes as long as splitting it into fields.
        has_tools = len(body) >= _LARGE_BYTES or body.find(b'"tools"') >= 0
        raw = decode_with_tools(body) if has_tools else _decode(body)
    except UnicodeDecodeError as error:
        raise _unreadable("The body is not valid UTF-8.") from error
    except RecursionError as error:
        raise _unreadable("The body is nested too deeply.") from error
    except msgspec.MsgspecError as error:
        mended = without_halves(_in_utf8(body))
        if mended != body:
            return decode_object(mended)
        if not body.strip():
            raise _unreadable("The body is empty; send a JSON object.") from error
        _refuse_almost_json(body)
        raise _unreadable(f"The body is not valid JSON: {error}.") from error
    if type(raw) is not dict:
        raise _unreadable("The body must be a JSON object.")
    return raw


_MAIN_FIELDS: Final = {
    "messages": "/v1/chat/completions and /v1/messages",
    "input": "/v1/responses",
    "prompt": "/v1/completions",
}
"""The field that every body of an API has, and the paths of that API."""


def other_api(raw: dict[str, Any], missing: str) -> str:
    """The hint that a body without its main field `missing` is one of another API; may be empty."""
    given = [name for name in _MAIN_FIELDS if name in raw and name != missing]
    others = given if missing in _MAIN_FIELDS else []
    return "".join(f" '{name}' is a field of {_MAIN_FIELDS[name]}." for name in others)


def typed_body(raw: dict[str, Any], kind: type[Body], where: str = "") -> Body:
    """`raw`, which is the body or stands at `where` in it, as a `kind`. Raises `ApiError` 400 that
    names the first field that does not fit.
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        if (whole := _with_integers(raw)) is not None:
            return typed_body(whole, kind, where)
        text, _, path = str(error).partition(" - at `$")
        param = (where + path.rstrip("`")).lstrip(".") or None
        missing = _MISSING.search(text)
        if missing:
            param = f"{param}.{missing[1]}" if param else missing[1]
            raise invalid(param, f"'{param}' is missing.{other_api(raw, param)}") from error
        raise invalid(param, f"{label(param)}: {_TYPES.sub(_in_json, text)}.") from error


def _with_integers(raw: dict[str, Any]) -> dict[str, Any] | None:
    """`raw` with each number like 5.0 among its fields, and in lists of them, as an integer; None
    if it has none. To JSON both are the same number, and some languages write only the longer.
    """
    changed: dict[str, Any] = {}
    for name, value in raw.items():
        if _is_whole(value):
            changed[name] = int(value)
        elif isinstance(value, list) and any(map(_is_whole, value)):
            changed[name] = [int(one) if _is_whole(one) else one for one in value]
    return {**raw, **changed} if changed else None


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) < 2.0**63


def _in_json(types: re.Match[str]) -> str:
    """msgspec's names of Python types, replaced by those of JSON."""
    *firsts, last = [_JSON_TYPES.get(each, each) for each in types[1].split(" | ")]
    return f"{', '.join(firsts)} or {last}" if firsts else last


def decode_with_tools(body: bytes) -> Any:  # noqa: ANN401 (JSON of any shape)
    """The JSON in `body`; the objects in its field `tools` are cached `ToolSchema`s.

    Raises `msgspec.MsgspecError` or `UnicodeDecodeError`, as decoding the whole body does.
    """
    try:
        return {
            name: _tools.read_all(bytes(raw)) if name == "tools" else _decode(raw)
            for name, raw in _fields(body).items()
        }
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _decode(body)


def cached_tools(tools: list[dict[str, Any]]) -> list[ToolSchema]:
    """Tools that were translated from another API's, with a cache of their texts in prompts."""
    return _tools.read_all(_encode(tools))


def guard_tools(guard: AbstractContextManager[object]) -> None:
    """Use the cache of tools under `guard`, a lock: several threads read bodies."""
    _tools.guard = guard


def label(param: str | None) -> str:
    """The name of a field in a message. Hermes Agent takes "max_tokens" for a full window."""
    return "The cap on output tokens" if param == "max_tokens" else f"'{param}'"


def _unreadable(text: str) -> ApiError:
    return invalid(None, text, code="invalid_json")


def without_halves(text: bytes) -> bytes:
    """JSON with U+FFFD for each escaped half of a surrogate pair."""
    return _ESCAPE.sub(_without_half, text)


def _in_utf8(body: bytes) -> bytes:
    """JSON that begins with a byte order mark, as programs on Windows write it, or is UTF-16 or
    UTF-32, in UTF-8 and without the mark; any other bytes as they are.
    """
    encoding = json.detect_encoding(body)
    if encoding == "utf-8":
        return body
    try:
        return body.decode(encoding).encode()
    except UnicodeDecodeError:
        return body


def _without_half(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def _refuse_almost_json(body: bytes) -> None:
    """Raise a clearer `ApiError` for NaN and infinities, which Python's decoder accepts."""
    try:
        lenient = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(lenient, dict):
        return
    for name, value in lenient.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid(name, f"{label(name)} must be a finite number.")
