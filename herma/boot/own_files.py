"""Whether a file is still as Herma wrote it: its first line has a digest of the rest.

Owns that line. Must not read or write files.
"""

import hashlib
from typing import Final

_MARK: Final = "# Written by herma; edited by hand it is not overwritten. Digest: "


def with_digest(text: str) -> str:
    """The text under its first line, which is a comment wherever `#` begins one."""
    return f"{_MARK}{_digest(text)}\n{text}"


def is_edited(found: str, text: str) -> bool:
    """Whether somebody else has changed the file whose text is `found`. A file of an older version
    of Herma has no first line with a digest; it counts as unchanged only if it is the same as
    `text`, which is to be written.
    """
    first, _, rest = found.partition("\n")
    return first != _MARK + _digest(rest) and found != text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
