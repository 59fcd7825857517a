"""Arguments that come parameter by parameter -> the text of one JSON object.

Strings are streamed as they come, other values are written once they are whole. Must not know tags.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final, Literal

from gateway.output.tools import schema
from gateway.output.tools.grammar import CallSink, Read
from gateway.output.tools.json_repair import JsonRepair
from gateway.output.tools.value_end import ExampleCall, Path, ValueEnd

MAX_VALUE: Final = 2**18
"""The most characters of a value that are held back. A longer object or list is streamed, and any
other longer value is a string whatever its schema says.
"""
_BRACKETS: Final[dict[str, tuple[Literal["{", "["], str]]] = {
    "{": ("{", "object"),
    "[": ("[", "array"),
}
_MAX_NULL: Final = 16


class ArgumentsWriter:
    """The arguments of the call `name`. A value that says nothing, and is of an optional parameter
    that is no string, is left out: models write empty tags, or Python's None, for what they do not
    want to give (sglang#36835).
    """

    def __init__(self, calls: CallSink, name: str) -> None:
        self._calls = calls
        self._name = name
        self._num_values = 0
        self._value: _Value | None = None
        self._is_half = False
        calls.start(name, self._close)
        calls.write("{")

    def end(self) -> None:
        self._calls.write("}")
        self._calls.end()

    def read_value(
        self,
        name: str,
        types: frozenset[str] | None,
        paths: Sequence[Path],
        skip: str = "",
        begun: str = "",
        example: ExampleCall | None = None,
    ) -> Read[Path]:
        """Read the value of a parameter up to one of `paths`; returns which one.

        `types` are the types in its schema; None for a value that is JSON itself. One `skip` at the
        start does not belong to the value. `begun` is the beginning of the value that was read
        already. The value may hold an `example` of a call.
        """
        comma = ", " if self._num_values else ""
        key = f"{comma}{schema.quote(name)}: "
        is_optional = not self._calls.requires(self._name, name)
        value = _Value(key, types, ValueEnd(paths, example), is_optional=is_optional)
        self._value = value
        for char in begun:
            value.feed(char)
        char = yield
        if char == skip:
            char = yield
        self._calls.runs = value
        while not value.feed(char):
            self._calls.write(value.take())
            char = yield
        self._calls.runs = None
        self._end_value(value)
        self._value = None
        return value.scan.found

    def write_value(self, name: str, value: str) -> None:
        """A value that was read as a whole, as JSON, or the beginning of one."""
        comma = ", " if self._num_values else ""
        self._num_values += 1
        self._calls.write(f"{comma}{schema.quote(name)}: {value}")

    @contextmanager
    def half(self) -> Iterator[None]:
        """A block in which the end of the output leaves the arguments broken off."""
        self._is_half = True
        yield
        self._is_half = False

    def _end_value(self, value: "_Value") -> None:
        self._calls.write(value.end())
        self._num_values += not value.is_left_out

    def _close(self) -> str | None:
        value = self._value
        if self._is_half:
            return None
        if value is None:
            return "}"
        return value.end() + "}" if value.scan.is_ended else None


class _Value:
    """One value, with its `key`, up to a path; a `RunReader`."""

    def __init__(
        self, key: str, types: frozenset[str] | None, scan: ValueEnd, *, is_optional: bool
    ) -> None:
        self.scan = scan
        self._plain = _plain_but("".join(sorted(self.scan.first)))
        self._types = types
        self._is_text = types is not None and schema.is_text(types)
        self._may_be_left_out = is_optional and not self._is_text
        self._out: list[str] = [] if self._may_be_left_out else [key]
        self._key = key if self._may_be_left_out else ""
        self._held: list[str] = []
        self._num_held = 0
        self._is_streamed = False
        self._json: JsonRepair | None = None
        self.is_left_out = False

    def feed(self, char: str) -> bool:
        """Take one character; True when a path is complete."""
        if text := self.scan.feed(char):
            self._add(text)
        return bool(self.scan.found)

    @property
    def is_quiet(self) -> bool:
        """Whether a string is streamed and nothing is pending."""
        return self._is_streamed and not self.scan.is_holding and not self._out

    def feed_plain(self, text: str, at: int) -> int:
        """While a string is streamed, take the characters at `at` that do not begin a tag."""
        if not self._is_streamed or self.scan.is_holding:
            return at
        run = self._plain.match(text, at)
        if run is None:
            return at
        self._out.append(schema.quote(run[0])[1:-1])
        return run.end()

    def take(self) -> str:
        """The JSON that became certain since the last call."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def end(self) -> str:
        """The rest of the JSON."""
        if self._is_streamed:
            return self.take() + '"'
        if self._json is not None:
            return self.take() + ("" if self._json.is_done else self._json.close_early())
        held = "".join(self._held)
        if self._key and self._leaves_out(held):
            self.is_left_out = True
            return ""
        found = schema.any_json(held) if self._types is None else schema.to_json(held, self._types)
        return self.take() + self._key + found

    def _leaves_out(self, held: str) -> bool:
        if not held.strip():
            return True
        return self._types is not None and "null" not in self._types and schema.is_blank(held)

    def _add(self, text: str) -> None:
        if self._is_streamed:
            self._out.append(schema.quote(text)[1:-1])
            return
        if self._json is not None:
            self._add_json(self._json, text)
            return
        self._held.append(text)
        self._num_held += len(text)
        if self._key and not schema.may_be_blank("".join(self._held[:8])):
            self._out.append(self._key)
            self._key = ""
        if not self._may_be_other():
            begun = "".join(self._held)
            self._held.clear()
            self._json = self._begun_json(begun)
            if self._json is not None:
                self._add_json(self._json, begun.lstrip()[1:])
                return
            self._is_streamed = True
            self._out.append(schema.quote(begun)[:-1])

    def _begun_json(self, begun: str) -> JsonRepair | None:
        """A reader of the object or list with which the value begins, if the parameter's types
        allow one.
        """
        bracket, kind = _BRACKETS.get(begun.lstrip()[:1], (None, ""))
        is_other = self._types is not None and kind not in self._types
        return None if bracket is None or self._is_text or is_other else JsonRepair(bracket)

    def _add_json(self, reader: JsonRepair, text: str) -> None:
        for char in text:
            if reader.is_done:
                break
            reader.feed(char)
        self._out.append(reader.take())

    def _may_be_other(self) -> bool:
        """Whether the value may still turn out not to be a string. `null` is recognised early."""
        if not self._is_text:
            return self._num_held <= MAX_VALUE
        if self._types is None or "null" not in self._types or self._num_held > _MAX_NULL:
            return False
        held = "".join(self._held).strip()
        return any(word.startswith(held) for word in schema.NULLS)


@cache
def _plain_but(chars: str) -> re.Pattern[str]:
    return re.compile(f"[^{re.escape(chars)}]+")
