"""Arguments that come parameter by parameter -> the text of one JSON object.

Strings are streamed as they come, other values are written once they are whole. Must not know tags.
"""

import re
from functools import cache
from typing import Final

from gateway.output.tags import TagScan
from gateway.output.tools import schema
from gateway.output.tools.grammar import CallSink, Read

MAX_VALUE: Final = 2**18
"""A longer value becomes a string whatever its schema says, so that little is held back."""
_MAX_NULL: Final = 16


class ArgumentsWriter:
    def __init__(self, calls: CallSink, name: str, call_id: str = "") -> None:
        self._calls = calls
        self._num_values = 0
        self._is_open = False
        calls.start(name, self._close, call_id)
        calls.write("{")

    def end(self) -> None:
        self._calls.write("}")
        self._calls.end()

    def read_value(
        self, name: str, types: frozenset[str] | None, tags: tuple[str, ...], skip: str = ""
    ) -> Read[str]:
        """Read the value of a parameter up to one of `tags`; returns which one.

        `types` are those of its schema; None for a value that is JSON itself. One `skip` at its
        start is not part of it.
        """
        self._is_open = True
        comma = ", " if self._num_values else ""
        self._num_values += 1
        self._calls.write(f"{comma}{schema.quote(name)}: ")
        value = _Value(types, tags)
        char = yield
        if char == skip:
            char = yield
        self._calls.runs = value
        while not value.feed(char):
            self._calls.write(value.take())
            char = yield
        self._calls.runs = None
        self._calls.write(value.end())
        self._is_open = False
        return value.scan.found

    def _close(self) -> str | None:
        return None if self._is_open else "}"


class _Value:
    """One value up to a tag; a `RunReader`."""

    def __init__(self, types: frozenset[str] | None, tags: tuple[str, ...]) -> None:
        self.scan = TagScan(tags)
        self._plain = _plain_but("".join(sorted({tag[0] for tag in tags})))
        self._types = types
        self._is_text = types is not None and schema.is_text(types)
        self._out: list[str] = []
        self._held: list[str] = []
        self._num_held = 0
        self._is_streamed = False

    def feed(self, char: str) -> bool:
        """Take one character; True when a tag is complete."""
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
        held = "".join(self._held)
        return schema.any_json(held) if self._types is None else schema.to_json(held, self._types)

    def _add(self, text: str) -> None:
        if self._is_streamed:
            self._out.append(schema.quote(text)[1:-1])
            return
        self._held.append(text)
        self._num_held += len(text)
        if not self._may_be_other():
            self._is_streamed = True
            self._out.append(schema.quote("".join(self._held))[:-1])
            self._held.clear()

    def _may_be_other(self) -> bool:
        """Whether it may still turn out not to be a string; `null` is recognised soon."""
        if not self._is_text:
            return self._num_held <= MAX_VALUE
        if self._types is None or "null" not in self._types or self._num_held > _MAX_NULL:
            return False
        return "null".startswith("".join(self._held).strip())


@cache
def _plain_but(chars: str) -> re.Pattern[str]:
    return re.compile(f"[^{re.escape(chars)}]+")
