"""The heads of chunks in a stream that has some of ours and some of another server.

Owns that all chunks of a stream have one id, time and model, and each choice one role: clients keep
those of the first chunk, and the openai package for Python joins roles as it joins text. Must not
know who answers, nor when a chunk is sent.
"""

from collections.abc import Mapping
from typing import Any, Final

from gateway.upstream.sse import data_of, event_of, split_events
from protocol.reading import objects_in, read_object

_FIELDS: Final = ("id", "object", "created", "model")


def head_of(events: bytes) -> dict[str, Any]:
    """The head of the first chunk in `events`; {} if none of them is one."""
    for event in split_events(events):
        if (chunk := read_object(data_of(event))) is not None:
            return {name: chunk[name] for name in _FIELDS if name in chunk}
    return {}


def with_head(events: bytes, head: Mapping[str, Any]) -> bytes:
    """`events`, whose chunks get this head, and no role: it was said by an earlier chunk."""
    return b"".join([_with_head(event, head) for event in split_events(events)])


def _with_head(event: bytes, head: Mapping[str, Any]) -> bytes:
    if (chunk := read_object(data_of(event))) is None:
        return event
    for choice in objects_in(chunk.get("choices")):
        if isinstance(delta := choice.get("delta"), dict):
            delta.pop("role", None)
    return event_of({**chunk, **head})
