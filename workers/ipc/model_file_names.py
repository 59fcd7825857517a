"""The text files of a model that a gateway needs, and their one digest.

Owns the names, the bound and the digest. Must not read files.
"""

import struct
from collections.abc import Mapping
from typing import Final

import xxhash

MODEL_FILES: Final = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)

MAX_MODEL_FILES_BYTES: Final = 32 * 2**20


def files_digest(files: Mapping[str, bytes]) -> bytes:
    """xxh3_128 over names and contents in the order of names, each with its length before it."""
    digest = xxhash.xxh3_128()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            digest.update(struct.pack("<Q", len(part)))
            digest.update(part)
    return digest.digest()
