"""Where a value ends that stands between tags, although it may hold such tags itself.

Owns the rule: a closing tag ends a value only if the format can go on there. A file that a model
writes may hold `</parameter>`; what follows it there is the rest of the file, and no tag of the
call. Must not know formats or values.
"""

from collections.abc import Sequence
from typing import Final

Path = tuple[str, ...]
"""Tags that end a value if they follow each other, with white space between them at most: the
closing tag, and what may come next.
"""

_END: Final = "</"
_MAX_SPACE: Final = 256
"""More white space than a format ever writes between two tags is text of the value."""


class ValueEnd:
    """Separates a value from the first of `paths` behind it, one character at a time.

    `found` is the path once it is complete. Until then `is_ended` says whether the value ends where
    the output ends: its closing tag was read, and nothing but the beginning of another end. Where
    another value has begun, the call breaks off.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self.first = frozenset(path[0][0] for path in paths)
        self._held = ""
        self.found: Path = ()

    @property
    def is_holding(self) -> bool:
        """Whether the text so far ends in what may become a path."""
        return bool(self._held)

    @property
    def is_ended(self) -> bool:
        return any(
            (num_tags := _num_tags(self._held, path)) > 0
            and (
                path[num_tags].startswith(_END) or self._held.rstrip().endswith(path[num_tags - 1])
            )
            for path in self._paths
        )

    def feed(self, char: str) -> str:
        """The text of the value that is certain now."""
        if not self._held and char not in self.first:
            return char
        held = self._held + char
        for start in range(len(held)):
            rest = held[start:]
            tags = [(_num_tags(rest, path), path) for path in self._paths]
            whole = next((path for num_tags, path in tags if num_tags == len(path)), None)
            if whole is not None:
                self.found, self._held = whole, ""
                return held[:start]
            if any(num_tags >= 0 for num_tags, _ in tags):
                self._held = rest
                return held[:start]
        self._held = ""
        return held


def _num_tags(text: str, path: Path) -> int:
    """How many tags of the path are whole in `text`, which is all of it or its beginning; else
    -1.
    """
    at = 0
    for num_tags, tag in enumerate(path):
        if num_tags:
            start = at
            while at < len(text) and text[at].isspace():
                at += 1
            if at - start > _MAX_SPACE:
                return -1
        if not text.startswith(tag, at):
            return num_tags if tag.startswith(text[at:]) else -1
        at += len(tag)
    return len(path) if at == len(text) else -1
