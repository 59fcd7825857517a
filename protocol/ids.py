"""The names of things on the wire.

Owns the distinct types of identifiers and how fresh ones are shaped.
Must not know who draws the random bytes: chance is the caller's argument.
"""

from typing import Final, NewType

RequestId = NewType("RequestId", bytes)
"""16 random bytes, drawn by the gateway, unique for one generated sequence."""

WorkerId = NewType("WorkerId", bytes)
"""16 random bytes, drawn at each supervisor start: the ZeroMQ routing identity."""

BlockDigest = NewType("BlockDigest", bytes)
"""16 bytes: the chained hash of a block of tokens and of all blocks before it."""

TokenId = int

ID_BYTES: Final = 16
