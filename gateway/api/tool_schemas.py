"""A cache of the tools of requests.

Owns decoded tools by the bytes that clients sent, and their JSON in prompts. An agent repeats 40 KB
of tools with every turn, and without the cache they are half of the work on a request. Must not
know templates or requests.
"""

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import msgspec

from gateway.api.byte_lru import ByteLru

_MAX_BYTES: Final = 2 * 2**20
"""The bound on the bytes that clients sent; decoded tools take several times that."""

_MAX_FORMS: Final = 4
"""Forms of JSON that are cached per tool. A template uses one; a rare one lets a request choose."""


class JsonForm(NamedTuple):
    """The form in which a template writes JSON: arguments of `json.dumps`."""

    ensure_ascii: bool = False
    indent: int | None = None
    separators: tuple[str, str] | None = None
    sort_keys: bool = False


_PLAIN: Final = JsonForm()
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode_plain: Final = json.JSONEncoder(ensure_ascii=False).encode


def json_text(value: object, form: JsonForm = _PLAIN) -> str:
    """The text that `json.dumps` makes of a JSON value in this form."""
    return _encode_plain(value) if form == _PLAIN else json.dumps(value, **form._asdict())


class ToolSchema(dict[str, Any]):
    """A tool or its function, decoded from at most `num_bytes`; it must not be changed. Caches its
    JSON and the last answer of `holds`.
    """

    __slots__ = (
        "_found",
        "_texts",
        "function_name",
        "loaded",
        "num_bytes",
        "shown",
        "sources",
    )

    def __init__(self, fields: dict[str, Any], num_bytes: int) -> None:
        super().__init__(fields)
        self.num_bytes = num_bytes
        self._texts: dict[JsonForm, str] = {}
        self.function_name: str | None = None
        """Set once the name has been checked."""
        self._found: tuple[str, bool] | None = None
        self.shown: ToolSchema | None = None
        """Set once by `shown_tool`."""
        self.sources: dict[bool, object] = {}
        """The form of the tool's parameters that engines get, by whether the tool is strict."""
        self.loaded: ToolSchema | None = None
        """The tool without its mark, set once by `load_tools`."""

    def holds(self, text: str) -> bool:
        """Whether `text` occurs anywhere in the tool's JSON."""
        if self._found is None or self._found[0] != text:
            self._found = (text, text in self.text_in())
        return self._found[1]

    def text_in(self, form: JsonForm = _PLAIN) -> str:
        """`json_text` of the tool."""
        text = self._texts.get(form)
        if text is None:
            text = json_text(self, form)
            if len(self._texts) < _MAX_FORMS:
                self._texts[form] = text
        return text


def _num_bytes(raw: bytes, _: object) -> int:
    return len(raw)


def shown_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool as a model sees it: without `strict`, which is for the server. A model that was
    not trained with it answers differently if it sees it.
    """
    function = tool.get("function")
    if not isinstance(function, dict) or "strict" not in function:
        return tool
    rest = {key: value for key, value in function.items() if key != "strict"}
    if not isinstance(tool, ToolSchema):
        return {**tool, "function": rest}
    if tool.shown is None:
        own = ToolSchema(rest, tool.num_bytes)
        tool.shown = ToolSchema({**tool, "function": own}, tool.num_bytes)
    return tool.shown


class ToolSchemas:
    """Tools and lists of tools by their bytes; at most 2 MiB of either. A thread beside the event
    loop reads the tools of large bodies, so the class needs a `guard`.
    """

    def __init__(self) -> None:
        self.guard: AbstractContextManager[object] = nullcontext()
        """Surrounds each access, where several threads read tools."""
        self._known: ByteLru[bytes, ToolSchema] = ByteLru(_MAX_BYTES, _num_bytes)
        self._lists: ByteLru[bytes, tuple[ToolSchema, ...]] = ByteLru(_MAX_BYTES, _num_bytes)

    def read_all(self, raw: bytes) -> list[ToolSchema]:
        """The tools in `raw`, a JSON array of objects. Raises `msgspec.MsgspecError` for anything
        else.
        """
        with self.guard:
            tools = self._lists.get(raw)
        if tools is None:
            tools = tuple(self.read(bytes(tool)) for tool in _items(raw))
            with self.guard:
                self._lists.put([(raw, tools)])
        return list(tools)

    def read(self, raw: bytes) -> ToolSchema:
        """The tool in `raw`, a JSON object. Raises `msgspec.MsgspecError` for anything else."""
        with self.guard:
            tool = self._known.get(raw)
        if tool is None:
            fields = msgspec.json.decode(raw, type=dict[str, Any])
            if isinstance(fields.get("function"), dict):
                fields["function"] = ToolSchema(fields["function"], len(raw))
            tool = ToolSchema(fields, len(raw))
            with self.guard:
                self._known.put([(raw, tool)])
        return tool
