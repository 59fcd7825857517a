"""Arguments that come parameter by parameter -> the text of one JSON object.

Owns the object as it grows and how single values are streamed into it: those of strings as they
come, others once they are whole. Must not know tags.
"""

from typing import Final

from gateway.core.tags import TagScan
from gateway.core.tools import schema
from gateway.core.tools.grammar import CallSink, Read

MAX_VALUE: Final = 2**18
"""A longer value that is no string in its schema becomes one, so that little is held."""
_MAX_NULL: Final = 16


class ObjectText:
    """The arguments of one call."""

    def __init__(self, calls: CallSink, name: str, call_id: str = "") -> None:
        self._calls = calls
        self._num_values = 0
        self._is_open = False
        calls.start(name, self._close, call_id)
        calls.write("{")

    def end(self) -> None:
        """No more parameters come."""
        self._calls.write("}")
        self._calls.end()

    def read_value(
        self, name: str, types: frozenset[str] | None, tags: tuple[str, ...], skip: str = ""
    ) -> Read[str]:
        """The value of a parameter up to one of the `tags`, and which one it was.

        `types`: those of its schema; None for a value that must be JSON itself. One `skip` at its
        start is no part of it.
        """
        self._is_open = True
        comma = ", " if self._num_values else ""
        self._num_values += 1
        self._calls.write(f"{comma}{schema.quote(name)}: ")
        value = _Value(types)
        scan = TagScan(tags)
        is_first = True
        while not scan.found:
            char = yield
            if is_first and char == skip:
                is_first = False
                continue
            is_first = False
            self._calls.write(value.add(scan.feed(char)))
        self._calls.write(value.end())
        self._is_open = False
        return scan.found

    def _close(self) -> str:
        return "" if self._is_open else "}"


class _Value:
    """One value as it comes."""

    def __init__(self, types: frozenset[str] | None) -> None:
        self._types = types
        self._is_text = types is not None and schema.is_text(types)
        self._held: list[str] = []
        self._num_held = 0
        self._is_streamed = False

    def add(self, text: str) -> str:
        """More of its text; the JSON that is certain now."""
        if not text:
            return ""
        if self._is_streamed:
            return schema.quote(text)[1:-1]
        self._held.append(text)
        self._num_held += len(text)
        if self._may_be_other():
            return ""
        self._is_streamed = True
        held = "".join(self._held)
        self._held.clear()
        return schema.quote(held)[:-1]

    def end(self) -> str:
        """The rest of the JSON."""
        if self._is_streamed:
            return '"'
        held = "".join(self._held)
        return schema.any_json(held) if self._types is None else schema.to_json(held, self._types)

    def _may_be_other(self) -> bool:
        """Whether it may still turn out to be no string: what may be null is a short wait."""
        if not self._is_text:
            return self._num_held <= MAX_VALUE
        if self._types is None or "null" not in self._types or self._num_held > _MAX_NULL:
            return False
        return "null".startswith("".join(self._held).strip())
