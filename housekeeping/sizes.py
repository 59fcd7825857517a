"""How numbers of bytes are written for people: in logs, tables and refusals.

Owns the units and the digits. Must not know what the bytes are of.
"""

from typing import Final

_GIB: Final = 2**30
_MIB: Final = 2**20
_KIB: Final = 2**10


def bytes_text(count: int) -> str:
    """A size in words, such as 1.25 GiB, 3.1 MiB, 144 KiB or 512 B."""
    if 0 < count < _KIB:
        return f"{count} B"
    if count < _MIB:
        return f"{count / _KIB:.0f} KiB"
    if count < _GIB:
        return f"{count / _MIB:.1f} MiB"
    return f"{count / _GIB:.2f} GiB"
