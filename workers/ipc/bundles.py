"""What an engine says at one moment, in as few frames as possible.

Owns the bound on a bundle. Must not know what a frame says.
"""

from typing import Final

from protocol.messages import Bundle
from protocol.wire import encode

MAX_BUNDLED_BYTES: Final = 2**18
"""A step of 256 tokens has 13 KB. A larger frame gains nothing by company, and costs a copy."""


def bundled(frames: list[bytes]) -> list[bytes]:
    """The same messages in the same order; a frame that is alone stays as it is."""
    if len(frames) < 2:
        return frames
    if sum(map(len, frames)) <= MAX_BUNDLED_BYTES:
        return [_joined(frames)]
    packed: list[bytes] = []
    together: list[bytes] = []
    num_bytes = 0
    for frame in frames:
        if together and num_bytes + len(frame) > MAX_BUNDLED_BYTES:
            packed.append(_joined(together))
            together, num_bytes = [], 0
        together.append(frame)
        num_bytes += len(frame)
    packed.append(_joined(together))
    return packed


def _joined(frames: list[bytes]) -> bytes:
    return frames[0] if len(frames) == 1 else encode(Bundle(tuple(frames)))
