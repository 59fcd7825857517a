"""The long texts of a body, found without decoding them.

Owns which parts of a body are surely in its prompt: a raw prompt, and what users say. Decoding 28
MB holds Python's lock for 40 ms and rendering them for 130, skipping through them for 10, so a
prompt that cannot fit is refused by what this finds. Must not know models, windows or tokens.

Left out is what a prompt may leave out: answers (a template may drop their reasoning), results of
tools (a client may ask for their removal), and all in front of a summary of the conversation.
"""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from protocol.reading import FAULTS

LONG_BODY_BYTES: Final = 2**19
"""Shorter bodies are decoded and rendered with less than 5 ms between two switches of threads."""

PromptField = Literal["messages", "input", "prompt"]
"""The field of a body that has the prompt."""

_MAX_NAME_CHARS: Final = 1024


class LongTexts(NamedTuple):
    """`texts` are JSON strings with their quotes, as they stand in the body; `num_ids` counts the
    token ids of a raw prompt.
    """

    model: str
    texts: list[memoryview]
    num_ids: int = 0


class _Part(msgspec.Struct):
    type: str = "text"
    text: msgspec.Raw = msgspec.Raw()


class _Turn(msgspec.Struct):
    type: str = "message"
    role: str = ""
    content: msgspec.Raw = msgspec.Raw()


class _Chat(msgspec.Struct):
    model: str
    messages: list[_Turn]


class _Responses(msgspec.Struct):
    model: str
    input: msgspec.Raw


class _Completion(msgspec.Struct):
    model: str
    prompt: msgspec.Raw


_chat: Final = msgspec.json.Decoder(_Chat).decode
_responses: Final = msgspec.json.Decoder(_Responses).decode
_completion: Final = msgspec.json.Decoder(_Completion).decode
_turns: Final = msgspec.json.Decoder(list[_Turn]).decode
_parts: Final = msgspec.json.Decoder(list[_Part]).decode

_TEXT: Final = frozenset({"text", "input_text"})
_SUMMARY: Final = "compaction"


def long_texts(body: bytes, field: PromptField) -> LongTexts | None:
    """The texts in the prompt of `body`, which is for an API with this field; None for a body that
    is not of that shape.
    """
    num_ids = 0
    try:
        if field == "prompt":
            completion = _completion(body)
            model, texts = completion.model, list(_strings(completion.prompt))
            num_ids = 0 if texts else _num_ids(bytes(completion.prompt))
        elif field == "input":
            asked = _responses(body)
            model, texts = asked.model, list(_strings(asked.input))
            if not texts:
                texts = _said(_turns(asked.input))
        else:
            chat = _chat(body)
            model, texts = chat.model, _said(chat.messages)
    except FAULTS:
        return None
    return LongTexts(model, texts, num_ids) if len(model) <= _MAX_NAME_CHARS else None


def _num_ids(value: bytes) -> int:
    """How many numbers a list has, 0 if it has other values."""
    is_flat = value.startswith(b"[") and value.find(b"[", 1) < 0
    return value.count(b",") + 1 if is_flat and value.find(b'"') < 0 else 0


def _said(turns: list[_Turn]) -> list[memoryview]:
    """What users say, behind the last summary."""
    found: list[memoryview] = []
    for turn in turns:
        if turn.type == _SUMMARY:
            found.clear()
        texts = list(_strings(turn.content))
        if bytes(memoryview(turn.content)[:1]) == b"[":
            parts = _parts(turn.content)
            if any(part.type == _SUMMARY for part in parts):
                found.clear()
            texts = [text for part in parts if part.type in _TEXT for text in _strings(part.text)]
        if turn.role == "user":
            found += texts
    return found


def _strings(raw: msgspec.Raw) -> Iterator[memoryview]:
    """The value, if it is a string."""
    value = memoryview(raw)
    if bytes(value[:1]) == b'"':
        yield value
