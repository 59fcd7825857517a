"""The tools of requests, which hardly ever change.

Owns a memory of tools by the bytes that clients sent, and how a tool is written into a prompt: an
agent repeats 40 KB of them with every turn, and reading and writing them was half of the work on
it. Must not know templates or requests.
"""

import json
from typing import Any, Final, NamedTuple

import msgspec

from gateway.api.byte_lru import ByteLru

MAX_BYTES: Final = 2 * 2**20
"""Of tools as clients write them, and of lists of them; what is kept takes several times that."""

_MAX_FORMS: Final = 4
"""A template writes in one; only an odd one lets the request decide on the indentation."""


class JsonForm(NamedTuple):
    """How a template wants its JSON, in the words of `json.dumps`."""

    ensure_ascii: bool = False
    indent: int | None = None
    separators: tuple[str, str] | None = None
    sort_keys: bool = False


_PLAIN: Final = JsonForm()
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode_plain: Final = json.JSONEncoder(ensure_ascii=False).encode


def json_text(value: object, form: JsonForm = _PLAIN) -> str:
    """What `json.dumps` makes of plain JSON in this form."""
    return _encode_plain(value) if form == _PLAIN else json.dumps(value, **form._asdict())


class ToolSchema(dict[str, Any]):
    """A tool or its function, as decoded from at most `num_bytes`; nobody may change it. Remembers
    its texts, and what has been asked about them.
    """

    __slots__ = ("_found", "_texts", "function_name", "num_bytes")

    def __init__(self, fields: dict[str, Any], num_bytes: int) -> None:
        super().__init__(fields)
        self.num_bytes = num_bytes
        self._texts: dict[JsonForm, str] = {}
        self.function_name: str | None = None
        """Kept by who has checked it."""
        self._found: tuple[str, bool] | None = None

    def holds(self, text: str) -> bool:
        """Whether `text` is anywhere in the tool; the last answer is remembered."""
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


class ToolSchemas:
    """The tools that were read before."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._known: ByteLru[bytes, ToolSchema] = ByteLru(max_bytes, _num_bytes)
        self._lists: ByteLru[bytes, tuple[ToolSchema, ...]] = ByteLru(max_bytes, _num_bytes)

    def read_all(self, raw: bytes) -> list[ToolSchema]:
        """The tools in `raw`, a JSON array of objects; an agent's are alike to the byte. Raises
        `msgspec.MsgspecError` for anything else.
        """
        tools = self._lists.get(raw)
        if tools is None:
            tools = tuple(self.read(bytes(tool)) for tool in _items(raw))
            self._lists.put(raw, tools)
        return list(tools)

    def read(self, raw: bytes) -> ToolSchema:
        """The tool in `raw`, a JSON object. Raises `msgspec.MsgspecError` for anything else."""
        tool = self._known.get(raw)
        if tool is None:
            fields = msgspec.json.decode(raw, type=dict[str, Any])
            if isinstance(fields.get("function"), dict):
                fields["function"] = ToolSchema(fields["function"], len(raw))
            tool = ToolSchema(fields, len(raw))
            self._known.put(raw, tool)
        return tool
