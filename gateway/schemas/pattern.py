"""Regular expressions of JSON schemas (ECMA-262) -> expressions that engines read the same way.

Owns the reading of a pattern and how it is written again: anchored at both ends, because some
engines read a pattern as the whole string; and without what other dialects read in another way: for
Rust `[a-z&&]` is an intersection, `{` a mistake and `\\d` any digit of Unicode. What no automaton
can follow (look-around, word boundaries, back-references) is refused. Must not know schemas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

MAX_CHARS: Final = 8192
MAX_NESTING: Final = 40
MAX_ALTERNATIVES: Final = 128
"""The most alternatives of a pattern whose anchors stand in groups: each alternative has anchors of
its own.
"""

_DIGIT: Final = "0-9"
_WORD: Final = "A-Za-z0-9_"
_SPACE: Final = r"\t\n\x0b\x0c\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_SETS: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE.encode().decode("unicode_escape")}
_CONTROL: Final = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
_ANY: Final = r"[\s\S]"
_NO_LINE_END: Final = "[^\\n\\r\u2028\u2029]"
_SPECIAL: Final = frozenset("\\^$.|?*+()[]{}/")
_SPECIAL_IN_SET: Final = frozenset("\\]^[-")
_HEX_IN_SET: Final = frozenset("&~\v\f\0")
_QUANTIFIER: Final = re.compile(r"\{(\d+)(?:(,)(\d*))?\}", re.ASCII)
_GROUP: Final = re.compile(r"\(\?(?::|<[A-Za-z_$][\w$]*>)", re.ASCII)
_PROPERTY: Final = re.compile(
    r"\{((?:gc|General_Category)=)?"
    r"(L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfn]?)\}"
)


class HardPattern(ValueError):
    """The pattern cannot be followed token by token; the text says why."""


class Written(NamedTuple):
    """A pattern for engines, the lengths of what it matches, in characters, and its `size`: how
    many sets of characters it has with all repetitions written out.
    """

    text: str
    least: int
    most: float
    size: int


class _Start(NamedTuple):
    """`^`."""


class _End(NamedTuple):
    """`$`."""


class _One(NamedTuple):
    """One character of a set, as an expression."""

    text: str


class _Repeat(NamedTuple):
    item: _Node
    least: int
    most: int | None


class _Either(NamedTuple):
    """One of several sequences."""

    options: list[list[_Node]]


_Node = _Start | _End | _One | _Repeat | _Either


def written(pattern: str, least: int = 0, most: float = math.inf) -> Written:
    """The pattern for engines. If it is simple it matches strings of `least` to `most` characters
    only, which engines would have to compute as an intersection. Raises `HardPattern`.
    """
    if len(pattern) > MAX_CHARS:
        raise HardPattern(f"it has more than {MAX_CHARS} characters")
    reader = _Reader(pattern)
    tree = reader.either(0)
    if reader.at != len(pattern):
        raise HardPattern("a ')' closes no group")
    options = [_bounded(_anchored(one), least, most) for one in _alternatives(tree)]
    texts = [_text_of(option) for option in options]
    lengths = [_length(option) for option in options]
    body = texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})"
    size = sum(map(_size, options))
    return Written(
        f"^{body}$", min(low for low, _ in lengths), max(top for _, top in lengths), size
    )


class _Reader:
    """Reads a pattern from left to right, as ECMA-262 does without the flag `v`."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0

    def either(self, depth: int) -> _Either:
        """The alternatives up to the end of the group."""
        if depth > MAX_NESTING:
            raise HardPattern(f"its groups are nested more than {MAX_NESTING} levels deep")
        options: list[list[_Node]] = [[]]
        while self.at < len(self._pattern) and self._pattern[self.at] != ")":
            if self._pattern[self.at] == "|":
                self.at += 1
                options.append([])
            else:
                options[-1].append(self._quantified(self._atom(depth)))
        return _Either(options)

    def _atom(self, depth: int) -> _Node:
        char = self._pattern[self.at]
        if char == "(":
            return self._group(depth)
        self.at += 1
        match char:
            case "^":
                return _Start()
            case "$":
                return _End()
            case ".":
                return _One(_NO_LINE_END)
            case "[":
                return _One(self._set())
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise HardPattern(f"'{char}' repeats nothing")
            case _:
                return _One(_literal(char))

    def _group(self, depth: int) -> _Node:
        if self._pattern.startswith("(?", self.at):
            opening = _GROUP.match(self._pattern, self.at)
            if opening is None:
                what = self._pattern[self.at : self.at + 4]
                raise HardPattern(f"'{what}' is look-around or an option, which is not served")
            self.at = opening.end()
        else:
            self.at += 1
        inner = self.either(depth + 1)
        if self.at >= len(self._pattern):
            raise HardPattern("a group is not closed")
        self.at += 1
        return inner

    def _quantified(self, node: _Node) -> _Node:
        if self.at >= len(self._pattern):
            return node
        char, bounds = self._pattern[self.at], None
        if char in "*+?":
            bounds = (int(char == "+"), 1 if char == "?" else None)
            self.at += 1
        elif found := _QUANTIFIER.match(self._pattern, self.at):
            most = int(found[3]) if found[3] else None if found[2] else int(found[1])
            bounds = (int(found[1]), most)
            self.at = found.end()
        if bounds is None:
            return node
        if self._pattern.startswith("?", self.at):  # a lazy quantifier matches the same strings
            self.at += 1
        if isinstance(node, _Start | _End):
            raise HardPattern("an anchor is repeated")
        least, most = bounds
        if max(least, most or 0) >= 2**31 or (most is not None and most < least):
            raise HardPattern(f"the bounds {least} and {most} are out of range")
        return _Repeat(node, least, most)

    def _escape(self) -> _Node:
        """Parse an escape outside of a set, from after its backslash."""
        char = self._next()
        if char.lower() in _SETS:
            return _One(f"[{'^' if char.isupper() else ''}{_set_text(_SETS[char.lower()])}]")
        if char in "pP":
            return _One(self._property(char))
        if char in "bBkAZzG" or (char.isdecimal() and char != "0"):
            raise HardPattern(f"'\\{char}' is a boundary or a back-reference, which is not served")
        return _One(_literal(self._character(char)))

    def _next(self) -> str:
        if self.at >= len(self._pattern):
            raise HardPattern("it ends behind a backslash")
        self.at += 1
        return self._pattern[self.at - 1]

    def _property(self, char: str) -> str:
        found = _PROPERTY.match(self._pattern, self.at)
        if found is None:
            raise HardPattern(f"'\\{char}' names a property of Unicode that is not served")
        self.at = found.end()
        return f"\\{char}{{{found[2]}}}"

    def _character(self, char: str) -> str:
        """The character that an escape denotes; `char` follows the backslash."""
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "c" and (letter := self._pattern[self.at : self.at + 1]).isalpha():
            self.at += 1
            return chr(ord(letter) % 32)
        if char == "x":
            return self._from_hex(r"([0-9A-Fa-f]{2})", char)
        if char == "u":
            return self._from_hex(r"(?:\{([0-9A-Fa-f]{1,6})\}|([0-9A-Fa-f]{4}))", char)
        return char

    def _from_hex(self, form: str, char: str) -> str:
        found = re.compile(form).match(self._pattern, self.at)
        if found is None:
            return char
        self.at = found.end()
        code = int(next(filter(None, found.groups())), 16)
        second = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})").match(self._pattern, self.at)
        if 0xD800 <= code < 0xDC00 and second is not None:
            self.at = second.end()
            code = 0x10000 + (code - 0xD800) * 0x400 + int(second[1], 16) - 0xDC00
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise HardPattern("it has half of a surrogate pair")
        return chr(code)

    def _set(self) -> str:
        """A set, whose bracket is open."""
        is_not = self._pattern.startswith("^", self.at)
        self.at += is_not
        parts: list[str] = []
        while not self._pattern.startswith("]", self.at):
            if self.at >= len(self._pattern):
                raise HardPattern("a set is not closed")
            parts.append(self._member())
        self.at += 1
        if not parts:
            if is_not:
                return _ANY
            raise HardPattern("'[]' matches nothing")
        return f"[{'^' if is_not else ''}{''.join(parts)}]"

    def _member(self) -> str:
        """A character, a range or an escaped set, of a set."""
        first = self._set_character()
        if not self._pattern.startswith("-", self.at) or self._pattern.startswith("-]", self.at):
            return first if len(first) != 1 else _set_literal(first)
        self.at += 1
        last = self._set_character()
        if len(first) != 1 or len(last) != 1:
            both = [one if len(one) != 1 else _set_literal(one) for one in (first, last)]
            return f"{both[0]}\\-{both[1]}"
        if first > last:
            raise HardPattern(f"the range from {first!r} to {last!r} is empty")
        return f"{_set_literal(first)}-{_set_literal(last)}"

    def _set_character(self) -> str:
        """One character, or the text of an escaped set, which is longer."""
        char = self._next()
        if char != "\\":
            return char
        char = self._next()
        if char.lower() in _SETS:
            inner = _set_text(_SETS[char.lower()])
            return f"[^{inner}]" if char.isupper() else inner
        if char in "pP":
            return self._property(char)
        return "\b" if char == "b" else self._character(char)


def _literal(char: str) -> str:
    if char in _SPECIAL:
        return f"\\{char}"
    return _printable(char)


def _set_literal(char: str) -> str:
    if char in _SPECIAL_IN_SET:
        return f"\\{char}"
    return f"\\x{ord(char):02x}" if char in _HEX_IN_SET else _printable(char)


def _set_text(members: str) -> str:
    """The members of one of our sets, whose only special character is the hyphen of a range."""
    return "".join(_printable(char) for char in members)


def _printable(char: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if char in named:
        return named[char]
    return f"\\x{ord(char):02x}" if ord(char) < 0x20 or ord(char) == 0x7F else char


def _alternatives(tree: _Either) -> Iterator[list[_Node]]:
    """The sequences of `tree`, where groups that begin or end with an anchor are spread out."""
    pending = list(reversed(tree.options))
    num_found = 0
    while pending:
        sequence = pending.pop()
        spread = _spread(sequence)
        if spread is None:
            num_found += 1
            yield sequence
        else:
            pending += reversed(spread)
        if num_found + len(pending) > MAX_ALTERNATIVES:
            raise HardPattern("its anchors stand in too many groups")


def _spread(sequence: list[_Node]) -> list[list[_Node]] | None:
    """The sequences instead of one that has anchors in a group; None if it has none."""
    if not any(isinstance(node, _Either) and _has_anchor(node) for node in sequence):
        return None
    choices = [
        node.options if isinstance(node, _Either) and _has_anchor(node) else [[node]]
        for node in sequence
    ]
    size = 1
    for choice in choices:
        size *= len(choice)
    if size > MAX_ALTERNATIVES:
        raise HardPattern("its anchors stand in too many groups")
    return [[node for part in parts for node in part] for parts in product(*choices)]


def _has_anchor(node: _Node) -> bool:
    if isinstance(node, _Repeat):
        return _has_anchor(node.item)
    if isinstance(node, _Either):
        return any(_has_anchor(inner) for option in node.options for inner in option)
    return isinstance(node, _Start | _End)


def _anchored(sequence: list[_Node]) -> list[_Node]:
    """A sequence without anchors that matches the whole string."""
    begin, end = 0, len(sequence)
    while begin < end and isinstance(sequence[begin], _Start):
        begin += 1
    while end > begin and isinstance(sequence[end - 1], _End):
        end -= 1
    inner = sequence[begin:end]
    if any(map(_has_anchor, inner)):
        raise HardPattern("'^' or '$' stands in the middle")
    anything = _Repeat(_One(_ANY), 0, None)
    before = [] if begin else [anything]
    after = [] if end < len(sequence) else [anything]
    return [*before, *inner, *after]


def _bounded(sequence: list[_Node], least: int, most: float) -> list[_Node]:
    """The sequence for strings of these lengths, if just one of its parts varies in length, and
    that part repeats one set. Else the sequence itself.
    """
    lengths = [_node_length(node) for node in sequence]
    varying = [at for at, (low, top) in enumerate(lengths) if low != top]
    if len(varying) != 1:
        return sequence
    at = varying[0]
    node, fixed = sequence[at], sum(low for low, top in lengths if low == top)
    if not isinstance(node, _Repeat) or not isinstance(node.item, _One):
        return sequence
    low = max(node.least, least - fixed)
    top = min(math.inf if node.most is None else node.most, most - fixed)
    if low > top:
        return sequence
    bounded = _Repeat(node.item, low, None if top == math.inf else int(top))
    return [*sequence[:at], bounded, *sequence[at + 1 :]]


def _size(sequence: list[_Node]) -> int:
    return sum(map(_node_size, sequence))


def _node_size(node: _Node) -> int:
    match node:
        case _Either(options):
            return sum(map(_size, options))
        case _Repeat(item, least, most):
            return _node_size(item) * max(1, least if most is None else most)
        case _:
            return 1


def _text_of(sequence: list[_Node]) -> str:
    return "".join(map(_node_text, sequence))


def _node_text(node: _Node) -> str:
    match node:
        case _One(text):
            return text
        case _Either(options):
            return f"(?:{'|'.join(map(_text_of, options))})"
        case _Repeat(item, least, most):
            text = _node_text(item)
            if isinstance(item, _Repeat):
                text = f"(?:{text})"
            return text + _bounds_text(least, most)
        case _:
            raise AssertionError(node)


def _bounds_text(least: int, most: int | None) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    if (least, most) in known:
        return known[least, most]
    if least == most:
        return f"{{{least}}}"
    return f"{{{least},{'' if most is None else most}}}"


def _length(sequence: list[_Node]) -> tuple[int, float]:
    lengths = [_node_length(node) for node in sequence]
    return sum(least for least, _ in lengths), sum(most for _, most in lengths)


def _node_length(node: _Node) -> tuple[int, float]:
    match node:
        case _One():
            return 1, 1
        case _Either(options):
            lengths = [_length(option) for option in options]
            return min(least for least, _ in lengths), max(most for _, most in lengths)
        case _Repeat(item, least, most):
            low, high = _node_length(item)
            factor = math.inf if most is None else most
            return low * least, high * factor if high else 0
        case _:
            return 0, 0
