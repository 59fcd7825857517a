"""Short texts and their packed ids, bounded in bytes.

Owns what is forgotten: when it is full, the older half. No look-up changes it, so that hundreds of
them are one call of `map` over the dict's own `get`; what is still in use comes back. Must not know
where the texts come from.
"""

import sys
from collections.abc import Mapping
from itertools import islice
from typing import Final

MAX_WORD_CHARS: Final = 64
_ENTRY_BYTES: Final = 100


class PackedWords:
    """text -> ids. Whoever looks up takes `known`, which may be another dict the next time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self.known: dict[str, bytes] = {}

    def add(self, words: Mapping[str, bytes]) -> None:
        """Keep those that are short enough."""
        for word, packed in words.items():
            if word not in self.known and len(word) <= MAX_WORD_CHARS:
                self.known[word] = packed
                self.num_bytes += _num_bytes(word, packed)
        while self.num_bytes > self._max_bytes:
            young = islice(self.known.items(), (len(self.known) + 1) // 2, None)
            self.known = dict(young)
            self.num_bytes = sum(_num_bytes(*entry) for entry in self.known.items())


def _num_bytes(word: str, packed: bytes) -> int:
    return _ENTRY_BYTES + sys.getsizeof(word) + sys.getsizeof(packed)
