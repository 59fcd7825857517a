"""The choices of an answer in the form of another answer.

Owns what is read of a chunk without a delta, of a whole answer without a message, and of the text
of a chat that is no text: some servers put a message, or the text of a raw completion, in the place
of either, some answer a raw prompt as a chat, and some write a content in parts. Must not know
streams.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gateway.upstream.sse import data_of, event_of, tells_error
from gateway.upstream.thoughts import thought_of
from protocol.reading import read_object

_OTHER_CONTENT: Final = re.compile(rb'"content"\s*:\s*[^"\sn]')
_NULL_CHOICES: Final = re.compile(rb'"choices"\s*:\s*null')
_PLACES: Final = ("delta", "message")

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode

Fields = dict[str, Any]


def with_deltas(event: bytes, *, counts: bool) -> bytes:
    """The chunk `event` with a delta in each choice, whose content is a text, and without an error
    in which nothing is. A message or text in the place of a delta is one if it `counts`; else it
    repeats at the end what deltas said before.
    """

    def give_delta(choice: Fields) -> bool:
        if isinstance(delta := choice.get("delta"), dict):
            return give_text_content(delta)
        said = _said_in(choice, "message") if counts else None
        choice.pop("message", None)
        choice.pop("text", None)
        choice["delta"] = said or {}
        give_text_content(choice["delta"])
        return True

    return _with_choices(event, give_delta)


def with_texts(event: bytes) -> bytes:
    """The chunk `event` of a raw completion with a text in each choice."""
    return _with_choices(event, give_text)


def _with_choices(event: bytes, change: Callable[[Fields], bool]) -> bytes:
    chunk = _decode(data_of(event))
    is_changed = chunk.get("error") is not None and not tells_error(chunk.pop("error"))
    choices = chunk.get("choices")
    if choices is None and isinstance(chunk.get("usage"), dict):
        chunk["choices"], is_changed = [], True
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            is_changed |= change(choice)
    return event_of(chunk) if is_changed else event


def give_message(choice: object) -> bool:
    """Put a message whose content is a text into a whole choice of a chat. Returns whether the
    choice was changed.
    """
    if not isinstance(choice, dict):
        return False
    if isinstance(message := choice.get("message"), dict):
        return give_text_content(message)
    said = _said_in(choice, "delta")
    if said is None:
        return False
    choice.pop("delta", None)
    choice.pop("text", None)
    choice["message"] = {"role": "assistant", **said}
    give_text_content(choice["message"])
    return True


def give_text(choice: object) -> bool:
    """Put a text into a choice of a raw completion that has a message or a delta of a chat instead.
    Returns whether the choice was changed.
    """
    if not isinstance(choice, dict) or isinstance(choice.get("text"), str):
        return False
    said = next((one for name in _PLACES if isinstance(one := choice.get(name), dict)), None)
    if said is None or said.get("tool_calls"):
        return False
    for name in _PLACES:
        choice.pop(name, None)
    choice["text"] = text_of(said.get("content"))
    return True


def has_null_choices(event: bytes) -> bool:
    """Whether the choices of a chunk are null: clients fail where they walk through them."""
    if _NULL_CHOICES.search(event) is None:
        return False
    return (read_object(data_of(event)) or {}).get("choices") is None


def may_have_parts(event: bytes) -> bool:
    """Whether a content in `event` may be anything but a text."""
    return _OTHER_CONTENT.search(event) is not None


def give_text_content(said: Fields) -> bool:
    """Make the content of a message or delta a text, as clients of chats read it, and its parts
    that are thoughts a field of their own. A content with a picture or a sound stays as it is.
    Returns whether `said` was changed.
    """
    content = said.get("content")
    if content is None or isinstance(content, str):
        return False
    if isinstance(content, list) and not all(map(_is_readable, content)):
        return False
    if thought := thought_of({"content": content}):
        said.setdefault("reasoning_content", thought)
    said["content"] = text_of(content)
    return True


def text_of(content: object) -> str:
    """The text of a message's content, which some servers send in parts, or as one of them. What
    else JSON has, as the object that the client asked for, is its own text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(map(_text_of_part, content))
    if isinstance(content, dict) and ("text" in content or "type" in content):
        return _text_of_part(content)
    return _encode(content).decode()


def _text_of_part(part: object) -> str:
    if isinstance(part, dict):
        text = part.get("text")
        return text if isinstance(text, str) else text_of(text) if isinstance(text, dict) else ""
    return part if isinstance(part, str) else ""


def _is_readable(part: object) -> bool:
    """Whether nothing is lost of a part if only its text and its thoughts are kept."""
    return isinstance(part, str) or (
        isinstance(part, dict) and (isinstance(part.get("text"), str) or "thinking" in part)
    )


def _said_in(choice: Fields, name: str) -> Fields | None:
    """The content of a choice in its field `name`, or in its text."""
    said, text = choice.get(name), choice.get("text")
    if isinstance(said, dict):
        return said
    return {"content": text} if isinstance(text, str) else None
