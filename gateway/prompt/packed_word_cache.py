"""Short texts and their packed ids, bounded in bytes.

Owns what is forgotten: when it is full, what came first. No look-up changes anything, so that
hundreds of them are one call of `map` over the dict's own `get`; what is still in use comes back.
Must not know where the texts come from.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Final

MAX_WORD_CHARS: Final = 64
_STEP: Final = 256
"""What is forgotten at once: 0.1 ms."""
_ENTRY_BYTES: Final = 180
"""Two objects and their place in a dict."""


class PackedWords:
    """text -> ids, in `known`, for whoever looks up."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self.known: Final[dict[str, bytes]] = {}

    def add(self, words: Mapping[str, bytes]) -> None:
        """Keep those that are short enough."""
        for word, packed in words.items():
            if word not in self.known and len(word) <= MAX_WORD_CHARS:
                self.known[word] = packed
                self.num_bytes += _num_bytes(word, packed)
        while self.num_bytes > self._max_bytes:
            for word in list(islice(self.known, _STEP)):
                self.num_bytes -= _num_bytes(word, self.known.pop(word))


def text_bytes(text: str) -> int:
    """What the letters of `text` take at most. By its value alone: `sys.getsizeof` says more once
    somebody has asked for the text in UTF-8.
    """
    return len(text) if text.isascii() else 4 * len(text)


def _num_bytes(word: str, packed: bytes) -> int:
    return _ENTRY_BYTES + text_bytes(word) + len(packed)
