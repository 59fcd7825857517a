"""Where a value ends that stands between tags, although it may hold such tags itself.

Owns the rule: a closing tag ends a value only if the format can go on there. A file that a model
writes may hold `</parameter>`; what follows it there is the rest of the file, and no tag of the
call. It may hold a whole call as an example, too, whose end is that of the example. Must not know
formats or values.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

Path = tuple[str, ...]
"""Tags that end a value if they follow each other, with white space between them at most: the
closing tag, and what may come next.
"""

NAME: Final = ""
"""In the place of a tag, the name of a function."""


class Example(NamedTuple):
    """The tags that begin a call, one behind the other, and the one that ends it."""

    opening: Path
    closing: str


_MAX_NAME: Final = 64
_NOT_IN_NAMES: Final = frozenset("<>\n")
_END: Final = "</"
_MAX_SPACE: Final = 256
"""More white space than a format ever writes between two tags is text of the value."""


class ValueEnd:
    """Separates a value from the first of `paths` behind it, one character at a time.

    `found` is the path once it is complete. Until then `is_ended` says whether the value ends where
    the output ends: its closing tag was read, and nothing but the beginning of another end. Where
    another value has begun, the call breaks off.
    """

    def __init__(self, paths: Sequence[Path], example: Example | None = None) -> None:
        self._paths = paths
        self.first = frozenset(path[0][0] for path in paths)
        self._held = ""
        self.found: Path = ()
        self._example = example
        self._opening: tuple[Path, ...] = ()
        self._in_example: tuple[Path, ...] = ()
        if example is not None:
            self.first |= {example.opening[0][0]}
            self._opening = (example.opening,)
            self._in_example = (*paths, example.opening, (example.closing,))
        self._depth = 0
        self._may_end = False
        self._is_behind = False
        self._had_example = False

    @property
    def is_holding(self) -> bool:
        """Whether the text so far ends in what may become a path."""
        return bool(self._held)

    @property
    def is_ended(self) -> bool:
        if self._is_behind:  # the example was only begun, or it was none
            return self._may_end
        return not self._depth and any(
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
        if self._is_behind:
            if char.isspace() and len(self._held) < 4 * _MAX_SPACE:
                self._held += char
                return ""
            text = self._held.rstrip()
            rest = self._held[len(text) :] + char
            self._held, self._is_behind, self._had_example = "", False, True
            return text + "".join(map(self.feed, rest))
        held = self._held + char
        for start in range(len(held)):
            rest = held[start:]
            paths = self._in_example if self._depth else (*self._paths, *self._opening)
            tags = [(_num_tags(rest, path), path) for path in paths]
            whole = next((path for num_tags, path in tags if num_tags == len(path)), None)
            if whole is not None:
                return held[:start] + self._take(rest, whole)
            if any(num_tags >= 0 for num_tags, _ in tags):
                self._held = rest
                return held[:start]
        self._held = ""
        return held

    def _take(self, text: str, path: Path) -> str:
        """Take `text`, which is a whole path; returns what of it is text of the value. Behind the
        end of an example it is held until it is known whether the value goes on: where the output
        ends there, the value had ended, and the example never did.
        """
        self._held = ""
        example = self._example
        if example is not None and path == example.opening:
            if not self._depth:  # behind an example, an end may be that of the call behind it
                self._may_end = not self._had_example
            self._depth += 1
            return text
        if not self._depth or example is None:
            self.found = path
            return ""
        if path[-1] != example.closing:
            self._may_end = False  # of an example that never ends it would be the value's
            return text
        self._depth -= 1
        self._may_end = self._may_end and len(path) > 1
        if self._depth:
            return text
        self._held, self._is_behind = text, True
        return ""


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
        if tag == NAME:
            start = at
            while at < len(text) and text[at] not in _NOT_IN_NAMES:
                at += 1
            if at - start > _MAX_NAME or (at < len(text) and at == start):
                return -1
            continue
        if not text.startswith(tag, at):
            return num_tags if tag.startswith(text[at:]) else -1
        at += len(tag)
    return len(path) if at == len(text) else -1
