"""The Hermes format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` amid text.

Owns the incremental reading, equal at every split of the stream: a complete block with a call
becomes a tool call; a malformed one is plain text; an unclosed last one counts if its JSON is
complete. White space beside calls belongs to them. Must not know tokens.
"""

from collections.abc import Callable
from typing import Final

from gateway.core.events import TextDelta, ToolCallDelta
from gateway.core.tags import tag_overlap
from gateway.core.tools.call_json import ParsedCall, StringScan, parse_call

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"

ToolEvent = TextDelta | ToolCallDelta


class HermesToolParser:
    """Tool calls of one choice.

    `draw(n)` returns n random bytes: ids are "call_" + 24 hex digits. `index` is the choice's.
    """

    def __init__(self, draw: Callable[[int], bytes], index: int = 0) -> None:
        self._draw = draw
        self._index = index
        self._pending = ""
        self._is_inside = False
        self._search_from = 0
        self._strings = StringScan(0)
        self._after_call = False
        self.num_calls = 0

    def push(self, text: str) -> list[ToolEvent]:
        """Take more text in; the events that are certain now."""
        self._pending += text
        events: list[ToolEvent] = []
        while self._step(events):
            pass
        return events

    def flush(self) -> list[ToolEvent]:
        """No more text comes: what was held back becomes a call or text."""
        events: list[ToolEvent] = []
        while self._is_inside:
            self._close_open_block(events)
            while self._step(events):
                pass
        if not (self._after_call and not self._pending.strip()):
            self._emit_text(self._pending, events)
        self._pending = ""
        return events

    def _step(self, events: list[ToolEvent]) -> bool:
        """Read on in the pending text; False when more text is needed."""
        return self._read_block(events) if self._is_inside else self._read_text(events)

    def _read_text(self, events: list[ToolEvent]) -> bool:
        """Text up to the next opening tag; white space before a tag waits for what follows."""
        start = self._pending.find(OPEN)
        if start < 0:
            certain = self._pending[
                : len(self._pending) - tag_overlap(self._pending, OPEN)
            ].rstrip()
            self._emit_text(certain, events)
            self._pending = self._pending[len(certain) :]
            return False
        shown = self._pending[:start].rstrip()
        self._emit_text(shown, events)
        self._pending = self._pending[len(shown) :]
        self._is_inside = True
        self._search_from = self._inner_start()
        self._strings = StringScan(self._search_from)
        return True

    def _read_block(self, events: list[ToolEvent]) -> bool:
        """A block up to a closing tag. A tag inside a JSON string does not close."""
        end = self._pending.find(CLOSE, self._search_from)
        if end < 0:
            self._search_from = max(self._search_from, len(self._pending) - len(CLOSE) + 1)
            return False
        if self._strings.is_inside(self._pending, end):
            self._search_from = end + len(CLOSE)
            return True
        call = parse_call(self._pending[self._inner_start() : end])
        self._end_block(end + len(CLOSE), call, events)
        return True

    def _close_open_block(self, events: list[ToolEvent]) -> None:
        """At the end of the stream: a call without its closing tag, else text up to the first."""
        start = self._inner_start()
        call = parse_call(self._pending[start:])
        first_close = self._pending.find(CLOSE, start)
        if call is not None or first_close < 0:
            self._end_block(len(self._pending), call, events)
        else:
            self._end_block(first_close + len(CLOSE), None, events)

    def _end_block(self, end: int, call: ParsedCall | None, events: list[ToolEvent]) -> None:
        block, self._pending = self._pending[:end], self._pending[end:]
        self._is_inside = False
        if call is None:
            self._emit_text(block, events)
            return
        call_id = f"call_{self._draw(12).hex()}"
        events.append(
            ToolCallDelta(self._index, self.num_calls, call_id, call.name, call.arguments)
        )
        self.num_calls += 1
        self._after_call = True

    def _inner_start(self) -> int:
        """Where the JSON of the open block starts: pending is white space, tag, JSON."""
        return self._pending.index(OPEN) + len(OPEN)

    def _emit_text(self, text: str, events: list[ToolEvent]) -> None:
        if not text:
            return
        if self._after_call:
            self._after_call = False
            text = text.lstrip()
        events.append(TextDelta(self._index, text))
