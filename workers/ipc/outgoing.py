"""A message of the engine and who it is for.

Owns that pair. Must not know sockets nor identities: a link is a number (`framing.py`).
"""

from typing import NamedTuple

from protocol.messages import FromWorker


class Outgoing(NamedTuple):
    """`link` is 0 for the supervisor, 1 and up for a gateway, `BROADCAST` for all gateways."""

    link: int
    message: FromWorker
