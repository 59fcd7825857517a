"""What a tokenizer's regular expression does, by its structure.

Owns a small reader of such expressions (Oniguruma's syntax, as far as tokenizers use it). It says
whether a match may hold a space right behind some printed character, and it spells the expression
for Python, with the same matches in ASCII text. Whatever is not read for sure is refused with
`UnknownPattern`. Must not know tokenizers.

Two proofs rest on it, for expressions that never look behind:

- If no match takes a space right after a printed character, and look-aheads treat a space like
  the end of the text, then an expression takes the same decisions before such a space as if the
  text ended there, and no match crosses the place; so what stands behind may be matched by itself.
- A match, taken by itself, is one match again: only look-aheads at its end may now pass, and
  whatever passes there ends there.
"""

import re
import string
import unicodedata
from typing import Final, NamedTuple

SPACE: Final = " "

_OTHER: Final = "\ue000"
"""Stands for all characters beyond ASCII that are no white space."""
_ASCII: Final = frozenset(map(chr, range(128)))
_ALL: Final = _ASCII | {_OTHER}
_PRINTED: Final = frozenset(map(chr, range(0x21, 0x7F))) | {_OTHER}
_WHITE: Final = frozenset("\t\n\v\f\r ")
_ANY_WHITE: Final = frozenset({r"\s", r"\s+", r"\s++", r"[\s]+"})
"""What takes white space whatever it is beside, and however little."""
_DIGITS: Final = frozenset(string.digits)
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_ESCAPES: Final = {
    "s": _WHITE,
    "S": _ALL - _WHITE,
    "d": _DIGITS | {_OTHER},
    "D": _ALL - _DIGITS,
    "w": _WORD | {_OTHER},
    "W": _ALL - _WORD,
    "n": frozenset("\n"),
    "r": frozenset("\r"),
    "t": frozenset("\t"),
    "f": frozenset("\f"),
    "v": frozenset("\v"),
}
_PROPERTY: Final = re.compile(r"\{([LMNPSZC][a-z]?)\}")
_COUNT: Final = re.compile(r"\{(\d+)(?:,\d*)?\}(?![?+*])")

Characters = frozenset[str]


class UnknownPattern(ValueError):
    """An expression with something that is not read here."""


class Pattern(NamedTuple):
    """`joins_space`: a match may hold a space behind a printed character. `takes_white`: where
    nothing else matches, white space alone does. `ascii`: the same for text in ASCII.
    """

    joins_space: bool
    takes_white: bool
    ascii: re.Pattern[str]


class _Shape(NamedTuple):
    """What a match of a part may begin and end with; `is_empty`: it may be nothing at all."""

    is_empty: bool
    first: Characters
    last: Characters


_NOTHING: Final = _Shape(is_empty=True, first=frozenset(), last=frozenset())


def read_pattern(source: str) -> Pattern:
    """What is sure about `source`. Raises `UnknownPattern`."""
    reader = _Reader(source)
    shape = reader.alternatives(is_top=True)
    if reader.at != len(source) or shape.is_empty:
        raise UnknownPattern(source)
    return Pattern(reader.joins_space, reader.takes_white, re.compile("".join(reader.spelt)))


class _Reader:
    """Reads one expression from the left to the right."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.at = 0
        self.joins_space = False
        self.takes_white = False
        self.spelt: list[str] = []
        self._folds_case = False

    def alternatives(self, *, is_top: bool = False) -> _Shape:
        shapes = [self._sequence(is_top=is_top)]
        while self._take("|"):
            self.spelt.append("|")
            shapes.append(self._sequence(is_top=is_top))
        return _Shape(
            any(shape.is_empty for shape in shapes),
            frozenset[str]().union(*(shape.first for shape in shapes)),
            frozenset[str]().union(*(shape.last for shape in shapes)),
        )

    def _sequence(self, *, is_top: bool) -> _Shape:
        whole, start = _NOTHING, self.at
        while self._peek() not in ("", "|", ")"):
            whole = self._then(whole, self._part())
        if is_top and self._source[start : self.at] in _ANY_WHITE:
            self.takes_white = True
        return whole

    def _part(self) -> _Shape:
        if self._take("(?!"):
            self._look_ahead()
            return _NOTHING
        if self._peek() == "(":
            return self._repeated(self._group())
        characters = self._characters()
        self._spell(characters)
        return self._repeated(_Shape(is_empty=False, first=characters, last=characters))

    def _group(self) -> _Shape:
        before = self._folds_case
        if self._take("(?i:"):
            self._folds_case = True
        elif not self._take("(?:"):
            self._need("(")
            if self._peek() == "?":
                raise UnknownPattern(self._source)
        self.spelt.append("(?:")
        shape = self.alternatives()
        self._need(")")
        self.spelt.append(")")
        self._folds_case = before
        return shape

    def _look_ahead(self) -> None:
        """Only for one character that must not follow: the end of the text is none."""
        refused = self._characters()
        self._need(")")
        self.spelt.append("(?!")
        self._spell(refused)
        self.spelt.append(")")
        self.joins_space |= SPACE in refused

    def _repeated(self, shape: _Shape) -> _Shape:
        start = self.at
        count = _COUNT.match(self._source, start)
        if count is not None:
            self.at = count.end()
            may_miss = int(count[1]) == 0
            shape = self._then(shape, shape)
        elif self._take("?"):
            may_miss = True
        elif self._take("*") or self._take("+"):
            may_miss = self._source[start] == "*"
            shape = self._then(shape, shape)
        else:
            return shape
        if count is None and not self._take("?"):
            self._take("+")
        self.spelt.append(self._source[start : self.at])
        return shape._replace(is_empty=may_miss or shape.is_empty)

    def _then(self, left: _Shape, right: _Shape) -> _Shape:
        self.joins_space |= SPACE in right.first and not left.last.isdisjoint(_PRINTED)
        return _Shape(
            left.is_empty and right.is_empty,
            left.first | right.first if left.is_empty else left.first,
            right.last | left.last if right.is_empty else right.last,
        )

    def _characters(self) -> Characters:
        character = self._next()
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escape()
        if character == ".":
            return _ALL - {"\n"}
        if character in "^$(){}*+?":
            raise UnknownPattern(self._source)
        return self._between(character, character)

    def _class(self) -> Characters:
        is_negated = self._take("^")
        if self._peek() == "]":
            raise UnknownPattern(self._source)
        found: Characters = frozenset()
        while not self._take("]"):
            found |= self._member()
        # What is taken of the others is never all of them.
        return (_ALL - found) | {_OTHER} if is_negated else found

    def _member(self) -> Characters:
        low = self._next()
        if low == "[" or (low == "&" and self._peek() == "&"):
            raise UnknownPattern(self._source)
        if low == "\\":
            return self._escape()
        if self._peek() != "-" or self._source.startswith("-]", self.at):
            return self._between(low, low)
        self._need("-")
        high = self._next()
        if high in "[\\":
            raise UnknownPattern(self._source)
        return self._between(low, high)

    def _escape(self) -> Characters:
        letter = self._next()
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        if letter in "pP":
            return self._property(is_negated=letter == "P")
        if letter.isalnum():
            raise UnknownPattern(self._source)
        return self._between(letter, letter)

    def _property(self, *, is_negated: bool) -> Characters:
        name = _PROPERTY.match(self._source, self.at)
        if name is None:
            raise UnknownPattern(self._source)
        self.at = name.end()
        members = frozenset(c for c in _ASCII if unicodedata.category(c).startswith(name[1]))
        return (_ASCII - members if is_negated else members) | {_OTHER}

    def _between(self, low: str, high: str) -> Characters:
        found = {c for c in _ASCII if low <= c <= high}
        if self._folds_case:
            found |= {other for c in found for other in (c.lower(), c.upper())}
        return frozenset(found | {_OTHER} if high > "~" or self._folds_case else found)

    def _spell(self, characters: Characters) -> None:
        members = "".join(sorted(characters & _ASCII))
        escaped = re.escape(members)
        if len(members) == 1:
            self.spelt.append(escaped)
        else:
            self.spelt.append(f"[{escaped}]" if members else "(?!)")

    def _peek(self) -> str:
        return self._source[self.at : self.at + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise UnknownPattern(self._source)
        self.at += 1
        return character

    def _take(self, text: str) -> bool:
        is_there = self._source.startswith(text, self.at)
        if is_there:
            self.at += len(text)
        return is_there

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise UnknownPattern(self._source)
