"""What messages in both directions are made of: types of fields with their bounds.

Must not know any message.
"""

from typing import Annotated, Final

import msgspec

Id16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Finite = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
"""A number that is neither NaN nor infinite: one such number would make every comparison in
routing wrong.
"""
PackedTokens = Annotated[bytes, msgspec.Meta(max_length=64 * 2**20)]
PackedDigests = bytes
"""Block digests of 16 bytes each, one after another."""

RELAY_CHUNK_BYTES: Final = 2**16
RELAY_WINDOW_BYTES: Final = 2**17
"""How far the sender of a relayed body may be ahead of the bytes that the receiver has taken. With
320 requests of a worker at most 40 MiB are in flight; its supervisor buffers 64 MiB for the engine.
"""
Piece = Annotated[bytes, msgspec.Meta(max_length=RELAY_CHUNK_BYTES)]
Header = tuple[
    Annotated[str, msgspec.Meta(max_length=1024)], Annotated[str, msgspec.Meta(max_length=2**14)]
]
Headers = Annotated[tuple[Header, ...], msgspec.Meta(max_length=128)]


class WireMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Encoded as an array whose first element is the tag."""
