"""Ids of calls in the Messages API, whose ids hold letters, digits, `_` and `-` only.

Owns the way to such an id and back. Models and providers number calls in other ways
(`functions.f:0`), and templates read these ids, so an id comes back as it was. Must not know
messages.
"""

import base64
import binascii
import re
from typing import Final

PREFIX: Final = "toolu_"
"""The prefix of ids in this API; the rest is the id that the model's template knows."""

_CODED: Final = "b64-"
"""Begins an id whose rest is base64 for URLs, without padding."""
_PLAIN: Final = re.compile(r"[0-9A-Za-z_-]+")


def to_client(call_id: str) -> str:
    """The id for the client."""
    if _PLAIN.fullmatch(call_id) and not call_id.startswith(_CODED):
        return PREFIX + call_id
    coded = base64.urlsafe_b64encode(call_id.encode("utf-8", "surrogatepass")).decode()
    return PREFIX + _CODED + coded.rstrip("=")


def from_client(given: object) -> str:
    """The id that `to_client` got; any other id is itself, and what is no text is none."""
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
