"""A named body: a JSON body or form that is passed on and names a model.

Owns how that name is found and replaced. Everything else passes unchanged. Must not know paths, or
what the other fields mean.
"""

from typing import Any, Final

import msgspec

from gateway.api.errors import ApiError, invalid
from gateway.api.form import field_in
from gateway.api.json_body import decode_object

_MAX_DIGITS: Final = 9

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
        """The same body with other fields."""
        return msgspec.structs.replace(self, raw=raw)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a JSON body; of a form only `n`, if it is a number."""
        if self.raw is not None:
            return self.raw
        found = field_in(self.content_type, self.body, b"n")
        text = b"" if found is None else self.body[found[0] : found[1]].strip()
        return {"n": int(text)} if text.isdigit() and len(text) <= _MAX_DIGITS else {}

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
    found = field_in(content_type, body, b"model")
    if found is None:
        return None
    start, end = found
    return NamedBody(content_type, body, _decoded(body[start:end]), None, start, end)


def _decoded(name: bytes) -> str:
    try:
        return name.decode().strip()
    except UnicodeDecodeError as error:
        raise invalid("model", "'model' is not valid UTF-8.") from error


def missing_model(path: str) -> ApiError:
    """The error for a request in which neither the body nor the path names a model."""
    text = f"There is nothing at {path} but for models that serve it: name one in 'model'."
    return ApiError(404, text, code="path_not_served", param="model")
