"""Distinguishes a template's own control tokens from text that only looks like them.

Owns the mark: a template is compiled with U+FDD0 (a noncharacter, which no text should contain) in
front of every control token that it spells. So in its output a marked token is the template's; an
unmarked one came from a message, a tool description or a name, and is plain text. No text can forge
a turn, wherever a template puts users' strings. A prompt is passed on in segments: the first is
text, each of the others begins with a control token of the template. Must not know Jinja or how
text becomes ids.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from gateway.api import ToolSchema

MARK: Final = "\ufdd0"

END_SEGMENTS: Final = 8
"""How many segments are the end of a prompt: each begins with a control token, and tags that open
an answer are made of up to four.
"""

_REPLACEMENT: Final = "\ufffd"
_ARRAYS: Final = (list, tuple)


class PromptPiece(NamedTuple):
    """A stretch of a rendered prompt: a control token, or text without any."""

    text: str
    is_control: bool


class RenderedPrompt(NamedTuple):
    """A rendered prompt: its text, and its pieces if some text only looks like control tokens.

    `pieces` is None if every control token in `text` is the template's: then the whole text may be
    encoded at once.
    """

    text: str
    pieces: tuple[PromptPiece, ...] | None


class ControlTokens:
    """The control tokens (special tokens) of one tokenizer, by their text."""

    def __init__(self, tokens: Iterable[str]) -> None:
        # Marking a word or white space in a template's source would break its code.
        usable = {token for token in tokens if token.strip() and not token.isidentifier()}
        self.texts: Final = frozenset(usable)
        longest_first = sorted(usable, key=lambda token: (-len(token), token))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def mark(self, text: str) -> str:
        """`text` (a template's source, or a token given to it) with its control tokens marked."""
        return self._pattern.sub(lambda match: MARK + match[0], text)

    def break_up(self, given: dict[str, Any]) -> dict[str, Any]:
        """`given` (plain JSON) with a mark inside every control token of its strings.

        For templates that build their tokens from parts, so that those cannot be marked.
        """

        def broken(match: re.Match[str]) -> str:
            return match[0][0] + MARK + match[0][1:]

        return _map_values(given, lambda text: self._pattern.sub(broken, text))

    def found_in(self, text: str) -> bool:
        """Whether `text` spells a control token."""
        return self._pattern.search(text) is not None

    def tokens_of(self, segments: Iterable[str]) -> list[str]:
        """The control token that each segment begins with; empty where there is none."""
        return [match[0] if match else "" for match in map(self._pattern.match, segments)]

    def split_broken(self, rendered: str) -> list[str]:
        """The segments of a prompt whose template was given broken strings: a token without a mark
        inside is the template's.
        """
        starts = [match.start() for match in self._pattern.finditer(rendered)]
        bounds = zip([0, *starts], [*starts, len(rendered)], strict=True)
        return [rendered[start:end].replace(MARK, "") for start, end in bounds]

    def mend(self, segments: list[str]) -> list[str]:
        """The same prompt, cut only in front of control tokens: a template may have changed what
        stood behind a mark.
        """
        mended = segments[:1]
        for segment, token in zip(segments[1:], self.tokens_of(segments[1:]), strict=True):
            if token:
                mended.append(segment)
            else:
                mended[-1] += segment
        return mended

    def read(self, segments: list[str]) -> RenderedPrompt:
        """The whole prompt; a token that does not begin a segment is text."""
        first, *rest = self.mend(segments)
        forged = self.found_in(first)
        pieces = [PromptPiece(first, is_control=False)]
        for segment, token in zip(rest, self.tokens_of(rest), strict=True):
            end = len(token)
            pieces.append(PromptPiece(segment[:end], is_control=True))
            pieces.append(PromptPiece(segment[end:], is_control=False))
            forged = forged or self._pattern.search(segment, end) is not None
        text = "".join(piece.text for piece in pieces)
        return RenderedPrompt(
            text, tuple(piece for piece in pieces if piece.text) if forged else None
        )


def without_mark(given: dict[str, Any]) -> dict[str, Any]:
    """`given` (plain JSON) with marks replaced by U+FFFD, so that clients cannot send one. The keys
    of `given` itself are ours.
    """
    if not _has_mark(given):
        return given
    return _map_values(given, _replaced)


def tools_without_mark(tools: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools with marks replaced by U+FFFD, in keys too: all keys of a tool are the client's."""
    return [_map_strings(tool, _replaced) if _has_mark(tool) else tool for tool in tools]  # type: ignore[misc]


def _has_mark(value: object) -> bool:
    if isinstance(value, ToolSchema):
        return value.holds(MARK)
    if isinstance(value, dict):
        # Without a call per string: a conversation has hundreds, all checked in every turn.
        return _any_has_mark(value) or _any_has_mark(value.values())
    if isinstance(value, _ARRAYS):
        return _any_has_mark(value)
    return isinstance(value, str) and MARK in value


def _any_has_mark(values: Iterable[object]) -> bool:
    return any(MARK in value if type(value) is str else _has_mark(value) for value in values)


def _replaced(text: str) -> str:
    return text.replace(MARK, _REPLACEMENT)


def _map_values(given: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    return {key: _map_strings(value, change) for key, value in given.items()}


def _map_strings(value: object, change: Callable[[str], str]) -> object:
    """`value` (plain JSON) with `change` applied to every string, keys of objects too."""
    match value:
        case str():
            return change(value)
        case dict():
            return {change(key): _map_strings(item, change) for key, item in value.items()}
        case list() | tuple():
            return [_map_strings(item, change) for item in value]
        case _:
            return value
