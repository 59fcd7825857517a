"""JSON as models write it -> JSON, one character at a time.

An incremental reader of objects and arrays that all formats share. Valid JSON passes unchanged.
Anything else is repaired by these rules:
- a quote inside a value is escaped unless JSON goes on behind it, and so are control characters;
- quotes may be single, words without quotes become strings, True/False/None are translated and
  NaN, Infinity and undefined become null;
- missing commas, colons and values (null) are added, superfluous punctuation is left out;
- a closing bracket closes the brackets that were left open inside.
Must not know tags, tools or events.
"""

import json
import re
from math import isfinite
from typing import Final, Literal

MAX_WORD: Final = 1024
"""A number or a word without quotes; a longer one is cut."""
_MAX_GAP: Final = 1024
"""White space behind a comma or a quote, until the next character shows what it was."""

_ITEM, _COLON, _VALUE, _AFTER, _STRING, _ESCAPE, _HEX, _QUOTE, _WORD, _DONE = range(10)
"""What may come next. _ITEM: an item of the open container, or its end; _VALUE: the value of a key;
_QUOTE: a quote was read that may have closed the value."""

_SPACE: Final = frozenset(" \t\n\r")
_CLOSER: Final = {"{": "}", "[": "]"}
_CLOSERS: Final = frozenset("}]")
_QUOTES: Final = frozenset("\"'")
_WORD_ENDS: Final = frozenset(" \t\n\r,:{}[]\"'")
_FOLLOWS_VALUE: Final = frozenset(",}]")
_WORDS: Final = {
    "true": "true",
    "false": "false",
    "none": "null",
    "null": "null",
    "nan": "null",
    "infinity": "null",
    "-infinity": "null",
    "undefined": "null",
}
NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
_NO_CHARACTER: Final = "\\ufffd"
_ESCAPES: Final = frozenset('"\\/bfnrt')
_PLAIN: Final = re.compile(r"""[^"'\\\x00-\x1f]+""")
_ESCAPED: Final = {chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)}


class JsonRepair:
    """One JSON object or array whose `first` bracket was read already.

    `stop` is the first character of an end tag; it ends the value where JSON does not allow it.
    `in_object`: start behind a value in an object instead.
    """

    def __init__(
        self, first: Literal["{", "["], stop: str = "", *, in_object: bool = False
    ) -> None:
        self._stop = stop
        self._state = _AFTER if in_object else _ITEM
        self._open = [_CLOSER[first]]
        self._out: list[str] = [] if in_object else [first]
        self._gap = ""
        self._held = ""
        self._high = ""
        """The escape of a first half of a character, until the second one comes."""
        self._quote = '"'
        self._digits = 4
        """How many digits the open escape has."""
        self._is_key = False
        self._steps = (
            self._item, self._colon, self._value, self._after, self._string,
            self._escape, self._hex, self._after_quote, self._word,
        )  # fmt: skip

    @property
    def is_done(self) -> bool:
        """Whether the value is complete and takes no more characters."""
        return self._state == _DONE

    def feed(self, char: str) -> bool:
        """Take one character; False for the stop, which is not taken."""
        is_stop = char == self._stop
        while True:
            if is_stop and self._state in {_ITEM, _COLON, _VALUE, _AFTER}:
                return False
            if self._steps[self._state](char):
                return True

    @property
    def is_quiet(self) -> bool:
        """Whether it is inside a string and nothing is pending."""
        return self._state == _STRING and not self._out and not self._high

    def feed_plain(self, text: str, at: int) -> int:
        """Take the run of plain characters at `at` if inside a string; return where it ends."""
        is_within = self._state == _STRING and not self._high
        run = _PLAIN.match(text, at) if is_within else None
        if run is None:
            return at
        self._out.append(run[0])
        return run.end()

    def take(self) -> str:
        """The JSON that became certain since the last call."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def close(self) -> str | None:
        """At the end of the output: the rest of the value, completed if only brackets are missing.
        None for a value that breaks off in a string, a key, or before a value or an item: acting on
        half a value would be wrong.
        """
        if self.is_done:
            return self.take()
        is_half_key = self._state == _WORD and self._is_key
        is_whole = self._state in {_AFTER, _QUOTE, _WORD} and not is_half_key
        return self.close_early() if is_whole else None

    def close_early(self) -> str:
        """The completed rest of the value, after which the model has begun something else."""
        if self._state in {_STRING, _ESCAPE, _HEX, _QUOTE}:
            self._end_string()
        elif self._state == _WORD:
            self._end_word()
        if self._state == _COLON:
            self._out.append(":")
        if self._state in {_COLON, _VALUE}:
            self._out.append("null")
        self._out.extend(reversed(self._open))
        self._state = _DONE
        return self.take()

    # Each step takes a character, or changes the state and returns False: then the next step gets
    # the same character.

    def _item(self, char: str) -> bool:
        if char in _SPACE:
            if not self._gap:
                self._out.append(char)
            elif len(self._gap) < _MAX_GAP:
                self._gap += char
        elif char in _CLOSERS:
            if char in self._open:
                self._out.append(self._gap[1:])
                self._close_bracket(char)
        elif self._open[-1] == "}":
            if char not in ",:{[":
                self._start(char, is_key=True)
        elif char not in ",:":
            self._start(char, is_key=False)
        return True

    def _colon(self, char: str) -> bool:
        if char in _SPACE:
            self._out.append(char)
            return True
        self._out.append(":")
        self._state = _VALUE
        return char == ":"

    def _value(self, char: str) -> bool:
        if char in _SPACE:
            self._out.append(char)
        elif char in _FOLLOWS_VALUE:
            self._out.append("null")
            self._state = _AFTER
            return False
        elif char != ":":
            self._start(char, is_key=False)
        return True

    def _after(self, char: str) -> bool:
        if char in _SPACE:
            self._out.append(char)
        elif char in _CLOSERS:
            self._close_bracket(char)
        else:
            self._state, self._gap = _ITEM, ","
            return char == ","
        return True

    def _string(self, char: str) -> bool:
        if char != "\\":
            self._end_half()
        if char == self._quote and self._is_key:
            self._end_string()
        elif char == self._quote:
            self._state, self._held = _QUOTE, ""
        elif char == "\\":
            self._state = _ESCAPE
        elif char == '"':
            self._out.append('\\"')
        else:
            self._out.append(_ESCAPED.get(char, char))
        return True

    def _escape(self, char: str) -> bool:
        self._state = _STRING
        if char != "u":
            self._end_half()
        if char in _ESCAPES:
            self._out.append("\\" + char)
        elif char == "u" or (char == "x" and self._quote == "'"):
            # Python writes \x1b between its quotes; in JSON it is a backslash that was forgotten.
            self._state, self._held, self._digits = _HEX, "", 4 if char == "u" else 2
        elif char == "'":
            self._out.append("'")
        else:
            self._out.append("\\\\")
            return False
        return True

    def _hex(self, char: str) -> bool:
        """Take the digits of an escape, behind a backslash and u or x. With other characters the
        escape was meant as text.
        """
        if char not in HEX_DIGITS:
            self._end_half()
            self._out.append(self._half_escape)
            self._state = _STRING
            return False
        self._held += char
        if len(self._held) == self._digits:
            self._held = self._held.rjust(4, "0")
            self._write_escape(int(self._held, 16))
            self._state = _STRING
        return True

    @property
    def _half_escape(self) -> str:
        """The text of an escape whose digits do not come."""
        return ("\\\\u" if self._digits == 4 else "\\\\x") + self._held

    def _write_escape(self, code: int) -> None:
        """Write an escape of four digits. Half of a surrogate pair is not a character, and many
        clients refuse it.
        """
        escape = "\\u" + self._held
        if 0xDC00 <= code < 0xE000:
            self._out.append(self._high + escape if self._high else _NO_CHARACTER)
            self._high = ""
            return
        self._end_half()
        if 0xD800 <= code < 0xDC00:
            self._high = escape
        else:
            self._out.append(escape)

    def _end_half(self) -> None:
        if self._high:
            self._out.append(_NO_CHARACTER)
            self._high = ""

    def _after_quote(self, char: str) -> bool:
        """Take a character behind a quote: only a quote that closes a value is followed by a comma
        or a bracket.
        """
        if char in _SPACE and len(self._held) < _MAX_GAP:
            self._held += char
            return True
        if char in _FOLLOWS_VALUE or char == self._stop or char in _SPACE:
            self._end_string()
            return False
        self._out.append('\\"' if self._quote == '"' else "'")
        self._out.extend(_ESCAPED.get(space, space) for space in self._held)
        self._state = _STRING
        return False

    def _word(self, char: str) -> bool:
        if char in _WORD_ENDS or char == self._stop or len(self._held) == MAX_WORD:
            self._end_word()
            return False
        self._held += char
        return True

    def _start(self, char: str, *, is_key: bool) -> None:
        """A key, an item of an array or a value of an object begins."""
        self._out.append(self._gap)
        self._gap = ""
        self._is_key = is_key
        if char in _QUOTES:
            self._out.append('"')
            self._state, self._quote = _STRING, char
        elif char in _CLOSER:
            self._out.append(char)
            self._open.append(_CLOSER[char])
            self._state = _ITEM
        else:
            self._state, self._held = _WORD, char

    def _end_string(self) -> None:
        self._end_half()
        if self._state == _ESCAPE:
            self._out.append("\\\\")
        elif self._state == _HEX:
            self._out.append(self._half_escape)
        self._out.append('"' + (self._held if self._state == _QUOTE else ""))
        self._state = _COLON if self._is_key else _AFTER

    def _end_word(self) -> None:
        word = self._held
        known = None if self._is_key else _WORDS.get(word.lower())
        if known is None and not self._is_key and NUMBER.fullmatch(word):
            known = word if word.lstrip("-").isdigit() or isfinite(float(word)) else "null"
        self._out.append(json.dumps(word, ensure_ascii=False) if known is None else known)
        self._state = _COLON if self._is_key else _AFTER

    def _close_bracket(self, char: str) -> None:
        """Close the brackets left open inside; a bracket that closes nothing is left out."""
        self._gap = ""
        if char not in self._open:
            return
        while (closer := self._open.pop()) != char:
            self._out.append(closer)
        self._out.append(closer)
        self._state = _AFTER if self._open else _DONE
