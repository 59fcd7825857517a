"""The tags around the values of a call that are written one by one, in llguidance's Lark.

Owns how a text between tags begins and ends, so that the reader of the format takes it back letter
by letter. Must not know schemas.
"""

import json
import re
from typing import Final, NamedTuple, Protocol

from gateway.output.tools import kimi3

_ANY_NAME: Final = "/[A-Za-z0-9_.-]+/"
_UNQUOTED: Final = r"[^<&\n]*"
"""Texts that need no quotes where a format has some."""


class ValueTags(Protocol):
    """How a format writes a parameter. With `is_typed` a tag says the type of each value."""

    def __hash__(self) -> int: ...

    @property
    def end(self) -> str:
        """All that is behind a value which is JSON."""
        ...

    @property
    def is_typed(self) -> bool: ...

    def key(self, name: str, kind: str) -> str:
        """All that is before a value of this type."""
        ...

    def any_key(self) -> str:
        """All that is before a text of a parameter with any name."""
        ...

    def whole(self, arguments: str) -> str:
        """All arguments as the JSON object of this rule; empty if the format has no such form."""
        ...

    def literal(self, text: str) -> str:
        """Exactly this text and its end; empty if it cannot be written."""
        ...

    def text(self, rule: str, regex: str) -> list[str]:
        """The lines of a rule of texts, with their ends, that the regular expression matches."""
        ...


class TextTags(NamedTuple):
    """Tags that are text: before a name, between name and value, and behind the value. For the
    reader a value ends where `close` is followed by one of `others`.
    """

    before: str
    named: str
    closing: str
    close: str
    others: tuple[str, ...]
    is_typed: bool = False

    @property
    def end(self) -> str:
        """See `ValueTags`."""
        return quoted(self.closing)

    def key(self, name: str, _kind: str) -> str:
        """See `ValueTags`."""
        return quoted(f"{self.before}{name}{self.named}")

    def any_key(self) -> str:
        """See `ValueTags`."""
        return f"{quoted(self.before)} {_ANY_NAME} {quoted(self.named)}"

    def whole(self, _arguments: str) -> str:
        """See `ValueTags`."""
        return ""

    def literal(self, text: str) -> str:
        """See `ValueTags`."""
        whole = text + self.closing
        return "" if re.search(self._earlier, whole) else quoted(whole)

    def text(self, rule: str, regex: str) -> list[str]:
        """See `ValueTags`. A text ends at the first end, even if `regex` would match beyond it."""
        return [f"{rule}[lazy]: /({regex}){literally(self.closing)}/ & {_without(self._earlier)}"]

    @property
    def _earlier(self) -> str:
        """The regular expression of what occurs in a text with its end if the text itself holds an
        end.
        """
        others = "|".join(map(literally, self.others))
        return rf"{literally(self.closing)}(.|\n)|{literally(self.close)}\s*({others})"


class TokenTags(NamedTuple):
    """Tags that are tokens, in Lark: a text between them may hold all but the regular expression
    `never`, which the reader could take for the end.
    """

    before: str
    named: str
    end: str
    never: str
    is_typed: bool = False

    def key(self, name: str, _kind: str) -> str:
        """See `ValueTags`."""
        return f"{self.before} {quoted(name)} {self.named}"

    def any_key(self) -> str:
        """See `ValueTags`."""
        return f"{self.before} {_ANY_NAME} {self.named}"

    def whole(self, _arguments: str) -> str:
        """See `ValueTags`."""
        return ""

    def literal(self, text: str) -> str:
        """See `ValueTags`."""
        return _literal(text, self.end, self.never)

    def text(self, rule: str, regex: str) -> list[str]:
        """See `ValueTags`."""
        return _before_token(rule, f"/({regex})/", self.end, self.never)


class TypedTags(NamedTuple):
    """Tags of three tokens, with the name of a parameter and the type of its value as attributes;
    all arguments may be one JSON object (Kimi K3).
    """

    opening: str
    closing: str
    sep: str
    never: str
    is_typed: bool = True

    @property
    def end(self) -> str:
        """See `ValueTags`."""
        return f'{self.closing} "argument" {self.sep}'

    def key(self, name: str, kind: str) -> str:
        """See `ValueTags`."""
        attributes = f'argument key="{kimi3.escaped(name)}" type="{kind}"'
        return f"{self.opening} {quoted(attributes)} {self.sep}"

    def any_key(self) -> str:
        """See `ValueTags`."""
        before, after = quoted('argument key="'), quoted('" type="string"')
        return f"{self.opening} {before} {_ANY_NAME} {after} {self.sep}"

    def whole(self, arguments: str) -> str:
        """See `ValueTags`."""
        words = quoted('json type="object"')
        begin = f"{self.opening} {words} {self.sep}"
        return f'{begin} {arguments} {self.closing} "json" {self.sep}'

    def literal(self, text: str) -> str:
        """See `ValueTags`."""
        return _literal(text, self.end, self.never)

    def text(self, rule: str, regex: str) -> list[str]:
        """See `ValueTags`."""
        return _before_token(rule, f"/({regex})/", self.end, self.never)


class QuotedTags(NamedTuple):
    """Tags around values of which those with markup or several lines stand in quotes (MiniCPM5).
    `before`, `opening` and `end` are Lark, `close` is the text of `end`, which may be a token.
    """

    before: str
    named: str
    opening: str
    closing: str
    end: str
    close: str
    is_typed: bool = False

    def key(self, name: str, _kind: str) -> str:
        """See `ValueTags`."""
        return f"{self.before} {quoted(name + self.named)}"

    def any_key(self) -> str:
        """See `ValueTags`."""
        return f"{self.before} {_ANY_NAME} {quoted(self.named)}"

    def whole(self, _arguments: str) -> str:
        """See `ValueTags`."""
        return ""

    def literal(self, text: str) -> str:
        """See `ValueTags`."""
        if re.fullmatch(_UNQUOTED, text):
            return f"{quoted(text)} {self.end}"
        if self.closing in text:
            return ""
        return f"{self.opening} {quoted(text + self.closing)} {self.end}"

    def text(self, rule: str, regex: str) -> list[str]:
        """See `ValueTags`."""
        plain, long = f"{rule.upper()}_P", f"{rule}_q"
        closing, close = literally(self.closing), literally(self.close)
        lines = [
            f"{rule}: {plain} {self.end} | {self.opening} {long}",
            f"{plain}: /({regex})/ & /{_UNQUOTED}/",
        ]
        if self.end == quoted(self.close):
            earlier = _without(rf"{closing}\s*{close}(.|\n)")
            return [*lines, f"{long}[lazy]: /({regex}){closing}{close}/ & {earlier}"]
        return lines + _before_token(
            long, f"/({regex}){closing}/", self.end, rf"{closing}\s*{close}"
        )


def _literal(text: str, end: str, never: str) -> str:
    return "" if re.search(never, text) else f"{quoted(text)} {end}"


def _before_token(rule: str, regex: str, end: str, never: str) -> list[str]:
    """The lines of a rule of texts behind which a token stands."""
    text = rule.upper()
    return [f"{rule}: {text} {end}", f"{text}: {regex} & {_without(never)}"]


def _without(regex: str) -> str:
    """All texts in which the regular expression matches nothing."""
    return rf"~/(.|\n)*({slashed(regex)})(.|\n)*/"


def literally(text: str) -> str:
    """The regular expression of exactly this text, between slashes."""
    return slashed("".join("\\n" if char == "\n" else re.escape(char) for char in text))


def slashed(pattern: str) -> str:
    """A regular expression as it is written between slashes in the grammar."""
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\/", pattern).replace("\n", "\\n")


def quoted(text: str) -> str:
    """A literal of the grammar; its escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)
