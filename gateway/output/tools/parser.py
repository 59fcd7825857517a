"""The text of one choice -> text and tool calls, in any format.

Owns the search for markers, what is held back, white space beside calls (it belongs to them), and
the ids and numbers of calls. Plain text passes without a look at its characters. At most the
beginning of a marker, white space, and `MAX_HELD` characters of what may become a call are held
back. Must not know formats (`formats.py` names them) or tokens.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from gateway.api import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallEvent, ToolCallStart
from gateway.output.tags import MAX_SPACE, without_end_space
from gateway.output.tools.formats import ToolFormat
from gateway.output.tools.grammar import NotACall, Read, RunReader
from gateway.output.tools.schema import required_of, schemas_of

MAX_HELD: Final = 2**16
NAMESPACES: Final = ("functions.", "tools.")

ToolEvent = TextDelta | ToolCallEvent


class ToolParser:
    """Tool calls of one choice.

    `draw(n)` returns n random bytes. `tools` are the request's tools. `index` is the index of the
    choice. `past_ids` are the ids of earlier calls in the conversation; no call of the answer gets
    one of them. With `is_single` everything behind the first call is dropped, and the parser
    `is_full` then. While `is_quiet`, text without any of `marks` passes unchanged unless it ends in
    white space. `broke_off`: the arguments of a call are no whole JSON, which is certain after
    `flush`.
    """

    __slots__ = (
        "_after_call",
        "_calls",
        "_format",
        "_grammar",
        "_held",
        "_index",
        "_is_start",
        "_pending",
        "broke_off",
        "marks",
        "string_marks",
    )

    def __init__(
        self,
        tool_format: ToolFormat,
        draw: Callable[[int], bytes],
        tools: tuple[dict[str, Any], ...] = (),
        index: int = 0,
        *,
        is_single: bool = False,
        past_ids: Collection[str] = (),
    ) -> None:
        self._format = tool_format
        self._calls = _CallEvents(
            tool_format, draw, tools, index, is_single=is_single, past_ids=past_ids
        )
        self._index = index
        self._grammar: Read[None] | None = None
        self._pending = ""
        self._held: list[str] = []
        self._is_start = True
        self._after_call = False
        self.broke_off = False
        self.marks = tool_format.marks
        self.string_marks = tool_format.string_marks

    @property
    def open_string(self) -> int | None:
        """The call whose arguments take text without `string_marks` unchanged now, if any."""
        calls = self._calls
        if self._grammar is None or calls.runs is None or not calls.runs.is_quiet:
            return None
        return calls.num_calls - 1

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is pending between calls."""
        return (
            self._grammar is None
            and not self._pending
            and not self._is_start
            and not self._after_call
        )

    @property
    def num_calls(self) -> int:
        return self._calls.num_calls

    @property
    def last_name(self) -> str:
        """The tool of the last call; "" before the first."""
        return self._calls.last_name

    @property
    def is_full(self) -> bool:
        return self._calls.is_full

    def is_end(self, stop: str) -> bool:
        """Whether a stop string is the end tag of a call, so that it cuts none."""
        return stop.strip() in self._format.ends

    def begin(self, opening: str) -> None:
        """Take the beginning of a call in which the prompt itself ended."""
        self._read(opening)

    def push(self, text: str) -> list[ToolEvent]:
        """Take more text; return the events that are certain now."""
        if self.is_quiet and self._format.first not in text and not text[-1:].isspace():
            return [TextDelta(self._index, text)] if text else []
        self._read(text)
        return self._calls.take()

    def flush(self, *, is_cut: bool = False) -> list[ToolEvent]:
        """The end of the text: what was held back becomes text, and an open call ends. Missing
        brackets are added unless the answer was cut (`is_cut`).
        """
        if self._grammar is not None:
            self._end_call(is_cut=is_cut)
            held = "".join(self._held)
            is_markup = self._calls.in_section and self._format.is_end(held)
            self._leave("" if is_markup else held)
        if not (self._after_call and not self._pending.strip()):
            self._emit(self._pending)
        self._pending = ""
        return self._calls.take()

    def _end_call(self, *, is_cut: bool) -> None:
        if self._calls.is_open:
            rest = self._calls.close()
            is_broken = is_cut or rest is None
            self._calls.write(rest if rest is not None and not is_cut else "")
            self._calls.end(is_whole=not is_broken)
            self.broke_off = self.broke_off or is_broken
            self._held.clear()

    def _read(self, text: str) -> None:
        while text and not self._calls.is_full:
            text = self._read_text(text) if self._grammar is None else self._read_section(text)

    def _read_text(self, text: str) -> str:
        """Read text up to the next marker; return what is behind it."""
        whole = self._pending + text
        self._pending = ""
        if self._is_start:
            start = whole.lstrip()
            self._is_start = not start and len(whole) < MAX_SPACE
            if start and len(whole) - len(start) < MAX_SPACE and start[0] in self._format.bare:
                self._pending = whole[: len(whole) - len(start)]
                self._enter(start[0])
                return start[1:]
        marker = self._format.find(whole)
        if marker is not None:
            self._show(whole[: marker.start()])
            self._enter(marker[0])
            return whole[marker.end() :]
        self._show(whole, self._format.overlap(whole))
        return ""

    def _enter(self, marker: str) -> None:
        """Begin a section; the white space before it is held with it."""
        self._held = [self._pending + marker]
        self._pending = ""
        self._calls.in_section = False
        self._grammar = self._format.read(self._calls, marker)
        next(self._grammar)

    def _leave(self, text: str) -> None:
        """End the section; `text` of it was not a call."""
        self._grammar = None
        self._held = []
        self._after_call = self._after_call or self._calls.in_section
        self._show(text)

    def _read_section(self, text: str) -> str:
        """Read a section up to its end, or to where it proves to be text; return what is behind."""
        grammar, calls = self._grammar, self._calls
        assert grammar is not None
        at = 0
        try:
            while at < len(text):
                if calls.runs is not None and (end := calls.runs.feed_plain(text, at)) > at:
                    calls.write(calls.runs.take())
                    at = end
                    continue
                char = text[at]
                at += 1
                if not calls.is_open:
                    self._hold(char)
                grammar.send(char)
                if calls.left is not None:
                    self._held = [calls.left] if calls.left else []
                    calls.left = None
                    if calls.is_full:
                        self._leave("")
                        return ""
        except StopIteration:
            self._leave("" if calls.in_section else "".join(self._held))
        except NotACall as no:
            if calls.is_open:  # what follows cannot be told from the call's arguments
                calls.end(is_whole=False)
                self.broke_off = True
            held = "".join(self._held)
            again = held[-no.again :]
            self._leave(held[: -no.again])
            return again + text[at:]
        return text[at:]

    def _hold(self, char: str) -> None:
        self._held.append(char)
        if len(self._held) > MAX_HELD:
            raise NotACall

    def _show(self, text: str, num_held: int = 0) -> None:
        """Emit text except its last `num_held` characters and the white space before them."""
        whole = self._pending + text
        certain = without_end_space(whole[: len(whole) - num_held])
        self._emit(certain)
        self._pending = whole[len(certain) :]

    def _emit(self, text: str) -> None:
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        if text:
            self._calls.events.append(TextDelta(self._index, text))


def begins_call(
    tool_format: ToolFormat, tools: tuple[dict[str, Any], ...], marker: str, text: str
) -> bool | None:
    """Whether a marker and the text behind it begin a call of one of the `tools`; None while that
    is not certain.
    """
    calls = _CallEvents(tool_format, bytes, tools, 0, is_single=False, past_ids=())
    grammar = tool_format.read(calls, marker)
    next(grammar)
    try:
        for char in text:
            grammar.send(char)
            if calls.num_calls:
                start = calls.events[0]
                return isinstance(start, ToolCallStart) and calls.is_tool(start.name)
    except (StopIteration, NotACall):
        return bool(calls.num_calls)
    return None


class _CallEvents:
    """The `CallSink` of one choice: what grammars read -> events.

    Arguments are joined until `take`, so that a push makes one event of them. `in_section`: the
    section has a call. `left` is set once some of what was read is certainly markup: it is the text
    that is not.
    """

    def __init__(
        self,
        tool_format: ToolFormat,
        draw: Callable[[int], bytes],
        tools: tuple[dict[str, Any], ...],
        index: int,
        *,
        is_single: bool,
        past_ids: Collection[str],
    ) -> None:
        self._format = tool_format
        self._draw = draw
        self._is_single = is_single
        self._tools = tools
        self._schemas = schemas_of(tools)
        self._index = index
        self._past_ids = past_ids
        self._ids: set[str] = set()
        self._arguments: list[str] = []
        self.events: list[ToolEvent] = []
        self.close: Callable[[], str | None] = str
        self.runs: RunReader | None = None
        self.num_calls = 0
        self.last_name = ""
        self.is_full = False
        self.is_open = False
        self.in_section = False
        self.left: str | None = None

    def start(self, name: str, close: Callable[[], str | None], call_id: str = "") -> None:
        """See `CallSink`. The model's own ids are kept where its template shows them again."""
        if not self._format.keeps_ids or call_id in self._ids:
            call_id = self._format.draw_id(self._draw)
        elif not call_id or call_id in self._past_ids:
            call_id = self._next_id(self._own(name))
        self._ids.add(call_id)
        name = self._own(name)
        self.events.append(ToolCallStart(self._index, self.num_calls, call_id, name))
        self.num_calls += 1
        self.last_name = name
        self.is_open = self.in_section = True
        self.close = close
        self.left = ""

    def _next_id(self, name: str) -> str:
        """An id where the model's own has none, or repeats one of an earlier turn."""
        number_id = self._format.number_id
        if number_id is None:
            return self._format.draw_id(self._draw)
        number = len(self._past_ids) + self.num_calls
        while (call_id := number_id(name, number)) in self._past_ids or call_id in self._ids:
            number += 1
        return call_id

    def write(self, arguments: str) -> None:
        if arguments:
            self._arguments.append(arguments)

    def end(self, left: str = "", *, is_whole: bool = True) -> None:
        self._flush()
        self.events.append(ToolCallEnd(self._index, self.num_calls - 1, is_whole))
        self.is_open = False
        self.is_full = self._is_single
        self.runs = None
        self.left = left

    def drop(self) -> None:
        if self.in_section:
            self.left = ""

    def _own(self, name: str) -> str:
        """The tool of the request that `name` names: models leave a namespace before it."""
        if name in self._schemas:
            return name
        bare = (name.removeprefix(space) for space in NAMESPACES)
        return next((one for one in bare if one in self._schemas), name)

    def is_tool(self, name: str) -> bool:
        return self._own(name) in self._schemas

    def begins_tool(self, text: str) -> bool:
        return any(name.startswith(text) for name in self._schemas)

    def parameters(self, name: str) -> Collection[str]:
        return self._schemas.get(self._own(name), {})

    def requires(self, name: str, parameter: str) -> bool:
        name = self._own(name)
        is_known = parameter in self._schemas.get(name, {})
        return not is_known or parameter in required_of(self._tools)[name]

    def schema(self, name: str, parameter: str) -> object:
        return self._schemas.get(self._own(name), {}).get(parameter)

    def whole_schema(self, name: str) -> Mapping[str, Any]:
        functions = (tool["function"] for tool in self._tools)
        found = (one.get("parameters") for one in functions if one["name"] == self._own(name))
        return next((one for one in found if isinstance(one, dict)), {})

    def take(self) -> list[ToolEvent]:
        """The events since the last call."""
        self._flush()
        events, self.events = self.events, []
        return events

    def _flush(self) -> None:
        if self._arguments:
            text = "".join(self._arguments)
            self._arguments.clear()
            self.events.append(ToolCallArguments(self._index, self.num_calls - 1, text))
