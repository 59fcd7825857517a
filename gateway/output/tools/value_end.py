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
"""Stands in a path for the name of a function, which another tag follows."""


class ExampleCall(NamedTuple):
    """The tags that begin a call, one behind the other, and the one that ends it."""

    opening: Path
    closing: str


_MAX_NAME: Final = 64
_NOT_IN_NAMES: Final = frozenset("<>\n")
_END: Final = "</"
_MAX_SPACE: Final = 256
"""More white space than a format ever writes between two tags is text of the value."""


class _Begun:
    """What may become a path: how far the text from `start` on has come in `paths`, which are the
    same so far. It takes one character at a time, so that the work per character is bounded however
    much is held.
    """

    __slots__ = ("_num_read", "_num_space", "num_tags", "paths", "start")

    def __init__(self, start: int, paths: Sequence[Path], num_tags: int) -> None:
        self.start = start
        self.paths = paths
        self.num_tags = num_tags
        self._num_read = 0
        self._num_space = 0

    @property
    def is_whole(self) -> bool:
        return self.num_tags == len(self.paths[0])

    @property
    def is_between(self) -> bool:
        """Whether no character of the next tag was read yet."""
        return not self._num_read

    def take(self, char: str) -> "list[_Begun]":
        """The candidates that are left after one more character. Where one tag is the beginning of
        another, both are.
        """
        at = self.num_tags
        if at and not self._num_read and char.isspace():
            self._num_space += 1
            return [self] if self._num_space <= _MAX_SPACE else []
        if self.paths[0][at] == NAME:
            return self._take_in_name(char)
        read = self._num_read
        paths = [path for path in self.paths if path[at][read : read + 1] == char]
        read += 1
        ended = [path for path in paths if len(path[at]) == read]
        begun = self._behind(ended) if ended else []
        if len(ended) < len(paths):
            self.paths = [path for path in paths if len(path[at]) > read] if ended else paths
            self._num_read = read
            begun.append(self)
        return begun

    def _take_in_name(self, char: str) -> "list[_Begun]":
        if char not in _NOT_IN_NAMES:
            self._num_read += 1
            return [self] if self._num_read <= _MAX_NAME else []
        if not self._num_read:
            return []
        return [one for behind in self._behind(self.paths) for one in behind.take(char)]

    def _behind(self, ended: Sequence[Path]) -> "list[_Begun]":
        """The candidates behind the tag that was read last. A path that ends with this tag comes
        first.
        """
        at = self.num_tags + 1
        whole = [path for path in ended if len(path) == at]
        named = [path for path in ended if path[at : at + 1] == (NAME,)]
        tagged = [path for path in ended if len(path) > at and path[at] != NAME]
        return [_Begun(self.start, paths, at) for paths in (whole, named, tagged) if paths]


class ValueEnd:
    """Separates a value from the first of `paths` behind it, one character at a time.

    `found` is the path once it is complete. Until then `is_ended` says whether the value ends where
    the output ends: its closing tag was read, and nothing but the beginning of another end. Where
    another value has begun, the call breaks off.
    """

    def __init__(self, paths: Sequence[Path], example: ExampleCall | None = None) -> None:
        self._paths = paths
        self.first = frozenset(path[0][0] for path in paths)
        self._held = ""
        self._num_before = 0  # characters before what is held
        self._begun: list[_Begun] = []
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
        if self._is_behind:  # then the path ended the value, not an example
            return self._may_end
        return not self._depth and any(
            one.is_between or path[one.num_tags].startswith(_END)
            for one in self._begun
            if one.num_tags and one.start == self._num_before
            for path in one.paths
            if path not in self._opening
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
        begun = [after for one in self._begun for after in one.take(char)]
        if char in self.first:
            paths = self._in_example if self._depth else (*self._paths, *self._opening)
            start = self._num_before + len(held) - 1
            begun += _Begun(start, paths, 0).take(char)
        first = begun[0].start if begun else self._num_before + len(held)
        text = held[: first - self._num_before]
        self._held, self._num_before = held[len(text) :], first
        for one in begun:
            if one.is_whole and one.start == first:
                return text + self._take(self._held, one.paths[0])
        self._begun = [one for one in begun if not one.is_whole]
        return text

    def _take(self, text: str, path: Path) -> str:
        """Take `text`, which is a whole path; returns the part of it that belongs to the value.
        After the end of an example the text is held until it is known whether the value goes on: if
        the output ends there, the path ended the value and not the example.
        """
        self._held, self._begun = "", []
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
