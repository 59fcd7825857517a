"""Tags that may be cut anywhere in a stream, and the white space around them.

Owns how much of the end of a text must be held back. Must not know which tags there are.
"""

from collections.abc import Iterable, Sequence
from typing import Final

MAX_SPACE: Final = 256
"""Longer white space is text, so that little is held back."""


def tag_overlap(text: str, tag: str) -> int:
    """How many of the last characters of `text` could be the start of `tag`."""
    start = text.find(tag[0], max(0, len(text) - len(tag) + 1))
    while start >= 0 and not tag.startswith(text[start:]):
        start = text.find(tag[0], start + 1)
    return len(text) - start if start >= 0 else 0


def find_first(text: str, tags: Iterable[str], start: int = 0) -> tuple[int, str]:
    """Where the first of the `tags` in `text` is from `start` on, and which one; (-1, "") for
    none.
    """
    found = [(at, tag) for tag in tags if (at := text.find(tag, start)) >= 0]
    return min(found, default=(-1, ""))


def without_end_space(text: str) -> str:
    """`text` without the white space at its end. Full multiples of `MAX_SPACE` are text, so that
    every split of a stream emits the same.
    """
    body = text.rstrip()
    space = len(text) - len(body)
    return text[: len(body) + space - space % MAX_SPACE] if space else text


class TagScan:
    """Separates text from the first tag behind it, one character at a time. Several `tags` may
    begin alike; the first to be complete wins.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tags
        self._first = frozenset(tag[0] for tag in tags)
        self._held = ""
        self.found = ""

    @property
    def rest(self) -> str:
        """What is held, which is text if nothing follows."""
        return self._held

    def feed(self, char: str) -> str:
        """The text that is certain now; `found` is the tag once it is complete."""
        if not self._held and char not in self._first:
            return char
        held = self._held + char
        start = 0
        while start < len(held):
            rest = held[start:]
            if rest in self._tags:
                self.found, self._held = rest, ""
                return held[:start]
            if any(tag.startswith(rest) for tag in self._tags):
                break
            start += 1
        self._held = held[start:]
        return held[:start]
