"""A named body: a JSON body or form that is passed on and names a model.

Owns how that name is found and replaced. Everything else passes unchanged. Must not know paths, or
what the other fields mean.
"""

import re
from typing import Any, Final

import msgspec

from gateway.api.errors import ApiError, invalid
from gateway.api.request import decode_object

_BOUNDARY: Final = re.compile(r'boundary="?([^";,]{1,200})"?')
_MODEL_PART: Final = re.compile(
    rb'(?i)content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;|\r\n|$)'
)
_MAX_HEAD_BYTES: Final = 4096

_encode = msgspec.json.Encoder().encode


class NamedBody(msgspec.Struct, frozen=True):
    """`raw` is the object of a JSON body, else None; then the name of the model is the bytes from
    `start` to `end`.
    """

    content_type: str
    body: bytes
    model: str
    raw: dict[str, Any] | None = None
    start: int = 0
    end: int = 0

    def with_fields(self, raw: dict[str, Any]) -> "NamedBody":
        """The same with other fields."""
        return msgspec.structs.replace(self, raw=raw)

    def renamed(self, model: str) -> bytes:
        """The body with `model` as the model's name."""
        if self.raw is None:
            return self.body[: self.start] + model.encode() + self.body[self.end :]
        return _encode({**self.raw, "model": model})


def named_body(content_type: str, body: bytes) -> NamedBody | None:
    """The body, or None if it names no model. Raises `ApiError` 400 for what cannot be read."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _named_form(content_type, body)
    if kind not in {"", "application/json"} and not kind.endswith("+json"):
        return None
    if not body.strip():
        return None
    raw = decode_object(body)
    model = raw.get("model")
    if not isinstance(model, str) or not model:
        return None
    return NamedBody("application/json", body, model, raw)


def _named_form(content_type: str, body: bytes) -> NamedBody | None:
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise invalid(None, "The form's Content-Type has no boundary.", code="invalid_form")
    mark = b"--" + boundary[1].encode("latin-1")
    at = body.find(mark)
    while at >= 0:
        head_at = at + len(mark)
        head_end = body.find(b"\r\n\r\n", head_at, head_at + _MAX_HEAD_BYTES)
        after = body.find(b"\r\n" + mark, head_end) if head_end >= 0 else -1
        if after < 0:
            return None
        if _MODEL_PART.search(body, head_at, head_end + 2):
            start = head_end + 4
            name = body[start:after]
            return NamedBody(content_type, body, _decoded(name), None, start, after)
        at = after + 2
    return None


def _decoded(name: bytes) -> str:
    try:
        return name.decode().strip()
    except UnicodeDecodeError as error:
        raise invalid("model", "'model' is not valid UTF-8.") from error


def missing_model(path: str) -> ApiError:
    """The error for a request in which neither the body nor the path names a model."""
    text = f"There is nothing at {path} but for models that serve it: name one in 'model'."
    return ApiError(404, text, code="path_not_served", param="model")
