"""Who asks.

Owns what the HTTP edge has learnt about the sender of a request: its key's rights and the
conversation it names. Must not know secrets: keys are known by their configured name only.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from config import KeyConfig
from gateway.api import MAX_SESSION_CHARS

Headers = tuple[tuple[bytes, bytes], ...]

SESSION_HEADERS: Final = (
    b"x-session-id",
    b"x-session-affinity",
    b"session-id",
    b"thread-id",
    b"x-client-request-id",
    b"x-hermes-session-id",
    b"x-hermes-affinity-key",
    b"x-litellm-session-id",
)
"""Headers by which clients name a conversation, most telling first."""
_SESSION_HEADERS: Final = frozenset(SESSION_HEADERS)


class Caller(msgspec.Struct, frozen=True):
    """The sender of one request. `key` is the configured name of its API key ("" without keys);
    `private_cache` keeps its prefixes from other keys; `session` is from the headers.
    `headers` are all that it sent, as they came.
    """

    key: str = ""
    weight: float = 1.0
    private_cache: bool = False
    cloud: bool = True
    admin: bool = False
    session: str | None = None
    headers: Headers = ()

    def __repr__(self) -> str:
        # Its headers hold the secret.
        return f"<Caller key={self.key!r} session={self.session!r} admin={self.admin}>"

    @staticmethod
    def of_key(key: KeyConfig, session: str | None = None, headers: Headers = ()) -> "Caller":
        """The caller that holds `key`."""
        return Caller(
            key=key.name,
            weight=key.weight,
            private_cache=key.cache == "private",
            cloud=key.cloud == "allow",
            admin=key.admin,
            session=session,
            headers=headers,
        )


def session_of_headers(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The conversation that the ASGI `headers` (lower-case names) name, if any."""
    sent = dict(headers)
    if _SESSION_HEADERS.isdisjoint(sent):
        return None
    found = {name: value for name, value in headers if name in _SESSION_HEADERS and value}
    for name in SESSION_HEADERS:
        if name in found:
            return found[name].decode("latin-1")[:MAX_SESSION_CHARS]
    return None
