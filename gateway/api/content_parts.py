"""Parts of messages, as all APIs and their clients write them -> parts of a chat.

Owns what a part is wherever it stands: a text by any name, a picture, a file, a sound, a document,
a result of a search, a reference to a tool; and what calls and results of Anthropic's API are in a
chat. Must not know requests.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from gateway.api.call_ids import from_client
from gateway.api.deferred_tools import REFERENCE, reference
from gateway.api.errors import invalid
from gateway.api.request import text_of_result
from gateway.api.text_files import heading, named_text, text_of_file

TEXTS: Final = frozenset({"text", "input_text", "output_text"})
"""Types of parts that are a text."""
_IN_RESULTS: Final = frozenset({"text", REFERENCE})
"""Types of parts that stay in the result of a call."""

_encode: Final = msgspec.json.Encoder().encode

Part = dict[str, Any]


def kind_of(part: Part) -> object:
    """The type of a part. A part with a text needs no `type`."""
    kind = part.get("type")
    return "text" if kind is None and isinstance(part.get("text"), str) else kind


def texts_of(parts: Iterable[object]) -> list[str]:
    """The texts of the parts that are text."""
    found = [
        part.get("text")
        for part in parts
        if isinstance(part, dict) and isinstance(kind := kind_of(part), str) and kind in TEXTS
    ]
    return [text for text in found if isinstance(text, str)]


def parts_of(given: object) -> list[Part] | None:
    """The parts of a chat for a part of any API; a string is a text. None for anything else."""
    if isinstance(given, str):
        return [_text(given)]
    kind = kind_of(given) if isinstance(given, dict) else None
    read = _READERS.get(kind) if isinstance(kind, str) else None
    return read(given) if read is not None and isinstance(given, dict) else None


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _text_in(field: str) -> Callable[[Part], list[Part] | None]:
    def read(part: Part) -> list[Part] | None:
        text = part.get(field)
        return [_text(text)] if isinstance(text, str) else None

    return read


def _own(part: Part) -> list[Part]:
    return [part]


def _image(block: Part) -> list[Part]:
    return [{"type": "image_url", "image_url": {"url": _url(block)}}]


def _input_image(part: Part) -> list[Part]:
    named = {"url": part.get("image_url"), "detail": part.get("detail")}
    url = {name: value for name, value in named.items() if value is not None}
    return [{"type": "image_url", "image_url": {"url": None, **url}}]


def _chat_file(part: Part) -> list[Part]:
    file = part.get("file")
    return [_file(file, part) if isinstance(file, dict) else part]


def _input_file(part: Part) -> list[Part]:
    file = {name: value for name, value in part.items() if name != "type"}
    return [_file(file, {"type": "file", "file": file})]


def _found(block: Part) -> list[Part]:
    named = heading(Title=block.get("title"), Source=block.get("source"))
    inner = block.get("content")
    return [_text("\n".join([*named, *texts_of(inner if isinstance(inner, list) else ())]))]


def _reference(part: Part) -> list[Part] | None:
    name = part.get("tool_name")
    return [reference(name)] if isinstance(name, str) else None


def _file(file: Part, part: Part) -> Part:
    """The text of a file of text, else `part`."""
    text = named_text(file)
    return part if text is None else _text(text)


def _document(block: Part) -> list[Part]:
    """The text of a document under its title and context, else a file."""
    source, title = block.get("source"), block.get("title")
    context = heading(Context=block.get("context"))
    named = [*heading(Title=title), *context]
    if isinstance(source, dict) and source.get("type") == "content":
        inner = source.get("content")
        inner = [inner] if isinstance(inner, str) else inner
        found = map(parts_of, inner if isinstance(inner, list) else ())
        return [*map(_text, named), *(part for parts in found for part in parts or ())]
    if isinstance(source, dict) and source.get("type") == "text":
        text: str | None = str(source.get("data", ""))
    else:
        text = text_of_file(_url(block), title)
    if text is not None:
        return [_text("\n".join([*named, text]))]
    file = {"filename": str(title or "document"), "file_data": _url(block)}
    return [*map(_text, context), {"type": "file", "file": file}]


def _url(block: Part) -> str:
    """The picture or file in `block`, as a URL."""
    source = block.get("source")
    if not isinstance(source, dict):
        return ""
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source.get("url", ""))


_READERS: Final[dict[str, Callable[[Part], list[Part] | None]]] = {
    **dict.fromkeys(TEXTS, _text_in("text")),
    "refusal": _text_in("refusal"),
    "image_url": _own,
    "input_audio": _own,
    "image": _image,
    "input_image": _input_image,
    "file": _chat_file,
    "input_file": _input_file,
    "document": _document,
    "search_result": _found,
    REFERENCE: _reference,
}
READ: Final = frozenset(_READERS)
"""Types of parts that `parts_of` reads."""


def call_of(block: Part, where: str) -> Part:
    """The call of a chat for a `tool_use`. Raises `ApiError` 400 for one without a name."""
    name, given = block.get("name"), block.get("input")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}.name", f"'{where}.name' must be a string.")
    # A call that was cut short may have been kept as text; no history makes a request fail.
    arguments = given if isinstance(given, str) else _encode(given or {}).decode()
    function = {"name": name, "arguments": arguments}
    return {"id": from_client(block.get("id")), "type": "function", "function": function}


def user_messages(
    blocks: list[Part], where: str, read: Callable[[object, str], list[Part]]
) -> Iterator[dict[str, Any]]:
    """The results of calls, each a message, and what the user says, in their order; `read` has the
    parts for a block at a place. Pictures in results come last, as the user's: results of the chat
    API are text.
    """
    said: list[Part] = []
    pictures: list[Part] = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        if not _is_result(block):
            said += read(block, place)
            continue
        if said:
            yield {"role": "user", "content": _content(said)}
            said = []
        content, others = _result(block, f"{place}.content", read)
        call_id = from_client(block.get("tool_use_id"))
        yield {"role": "tool", "tool_call_id": call_id, "content": content}
        pictures += others
    is_said = not any(map(_is_result, blocks))
    if is_said or said or pictures:
        yield {"role": "user", "content": _content(pictures + said)}


def _is_result(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _result(
    block: Part, where: str, read: Callable[[object, str], list[Part]]
) -> tuple[str | list[Part], list[Part]]:
    """The text of a call's result, or parts with references to tools; and all other parts."""
    inner = block.get("content")
    given = inner if isinstance(inner, list) else ()
    parts = [part for one in given for part in read(one, where)]
    said = [part for part in parts if part["type"] in _IN_RESULTS]
    others = [part for part in parts if part["type"] not in _IN_RESULTS]
    if any(part["type"] != "text" for part in said):
        return said, others
    texts = "\n".join(part["text"] for part in said)
    text = texts if isinstance(inner, list) else text_of_result(inner)
    if not text and block.get("is_error"):
        text = "error"
    return text, others


def _content(parts: list[Part]) -> str | list[Part]:
    if not parts:
        return ""
    only = parts[0] if len(parts) == 1 else {}
    return only["text"] if only.get("type") == "text" else parts
