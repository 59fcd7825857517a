"""A form (multipart/form-data): where the values of its fields lie.

Owns which forms are read: those that every server reads in the same way. The gateway names and
prices the model that a form asks for, so a server must not find another field there. Must not know
what a field means.
"""

import re
from typing import Final

from gateway.api.errors import ApiError, invalid

_PARAMETER: Final = re.compile(r';[ \t]*([A-Za-z-]+)=(?:"([^"\\;]*)"|([^"\\;\s]*))[ \t]*')
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=?-]{1,70}")
_DISPOSITION: Final = re.compile(
    rb'form-data;[ \t]*name=(?:"([^"\\]*)"|([^"\\;\s]+))'
    rb'(?:;[ \t]*filename\*?=(?:"(?:[^"\\]|\\.)*"|[^"\\;\s]*)){0,2}[ \t]*'
)
_PLAIN: Final = frozenset({b"binary", b"8bit", b"7bit"})
_CHARSET: Final = re.compile(rb"(?i);[ \t]*charset[ \t]*=[ \t]*(?!\"?utf-8\"?[ \t]*(?:;|$))")
_CHARSET_FIELD: Final = b"_charset_"
"""The field that names the charset of the others."""
_MAX_HEAD_BYTES: Final = 4096
_MAX_PARTS: Final = 1000
_CODE: Final = "invalid_form"


def field_in(content_type: str, body: bytes, name: bytes) -> tuple[int, int] | None:
    """Where the value of the form's field `name` begins and ends; None if the form has no such
    field, or does not begin with its boundary. Raises `ApiError` 400 for a form that has the field
    twice, of which servers take the first or the last, for one that servers could take apart in
    different ways, and for endless ones.
    """
    mark = b"--" + _boundary(content_type)
    at = 2 if body.startswith(b"\r\n") else 0
    if not body.startswith(mark, at):
        return None
    found: tuple[int, int] | None = None
    for _ in range(_MAX_PARTS):
        at += len(mark)
        if body.startswith(b"--", at):
            if body.find(mark, at) >= 0:
                raise _unclear("goes on behind its end")
            return found
        head_end = body.find(b"\r\n\r\n", at, at + _MAX_HEAD_BYTES)
        after = body.find(mark, head_end) if head_end >= 0 else -1
        if after < 0 or not body.startswith(b"\r\n", at):
            raise _unclear("has a part without a head or an end")
        if not body.startswith(b"\r\n", after - 2) or after < head_end + 6:
            raise _unclear("has its boundary within a line")
        found_name = _name_in(body[at + 2 : head_end], after - head_end - 6)
        if found_name == _CHARSET_FIELD:
            raise _unclear("names a charset of its fields")
        if found_name == name:
            if found is not None:
                text = f"The form has the field '{name.decode()}' twice."
                raise invalid(name.decode(), text, code=_CODE)
            found = head_end + 4, after - 2
        at = after
    raise invalid(None, f"The form has over {_MAX_PARTS} parts.", code=_CODE)


def _boundary(content_type: str) -> bytes:
    """The boundary that a Content-Type names."""
    kind, _, _ = content_type.partition(";")
    rest = content_type[len(kind) :].rstrip()
    found: list[str] = []
    at = 0
    while match := _PARAMETER.match(rest, at):
        at = match.end()
        if match[1].lower() == "boundary":
            found.append(match[2] if match[2] is not None else match[3])
    if not found:
        raise invalid(None, "The form's Content-Type has no boundary.", code=_CODE)
    if rest[at:] not in {"", ";"} or len(found) > 1 or not _BOUNDARY.fullmatch(found[0]):
        raise _unclear("has a Content-Type with an unclear boundary")
    return found[0].encode("ascii")


def _name_in(head: bytes, num_bytes: int) -> bytes:
    """The name of a field, from the lines above its value of `num_bytes`."""
    names: list[bytes] = []
    for line in head.split(b"\r\n"):
        key, colon, value = line.partition(b":")
        if not colon or b"\n" in line or b"\r" in line or key.strip() != key:
            raise _unclear("has a part whose head cannot be read")
        if key.lower() == b"content-transfer-encoding" and value.strip().lower() not in _PLAIN:
            raise _unclear("has a part in another encoding")
        if key.lower() == b"content-encoding":
            raise _unclear("has a part with a Content-Encoding")
        if key.lower() == b"content-length" and value.strip() != b"%d" % num_bytes:
            raise _unclear("has a part whose Content-Length is not its length")
        if key.lower() == b"content-type" and _CHARSET.search(value):
            raise _unclear("has a part in another charset")
        if key.lower() == b"content-disposition":
            match = _DISPOSITION.fullmatch(value.strip(b" \t"))
            if match is None:
                raise _unclear("has a part whose name cannot be read")
            names.append(match[1] if match[1] is not None else match[2])
    if len(names) != 1:
        raise _unclear("has a part without a name, or with two")
    return names[0]


def _unclear(what: str) -> ApiError:
    text = f"The form {what}: servers could read it in different ways. Send a plain one."
    return invalid(None, text, code=_CODE)
