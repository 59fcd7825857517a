"""Identifiers on the wire.

Owns their types and their length. Must not draw random bytes: callers do.
"""

from typing import Final, NewType

RequestId = NewType("RequestId", bytes)
"""16 random bytes, drawn by the gateway, unique for one generated sequence."""

WorkerId = NewType("WorkerId", bytes)
"""16 random bytes, drawn at each supervisor start: the ZeroMQ routing identity."""

BlockDigest = NewType("BlockDigest", bytes)
"""16 bytes: the chained hash of a block of tokens and of all blocks before it."""

ID_BYTES: Final = 16
