"""Ids of calls: those of the Messages API, which hold letters, digits, `_` and `-` only, and the
numbers with which Kimi's models count the calls of a conversation.

Owns the way to an id of that API and back. Models and providers number calls in other ways
(`functions.f:0`), and templates read these ids, so an id comes back as it was. Must not know
messages.
"""

import base64
import binascii
import re
from collections.abc import Collection
from typing import Final

PREFIX: Final = "toolu_"
"""The prefix of ids in this API; the rest is the id that the model's template knows."""

_CODED: Final = "b64-"
"""Begins an id whose rest is base64 for URLs, without padding."""
_NUMBERED: Final = re.compile(r"(.+):(\d{1,9})", re.DOTALL)
_PLAIN: Final = re.compile(r"[0-9A-Za-z_-]+")


def is_numbered(call_id: str) -> bool:
    """Whether the id of a call has the form `functions.name:3`."""
    return _NUMBERED.fullmatch(call_id) is not None


def numbered_on(call_id: str, taken: Collection[str]) -> str:
    """The numbered id if its number is above those in `taken`, else with the next number. Raises
    `ValueError` for an id without a number.
    """
    match = _NUMBERED.fullmatch(call_id)
    if match is None:
        raise ValueError(f"{call_id!r} has no number")
    numbers = (int(found[2]) for one in taken if (found := _NUMBERED.fullmatch(one)) is not None)
    return f"{match[1]}:{max(int(match[2]), max(numbers, default=-1) + 1)}"


def to_client(call_id: str) -> str:
    """The id for the client."""
    if _PLAIN.fullmatch(call_id) and not call_id.startswith(_CODED):
        return PREFIX + call_id
    coded = base64.urlsafe_b64encode(call_id.encode("utf-8", "surrogatepass")).decode()
    return PREFIX + _CODED + coded.rstrip("=")


def from_client(given: object) -> str:
    """The call's own id, from the id that `to_client` made. Any other id is returned as it is; a
    value that is not a text gives an empty id.
    """
    if not isinstance(given, str):
        return ""
    call_id = given.removeprefix(PREFIX)
    if call_id is given or not call_id.startswith(_CODED):
        return call_id
    coded = call_id.removeprefix(_CODED)
    try:
        data = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        return data.decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return call_id
