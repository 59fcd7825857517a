"""The digest under which the gateway keeps a model's text files.

Owns what both ends compute: the worker names its files by it, and the gateway checks what it gets.
It is a cryptographic hash, so that no worker can replace the files of another worker. Must not know
which files a model has.
"""

import struct
from collections.abc import Mapping
from hashlib import blake2b

from protocol.ids import ID_BYTES


def files_digest(contents: Mapping[str, bytes]) -> bytes:
    """BLAKE2b over names and contents in the order of names, each with its length before it. 32 MiB
    take 40 ms.
    """
    digest = blake2b(digest_size=ID_BYTES)
    for name in sorted(contents):
        for part in (name.encode(), contents[name]):
            digest.update(struct.pack("<Q", len(part)))
            digest.update(part)
    return digest.digest()
