"""The tool calls of one choice, put together from the parts that servers send.

Owns which part belongs to which call, and what a client gets instead of parts that it could not
read: every call has a number, an id of its own, a name in its first part, and arguments. Servers
leave out the index or repeat it, send ids late, empty or twice (also in a later turn), the name
behind the arguments or in pieces, no arguments at all, or an empty object in front of them. Must
not know chunks or APIs.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any, Final, final

import msgspec

from gateway.api import is_numbered, numbered_on
from gateway.upstream.mended_json import mended
from protocol.reading import objects_in, read_json, read_object

_EMPTY_CHARS: Final = len("{}")
NAMELESS: Final = "sent a tool call without a name"
MAX_CALLS: Final = 1024
MAX_ARGUMENTS_CHARS: Final = 2**23
"""Arguments beyond this length pass, but whether they are whole is no longer checked."""

_JSON_MARK: Final = re.compile(r'"(?:[^"\\]|\\.)*("|\\?\Z)|[\[\]{}]', re.DOTALL)

_encode: Final = msgspec.json.Encoder().encode


class CallPart(msgspec.Struct, frozen=True):
    """A part for the client. The first part of a call has its `id` and `name`, later ones have
    neither. `extra` are fields of the call that Herma does not know.
    """

    number: int
    arguments: str
    id: str | None = None
    name: str | None = None
    extra: dict[str, Any] = {}


class CallIds:
    """Gives ids that no call of the conversation has. `raw` is the request."""

    def __init__(self, raw: Mapping[str, Any] | None = None) -> None:
        self._raw = raw or {}
        self._taken: set[str] | None = None
        self.tools: set[str] | None = None
        """The names of the request's tools, once one was asked for."""
        self._seed = b""

    def unique(self, given: str, position: int) -> str:
        """`given` if no other call has it, else a new id, the same for the same request. Ids that
        end in `:NUMBER` go on with the next number.
        """
        taken = self._known()
        if not given or given in taken:
            given = numbered_on(given, taken) if is_numbered(given) else self._new(position)
        taken.add(given)
        return given

    def begins_name(self, text: str) -> bool:
        """Whether `text` is no tool of the request, but the beginning of one's name."""
        names = self.tools
        if names is None:
            names = self.tools = set()
            tools = self._raw.get("tools")
            for tool in tools if isinstance(tools, list) else ():
                function = tool.get("function") if isinstance(tool, dict) else None
                name = function.get("name") if isinstance(function, dict) else None
                if isinstance(name, str):
                    names.add(name)
        return text not in names and any(map(str.startswith, names, repeat(text)))

    def name_of(self, text: str) -> str:
        """The tool of the request that `text` names. Some servers leave the namespace of a model's
        format, or white space, about a name.
        """
        self.begins_name(text)
        tools = self.tools or ()
        if text in tools:
            return text
        bare = text.strip()
        for name in (bare, bare.removeprefix("functions."), bare.removeprefix("tools.")):
            if name in tools:
                return name
        return text

    def has_fields(self, name: str) -> bool:
        """Whether a tool of the request has fields: arguments may follow an empty object then."""
        name = self.name_of(name)
        for tool in objects_in(self._raw.get("tools")):
            function = tool.get("function")
            if isinstance(function, dict) and function.get("name") == name:
                schema = function.get("parameters")
                return isinstance(schema, dict) and bool(schema.get("properties"))
        return False

    def may_name(self, text: str) -> bool:
        """Whether `text` is a tool of the request, or the beginning of one's name."""
        return self.begins_name(text) or text in (self.tools or ())

    def _known(self) -> set[str]:
        if self._taken is None:
            self._taken = set(_ids_of(self._raw.get("messages")))
        return self._taken

    def _new(self, position: int) -> str:
        if not self._seed:
            messages = self._raw.get("messages")
            last = messages[-1] if isinstance(messages, list) and messages else None
            count = len(messages) if isinstance(messages, list) else 0
            self._seed = _encode([count, last])
        while True:
            named = self._seed + b"\0%d" % position
            found = f"call_{hashlib.blake2b(named, digest_size=12).hexdigest()}"
            if found not in self._known():
                return found
            position += MAX_CALLS


def _ids_of(messages: object) -> Iterable[str]:
    for message in messages if isinstance(messages, list) else ():
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and isinstance(call_id := call.get("id"), str):
                yield call_id


@final
class _Call:
    __slots__ = (
        "arguments",
        "extra",
        "index",
        "is_quoted",
        "name",
        "num_chars",
        "number",
        "source_id",
    )

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.source_id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.num_chars = 0
        self.extra: dict[str, Any] = {}
        self.number: int | None = None
        self.is_quoted = False
        """Whether the arguments began as a JSON string, which is not whole yet."""

    @property
    def text(self) -> str:
        if len(self.arguments) > 1:
            self.arguments = ["".join(self.arguments)]
        return self.arguments[0] if self.arguments else ""

    def replace(self, text: str) -> None:
        self.arguments, self.num_chars = [text], len(text)

    def add(self, text: str) -> None:
        if text and self.num_chars <= MAX_ARGUMENTS_CHARS:
            self.num_chars += len(text)
            self.arguments.append(text)


class CallParts:
    """The calls of one choice."""

    def __init__(self, ids: CallIds | None = None) -> None:
        self._ids = ids or CallIds()
        self._calls: list[_Call] = []
        self.num_begun = 0
        self._held: _Call | None = None
        """A call whose arguments are an empty object that the client has not got yet: behind it
        some servers send the arguments (LiteLLM, proxies of Bedrock's and Anthropic's models).
        """
        self.begun: list[tuple[str, dict[str, Any]]] = []
        """The id and the unknown fields of each call that has begun."""

    def take(self, parts: object) -> list[CallPart]:
        """What the client gets for `parts`, the `tool_calls` of a delta or a message."""
        if isinstance(parts, str):
            parts = read_json(parts)  # some servers encode them twice
        parts = [parts] if isinstance(parts, dict) else parts
        given = (
            [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        )
        return [
            found for at, part in enumerate(given) for found in self._take(part, at, len(given))
        ]

    def add_arguments(self, number: int, text: str) -> None:
        """More arguments of a call that the client has got already."""
        for call in self._calls:
            if call.number == number:
                call.add(text)

    def is_whole(self, number: int) -> bool:
        """Whether nothing is missing of the arguments of a call that the client has got, as far as
        can be told.
        """
        found = (call.text for call in self._calls if call.number == number and not call.is_quoted)
        text = next(found, "")
        if len(text) > MAX_ARGUMENTS_CHARS:
            return True
        text = text.strip()
        may_be = text.endswith(("}", "]")) or not text.startswith(("{", "["))
        return bool(text) and may_be and not breaks_off(text)

    def is_open(self, number: int) -> bool:
        """Whether a part with this number as its index, and with arguments only, goes on with the
        call of that number, whose arguments have begun as an object.
        """
        return any(
            call.number == number == call.index
            and call.num_chars
            and not (call.is_quoted or call is self._held)
            for call in self._calls[-1:]
        )

    def end(self) -> list[CallPart]:
        """The rest for the client, at the end of the answer: `{}` for calls without arguments."""
        rest = []
        for call in self._calls:
            if call.name and not call.text.strip():
                call.add("{}")
                number = call.number
                rest.append(self._begin(call) if number is None else CallPart(number, "{}"))
            elif call.is_quoted and call.number is not None:
                call.is_quoted = False
                rest.append(CallPart(call.number, call.text))
        return self._taken_held() + rest

    def flaw(self) -> str:
        """Why a client could not make the calls of an answer that is over; "" if it can: the
        arguments of one break off, or it has no name.
        """
        for call in self._calls:
            text = call.text
            if len(text) <= MAX_ARGUMENTS_CHARS and breaks_off(text):
                return "cut a tool call in its arguments"
            if text and not call.name and not text.isspace():
                return NAMELESS
        return ""

    @property
    def is_waiting(self) -> bool:
        """Whether the arguments of the latest call wait for their end."""
        return any(call.is_quoted for call in self._calls[-1:])

    @property
    def is_nameless(self) -> bool:
        """Whether parts of calls came, and none with a name."""
        return bool(self._calls) and not any(call.name for call in self._calls)

    def _take(self, part: dict[str, Any], at: int, count: int) -> list[CallPart]:
        given = part.get("function")
        function = given if isinstance(given, dict) else part
        call_id, name = part.get("id"), function.get("name")
        call_id = call_id if isinstance(call_id, str) else ""
        name = name if isinstance(name, str) else ""
        arguments = _arguments(function.get("arguments"))
        if not arguments and "arguments" not in function:
            arguments = _other_arguments(function)
        place = at if count > 1 else None
        call = self._call_of(part.get("index"), call_id, name, arguments, place)
        if call is None:
            return []
        call.source_id = call.source_id or call_id
        if call.name and name and self._goes_on(call, call_id, name):
            call.name += name
        else:
            call.name = call.name or name
        call.extra |= {key: value for key, value in part.items() if key not in _KNOWN}
        if call.number is not None:
            return self._more(call, call.number, arguments)
        call.add(arguments)
        if not call.name or (not call.text and self._ids.begins_name(call.name)):
            return []  # the rest of the name may follow
        if self._held is None:
            return [self._begin(call)]
        return [*self._taken_held(), self._begin(call)]

    def _more(self, call: _Call, number: int, arguments: str) -> list[CallPart]:
        """More arguments of a call that has begun."""
        if len(arguments) == call.num_chars and _is_whole(arguments) and arguments == call.text:
            return []  # the server sent the whole arguments again
        is_first = not call.num_chars
        if call is self._held and arguments.strip():
            self._held, is_first = None, True
            if not arguments.lstrip().startswith("{"):
                arguments = call.text + arguments
            call.replace("")
        call.add(arguments)
        if is_first and call.num_chars == _EMPTY_CHARS and self._may_be_none(call):
            self._held = call
            return []
        if call.is_quoted or (is_first and arguments.startswith('"')):
            arguments = _unquoted(call)
        return [CallPart(number, arguments)] if arguments else []

    def _begin(self, call: _Call) -> CallPart:
        """The first part of a call for the client."""
        call.number = self.num_begun
        self.num_begun += 1
        own = self._ids.unique(call.source_id, call.number)
        self.begun.append((own, call.extra))
        name, tools = call.name, self._ids.tools
        if tools is None or (tools and name not in tools):
            name = self._ids.name_of(name)
        text = _unquoted(call) if call.text.startswith('"') else call.text
        if call.num_chars == _EMPTY_CHARS and self._may_be_none(call):
            self._held, text = call, ""
        return CallPart(call.number, text, own, name, dict(call.extra))

    def _may_be_none(self, call: _Call) -> bool:
        """Whether the arguments so far are an empty object that others may follow."""
        return call.text == "{}" and self._ids.has_fields(call.name)

    def _taken_held(self) -> list[CallPart]:
        """The empty object that was the arguments after all, if one is held."""
        held, self._held = self._held, None
        return [] if held is None or held.number is None else [CallPart(held.number, held.text)]

    def _goes_on(self, call: _Call, call_id: str, name: str) -> bool:
        """Whether `name` is a further piece of the name of `call`."""
        if call.number is not None or not (call.name and name):
            return False
        joined = call.name + name
        is_same = call_id in ("", call.source_id)
        return is_same and self._ids.may_name(joined)

    def _call_of(
        self, index: object, call_id: str, name: str, arguments: str, at: int | None
    ) -> _Call | None:
        """The call that a part belongs to, which may be a new one; None for one call too many."""
        if isinstance(index, str) and index.isdecimal():
            index = int(index[:4])
        number = index if isinstance(index, int) and not isinstance(index, bool) else None
        found = self._latest(number, call_id, at)
        if found is not None and (
            (found is self._held and call_id and (call_id, name) == (found.source_id, found.name))
            or not _is_another(found, call_id, name, arguments)
            or self._goes_on(found, call_id, name)
        ):
            return found
        if len(self._calls) >= MAX_CALLS:
            return None
        self._calls.append(_Call(number))
        return self._calls[-1]

    def _latest(self, number: int | None, call_id: str, at: int | None) -> _Call | None:
        """The last call with that index; without an index that with the id, else the last one."""
        calls = self._calls
        if number is not None:
            calls = [call for call in calls if call.index == number]
        elif call_id:
            same = [call for call in calls if call.source_id == call_id]
            calls = same or calls[-1:]
        elif at is not None and at < len(calls):
            calls = calls[at : at + 1]
        return calls[-1] if calls else None


_OTHER_ARGUMENTS: Final = ("input", "parameters")
"""Where servers put an object of arguments that forward other APIs' calls as they are: Anthropic's
name, and that of the calls in Llama's format.
"""
_KNOWN: Final = frozenset(
    {"index", "id", "type", "function", "name", "arguments", *_OTHER_ARGUMENTS}
)


def _is_another(call: _Call, call_id: str, name: str, arguments: str) -> bool:
    """Whether a part begins another call than `call`, which is in its place. A name alone begins
    one when the arguments of `call` are whole: some servers repeat the name in every part. Others
    give every part an id of its own, or send a call once more, whole or without its arguments.
    """
    if call_id and call.source_id and call_id != call.source_id:
        return bool(name) or _is_whole(call.text)
    if not name or not call.name:
        return False
    if name != call.name and not call_id:
        return True
    is_repeated = bool(call_id) and arguments in ("", call.text)
    return _is_whole(call.text) and not is_repeated


def _unquoted(call: _Call) -> str:
    """What the client gets of arguments that came in a JSON string: the object in the string,
    once it is whole.
    """
    text = call.text
    may_end = text.rstrip().endswith('"') and len(text) > 1
    is_whole = may_end and isinstance(read_json(text), str)
    call.is_quoted = not is_whole and len(text) <= MAX_ARGUMENTS_CHARS
    if call.is_quoted:
        return ""
    found = object_in(text) or text
    call.replace(found)
    return found


def _other_arguments(function: Mapping[str, Any]) -> str:
    """The arguments of a call under another name."""
    found = (function.get(name) for name in _OTHER_ARGUMENTS)
    return next((_arguments(one) for one in found if isinstance(one, dict)), "")


def _arguments(value: object) -> str:
    if not isinstance(value, str):
        # PHP writes an empty object as a list; another list is the model's fault, and no object.
        return _encode(value).decode() if value or isinstance(value, dict) else ""
    is_twice = value[:_EMPTY_CHARS] == "{}" and value[_EMPTY_CHARS:].lstrip().startswith("{")
    return value[_EMPTY_CHARS:] if is_twice else value


def _is_whole(text: str) -> bool:
    """Whether `text` is a JSON object."""
    if not text.rstrip().endswith("}"):
        return False
    return read_object(text) is not None


def object_in(text: str) -> str | None:
    """The JSON object that `text` stands for: itself, `{}` for null, nothing or `[]`, which is how
    PHP writes it, the object in a JSON string, as some servers encode arguments twice, and JSON
    that is almost right. None for anything else.
    """
    if _is_whole(text):
        return text
    if text.strip() in {"", "null", "[]"}:
        return "{}"
    if (inner := read_json(text)) is None:
        readable = mended(text.encode()) or b""
        return readable.decode() if _is_whole(readable.decode()) else None
    return inner if isinstance(inner, str) and _is_whole(inner) else None


def is_readable(text: str) -> bool:
    """Whether clients read `text` as a JSON object. They take half a character and numbers without
    a bound, which `object_in` writes anew.
    """
    try:
        return isinstance(json.loads(text, parse_constant=_no_json), dict)
    except (ValueError, RecursionError):
        return False


def _no_json(name: str) -> None:
    raise ValueError(name)


def breaks_off(text: str) -> bool:
    """Whether `text` is the beginning of a JSON object or list without its end. Other text that is
    no JSON does not count: it is all that the model wrote.
    """
    if not text.lstrip().startswith(("{", "[")) or _is_whole(text):
        return False
    depth = 0
    for mark in _JSON_MARK.finditer(text):
        if mark[0].startswith('"'):
            if mark[1] != '"':
                return True
        else:
            depth += 1 if mark[0] in "{[" else -1
    return depth > 0
