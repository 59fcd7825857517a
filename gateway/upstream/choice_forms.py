"""The choices of a chat's answer in the form of another answer.

Owns what is read of a chunk without a delta, and of a whole answer without a message: some servers
put a message, or the text of a raw completion, in the place of either. Must not know streams.
"""

from typing import Any, Final

import msgspec

from gateway.upstream.sse import data_of, tells_error

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def with_deltas(event: bytes, *, counts: bool) -> bytes:
    """The chunk `event` with a delta in each choice, and without an error in which nothing is. A
    message or text in the place of a delta is one if it `counts`; else it repeats at the end what
    deltas said before.
    """
    chunk = _decode(data_of(event))
    is_changed = chunk.get("error") is not None and not tells_error(chunk.pop("error"))
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict) or isinstance(choice.get("delta"), dict):
            continue
        said = _said_in(choice, "message") if counts else None
        choice.pop("message", None)
        choice.pop("text", None)
        choice["delta"] = said or {}
        is_changed = True
    return b"data: " + _encode(chunk) + b"\n\n" if is_changed else event


def give_message(choice: object) -> bool:
    """Put a message into a whole choice that has a delta or a text instead; False if it has one."""
    if not isinstance(choice, dict) or isinstance(choice.get("message"), dict):
        return False
    said = _said_in(choice, "delta")
    if said is None:
        return False
    choice.pop("delta", None)
    choice.pop("text", None)
    choice["message"] = {"role": "assistant", **said}
    return True


def _said_in(choice: dict[str, Any], name: str) -> dict[str, Any] | None:
    """What a choice says in its field `name`, or as a text."""
    said, text = choice.get(name), choice.get("text")
    if isinstance(said, dict):
        return said
    return {"content": text} if isinstance(text, str) else None
