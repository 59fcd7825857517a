"""Grammars of tool calls: generators that are sent one character at a time.

Owns the contract between a grammar and the parser that drives it, and the readers that all formats
share. A grammar yields to get the next character, returns where its section ends, and raises
`NotACall` for text that is not a call. Because it sees single characters, it reads the same however
a stream was cut. Must not know events or markers in text.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from gateway.output.tools.json_repair import JsonRepair

_T = TypeVar("_T")
Read = Generator[None, str, _T]

MAX_NAME: Final = 256
MAX_DEPTH: Final = 64
"""Deeper objects and lists are no arguments where a grammar reads each by a reader of its own:
every character passes all of them, and Python's stack has 1,000 frames.
"""
_NOT_IN_NAMES: Final = frozenset("<>{}[]\"'\\`,;=| \t\r\n")


class NotACall(Exception):
    """The text since the last call is text. Its last `again` characters may begin a marker."""

    def __init__(self, again: int = 1) -> None:
        super().__init__(again)
        self.again = again


STRING_MARKS: Final = frozenset("\"'\\") | {chr(code) for code in range(0x20)}
"""Characters that end a JSON string, or are escaped in it."""


class RunReader(Protocol):
    """Reads runs of characters at once, with the same result as one at a time."""

    @property
    def is_quiet(self) -> bool:
        """Whether text without `STRING_MARKS` and without first characters of tags, if it comes
        next, is part of the arguments unchanged.
        """
        ...

    def feed_plain(self, text: str, at: int) -> int:
        """Take the plain characters at `at`; return where they end."""
        ...

    def take(self) -> str:
        """The text of arguments that became certain since the last call."""
        ...


class CallSink(Protocol):
    """Where a grammar writes the calls that it reads."""

    runs: "RunReader | None"
    """Set while a value is read that takes many characters at once."""

    def start(self, name: str, close: Callable[[], str | None], call_id: str = "") -> None:
        """Begin a call; `close()` gives the rest of its arguments at the end of the output, None if
        they break off there.
        """
        ...

    def write(self, arguments: str) -> None:
        """Add JSON text to the arguments of the call."""
        ...

    def end(self, left: str = "") -> None:
        """End it; `left` was read but is not part of it."""
        ...

    def drop(self) -> None:
        """If this section had a call, what was read since is markup."""
        ...

    def is_tool(self, name: str) -> bool:
        """Whether the request has a tool of that name."""
        ...

    def begins_tool(self, text: str) -> bool:
        """Whether a name of the request's tools begins so."""
        ...

    def parameters(self, name: str) -> Collection[str]:
        """The known parameters of a tool."""
        ...

    def requires(self, name: str, parameter: str) -> bool:
        """Whether a call of the tool has to give the parameter; so does one without a schema."""
        ...

    def schema(self, name: str, parameter: str) -> object:
        """The JSON schema of a tool's parameter; None if it is not known."""
        ...

    def whole_schema(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of all arguments of a tool, to which references in it lead."""
        ...


def skip_space() -> Read[str]:
    """The first character that is not white space."""
    while (char := (yield)).isspace():
        pass
    return char


def literal(text: str, read: str = "") -> Read[None]:
    """Exactly `text`; `read` was read already, and may be anything."""
    yield from one_of((text,), read)


def one_of(texts: Sequence[str], read: str = "") -> Read[str]:
    """One of several texts, none the beginning of another; `read` was read already, and may be
    anything.
    """
    while read not in texts:
        if not any(text.startswith(read) for text in texts):
            raise NotACall(len(read))
        read += yield
    return read


def name_until(calls: CallSink, ends: str, first: str = "") -> Read[tuple[str, str]]:
    """The name of a function up to one of the characters `ends`, and that character. A name that
    no function should have is one if the request has it.
    """
    name = first
    while True:
        char = yield
        if char in ends and not calls.begins_tool((name + char).lstrip()):
            break
        name += char
        is_odd = char in _NOT_IN_NAMES and not char.isspace()
        if len(name) > MAX_NAME or (is_odd and not calls.begins_tool(name.lstrip())):
            raise NotACall
    name = name.strip()
    if not is_name(name) and not calls.is_tool(name):
        raise NotACall
    return name, char


def is_name(name: str) -> bool:
    """Whether a function may have this name: liberal, for tools come from many systems."""
    return 0 < len(name) <= MAX_NAME and _NOT_IN_NAMES.isdisjoint(name)


def read_arguments(calls: CallSink, name: str, stop: str, call_id: str = "") -> Read[str]:
    """A whole call whose arguments' `{` was just read; the stop if that ended it, else ""."""
    reader = JsonRepair("{", stop)
    calls.start(name, reader.close, call_id)
    calls.runs = reader
    calls.write(reader.take())
    while not reader.is_done:
        char = yield
        is_taken = reader.feed(char)
        calls.write(reader.take() if is_taken else reader.close_early())
        if not is_taken:
            calls.end(char)
            return char
    calls.end()
    return ""


def object_and_tag(calls: CallSink, name: str, tags: Sequence[str]) -> Read[str]:
    """A whole call whose arguments' `{` was just read, and the tag behind it, which is returned."""
    left = yield from read_arguments(calls, name, "<")
    tag = yield from one_of(tags, left or (yield from skip_space()))
    calls.drop()
    return tag
