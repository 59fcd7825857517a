"""Response items, as they are stored and listed, and the objects around them.

Owns the form of a stored input item, pages of items, conversations, deletions, and the end of a
response that was running when its gateway stopped. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from gateway.api.errors import invalid
from protocol.reading import objects_in

MAX_PAGE: Final = 100
PAGE: Final = 20

STOPPED: Final = "The gateway stopped while this response was running."

REASONING_PREFIX: Final = "rs_"
COMPACTION: Final = "compaction"
_PREFIXES: Final = {
    "message": "msg_",
    "reasoning": REASONING_PREFIX,
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "tool_search_call": "tsc_",
    "tool_search_output": "tso_",
    "additional_tools": "at_",
    COMPACTION: "cmp_",
}
_OTHER_PREFIX: Final = "item_"

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode

Item = dict[str, Any]


class ItemList(msgspec.Struct):
    """A page of items."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class Conversation(msgspec.Struct):
    """A conversation; `created_at` is in Unix seconds."""

    id: str
    created_at: int
    metadata: dict[str, Any]
    object: Literal["conversation"] = "conversation"


class InputTokens(msgspec.Struct):
    """How long the prompt of a response would be, in tokens."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class Deleted(msgspec.Struct):
    """The answer to a deletion: the id and the kind of the deleted object."""

    id: str
    object: str
    deleted: bool = True


class ConversationBody(msgspec.Struct):
    """A new conversation."""

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None


class MetadataBody(msgspec.Struct):
    """The new metadata of a conversation."""

    metadata: dict[str, Any]


class ItemsBody(msgspec.Struct):
    """Items for a conversation."""

    items: list[dict[str, Any]]


def with_ids(items: Iterable[Item], suffix: str) -> list[Item]:
    """`items` in the form in which they are listed: each with a type and an id, which ends in
    `suffix` and its position unless the client gave one; messages with parts.
    """
    listed = []
    for at, item in enumerate(items):
        kind = str(item.get("type") or "message")
        given = item.get("id")
        prefix = _PREFIXES.get(kind, _OTHER_PREFIX)
        item_id = given if isinstance(given, str) and given else f"{prefix}{suffix}_in{at}"
        form: Item = {**item, "id": item_id, "type": kind}
        if kind == "message":
            form = {"status": "completed", **form, "content": _parts(item)}
        listed.append(form)
    return listed


def chained(turns: Sequence[tuple[Sequence[Item], Item]]) -> list[Item]:
    """The items of a chain of responses (what each got, and the response), without those that a
    compaction in a response has replaced.
    """
    items: list[Item] = []
    for given, made in turns:
        items += given
        for item in made["output"]:
            if item.get("type") == COMPACTION:
                items.clear()
            items.append(item)
    return items


def since_compaction(items: Sequence[Item]) -> list[Item]:
    """The items of a conversation without those that its last compaction has replaced."""
    places = [at for at, item in enumerate(items) if item.get("type") == COMPACTION]
    return list(items[places[-1] :] if places else items)


def references(items: Iterable[Item]) -> list[str]:
    """The ids of stored items that `items` name instead of repeating them."""
    return [str(item.get("id")) for item in items if _is_reference(item)]


def with_named(items: Iterable[Item], found: Mapping[str, Item]) -> list[Item]:
    """`items` with those that their references name, which are `found` by their ids; the others are
    left out.
    """
    return [
        found[item["id"]] if _is_reference(item) else item
        for item in items
        if not _is_reference(item) or item["id"] in found
    ]


def _is_reference(item: Item) -> bool:
    """Whether it only names a stored item; its type may be absent. Reasoning without anything to
    read names the stored one: of OpenAI's own a client has no more than the id to send back.
    """
    kind = item.get("type")
    if kind == "reasoning":
        return _is_hollow(item)
    return kind == "item_reference" or (kind is None and "role" not in item and "id" in item)


def _is_hollow(reasoning: Item) -> bool:
    item_id, blob = reasoning.get("id"), reasoning.get("encrypted_content")
    if blob or not (isinstance(item_id, str) and item_id.startswith(REASONING_PREFIX)):
        return False
    parts = (*objects_in(reasoning.get("content")), *objects_in(reasoning.get("summary")))
    return not any(part.get("text") for part in parts)


def response_of(item_id: str) -> str:
    """The id of the response that made an item, or got it, by the ids that items get here."""
    return f"resp_{item_id.partition('_')[2].rpartition('_')[0]}"


def _parts(message: Item) -> object:
    content = message.get("content")
    if not isinstance(content, str):
        return content
    if message.get("role") == "assistant":
        return [{"type": "output_text", "text": content, "annotations": [], "logprobs": []}]
    return [{"type": "input_text", "text": content}]


def page_of(items: Sequence[Item], order: str, limit: str, after: str) -> ItemList:
    """A page of `items`: `limit` of them in that order ("asc" or "desc") behind the one of id
    `after` ("": from the first). Raises `ApiError` 400.
    """
    if order not in {"asc", "desc"}:
        raise invalid("order", f"'order' must be asc or desc, not {order!r}.")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= MAX_PAGE):
        raise invalid("limit", f"'limit' must be a number from 1 to {MAX_PAGE}, not {limit!r}.")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after:
        places = [at for at, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise invalid("after", f"'after' names no item of this list: {after!r}.")
        ordered = ordered[places[-1] + 1 :]
    data = ordered[: int(limit)]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return ItemList(data, first, last, has_more=len(ordered) > len(data))


def events_after(data: bytes, after: int) -> bytes:
    """The events of a stream's part with numbers above `after`."""
    parts = data.split(b"\n\n")[:-1]
    return b"".join(part + b"\n\n" for part in parts if number_of(part) > after)


def number_of(event: bytes) -> int:
    """The sequence number of an event, which is its last field."""
    return int(event[event.rindex(b":") + 1 : -1])


def stopped(response: Item, events: Sequence[bytes]) -> tuple[Item, int, bytes]:
    """The failed response of a gateway that stopped after these `events`, with the items that were
    complete; and the event that reports it, and that event's number.
    """
    parts = [part for data in events for part in data.split(b"\n\n")[:-1]]
    done = [
        _decode(part.partition(b"data: ")[2])["item"]
        for part in parts
        if part.startswith(b"event: response.output_item.done\n")
    ]
    error = {"code": "server_error", "message": STOPPED}
    failed = {**response, "status": "failed", "output": done, "error": error}
    number = number_of(parts[-1]) + 1 if parts else 0
    fields = {"type": "response.failed", "response": failed, "sequence_number": number}
    return failed, number, b"event: response.failed\ndata: " + _encode(fields) + b"\n\n"
