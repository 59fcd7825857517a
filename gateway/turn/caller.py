"""The caller: the sender of a request.

Owns what a turn knows of the sender: the rights of its key and the conversation that it names. Must
not know secrets: a key is known by its configured name only.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from config import KeyConfig
from gateway.spending import Charge
from gateway.telemetry import RequestTrace

Headers = tuple[tuple[bytes, bytes], ...]
NOTHING_SENT: Final[Mapping[bytes, bytes]] = {}


class Caller(msgspec.Struct, frozen=True):
    """The sender of one request. `key` is the configured name of its API key ("" without keys).
    `private_cache` keeps its prefixes from other keys; `may_store`: its responses may be stored.
    `session` comes from the headers; `headers` are all headers of the request, unchanged, `sent`
    has the last value of each. `charge` is what the request counts against rate limits, None
    without limits. `trace` is what operators see of the request.
    """

    key: str = ""
    weight: float = 1.0
    private_cache: bool = False
    may_store: bool = True
    cloud: bool = True
    admin: bool = False
    session: str | None = None
    headers: Headers = ()
    sent: Mapping[bytes, bytes] = {}
    charge: Charge | None = None
    trace: RequestTrace = msgspec.field(default_factory=RequestTrace)

    def __repr__(self) -> str:
        # Without the headers, which hold the secret.
        return f"<Caller key={self.key!r} session={self.session!r} admin={self.admin}>"

    @staticmethod
    def of_key(
        key: KeyConfig,
        session: str | None = None,
        headers: Headers = (),
        sent: Mapping[bytes, bytes] = NOTHING_SENT,
    ) -> "Caller":
        """The caller that holds `key`."""
        return Caller(
            key=key.name,
            weight=key.weight,
            private_cache=key.cache == "private",
            may_store=key.store == "allow",
            cloud=key.cloud == "allow",
            admin=key.admin,
            session=session,
            headers=headers,
            sent=sent,
        )
