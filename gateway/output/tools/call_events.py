"""What grammars read -> events: ids, numbers and arguments of the calls of one choice.

Owns which id a call has. Must not know text outside of calls, nor formats.
"""

from collections.abc import Callable
from typing import Any

from gateway.api import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallEvent, ToolCallStart
from gateway.output.tools.formats import ToolFormat
from gateway.output.tools.grammar import TakesRuns
from gateway.output.tools.schema import schemas_of

ToolEvent = TextDelta | ToolCallEvent


class CallEvents:
    """The `CallSink` of one choice: what grammars read -> events.

    Arguments are joined until `take`, so that a push makes one event of them.

    `left` is set when something of what was read is markup for certain: the text that is not.
    `in_section`: the section has a call.
    """

    def __init__(
        self,
        tool_format: ToolFormat,
        draw: Callable[[int], bytes],
        tools: tuple[dict[str, Any], ...],
        index: int,
    ) -> None:
        self._format = tool_format
        self._draw = draw
        self._schemas = schemas_of(tools)
        self._index = index
        self._ids: set[str] = set()
        self._arguments: list[str] = []
        self.events: list[ToolEvent] = []
        self.close: Callable[[], str] = str
        self.runs: TakesRuns | None = None
        self.num_calls = 0
        self.is_open = False
        self.in_section = False
        self.left: str | None = None

    def start(self, name: str, close: Callable[[], str], call_id: str = "") -> None:
        """See `CallSink`. Ids of the model are kept where its template shows them again."""
        if not self._format.keeps_ids or not call_id or call_id in self._ids:
            call_id = self._format.draw_id(self._draw)
        self._ids.add(call_id)
        self.events.append(ToolCallStart(self._index, self.num_calls, call_id, name))
        self.num_calls += 1
        self.is_open = self.in_section = True
        self.close = close
        self.left = ""

    def write(self, arguments: str) -> None:
        """See `CallSink`."""
        if arguments:
            self._arguments.append(arguments)

    def end(self, left: str = "") -> None:
        """See `CallSink`."""
        self._flush()
        self.events.append(ToolCallEnd(self._index, self.num_calls - 1))
        self.is_open = False
        self.runs = None
        self.left = left

    def drop(self) -> None:
        """See `CallSink`."""
        if self.in_section:
            self.left = ""

    def is_tool(self, name: str) -> bool:
        """See `CallSink`."""
        return name in self._schemas

    def schema(self, name: str, parameter: str) -> object:
        """See `CallSink`."""
        return self._schemas.get(name, {}).get(parameter)

    def take(self) -> list[ToolEvent]:
        """The events since the last time."""
        self._flush()
        events, self.events = self.events, []
        return events

    def _flush(self) -> None:
        if self._arguments:
            text = "".join(self._arguments)
            self._arguments.clear()
            self.events.append(ToolCallArguments(self._index, self.num_calls - 1, text))
