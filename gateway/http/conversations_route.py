"""/v1/conversations: lists of items that responses continue and add to.

Owns the endpoints; a conversation belongs to the API key that created it. Must not know how it is
stored.
"""

from typing import Final

import msgspec

from gateway.api import (
    ApiError,
    Conversation,
    ConversationBody,
    Deleted,
    ItemsBody,
    MetadataBody,
    check_items,
    decode_object,
    page_of,
    typed_body,
    with_ids,
)
from gateway.http.exchange import Exchange
from gateway.http.responses_route import send_page
from gateway.responses import StoredResponses, no_item
from gateway.turn import Caller

ID_PREFIX: Final = "conv_"
_SMALL_BYTES: Final = 8192
"""The items of a larger body are checked in a thread: 12,000 take 40 ms."""

_encode: Final = msgspec.json.Encoder().encode

Item = dict[str, object]


async def create(exchange: Exchange) -> None:
    """Create a conversation, with items if the body has some."""
    caller = exchange.identify()
    stored = exchange.edge.stored
    if not stored.may_store(may_store=caller.may_store):
        text = "Conversations are switched off here ([gateway.responses] or the key's `store`)."
        raise ApiError(403, text, code="not_stored")
    raw, size = await _object(exchange)
    body = typed_body(raw, ConversationBody)
    suffix = exchange.edge.draw(12).hex()
    rows = await _rows(exchange, caller, body.items or [], suffix, size)
    conversation_id, metadata = ID_PREFIX + suffix, body.metadata or {}
    created = await stored.create_conversation(caller.key, conversation_id, metadata, rows)
    await exchange.send_json(Conversation(conversation_id, created, metadata))


async def retrieve(exchange: Exchange) -> None:
    """A conversation without its items."""
    stored, owner, name = _named(exchange)
    await exchange.send_json(Conversation(name, *await stored.conversation(owner, name)))


async def update(exchange: Exchange) -> None:
    """Replace the metadata."""
    stored, owner, name = _named(exchange)
    body = typed_body((await _object(exchange))[0], MetadataBody)
    created, _ = await stored.conversation(owner, name)
    await stored.set_metadata(owner, name, body.metadata)
    await exchange.send_json(Conversation(name, created, body.metadata))


async def delete(exchange: Exchange) -> None:
    """Delete a conversation and its items."""
    stored, owner, name = _named(exchange)
    await stored.delete_conversation(owner, name)
    await exchange.send_json(Deleted(name, "conversation.deleted"))


async def list_items(exchange: Exchange) -> None:
    """A page of items."""
    stored, owner, name = _named(exchange)
    await send_page(exchange, await stored.items(owner, name))


async def add_items(exchange: Exchange) -> None:
    """Append items; the answer is the items that were added."""
    stored, owner, name = _named(exchange)
    raw, size = await _object(exchange)
    body = typed_body(raw, ItemsBody)
    suffix = exchange.edge.draw(12).hex()
    rows = await _rows(exchange, exchange.identify(), body.items, suffix, size)
    await stored.add_items(owner, name, rows)
    added = [msgspec.json.decode(item) for _, item in rows]
    await exchange.send_json(page_of(added, "asc", str(max(1, len(added))), ""))


async def item(exchange: Exchange) -> None:
    """One item."""
    stored, owner, name = _named(exchange)
    wanted = exchange.named("item")
    items = await stored.items(owner, name)
    found = next((item for item in items if item["id"] == wanted), None)
    if found is None:
        raise no_item(wanted)
    await exchange.send_json(found)


async def delete_item(exchange: Exchange) -> None:
    """Delete one item; the answer is the conversation."""
    stored, owner, name = _named(exchange)
    await stored.delete_item(owner, name, exchange.named("item"))
    await exchange.send_json(Conversation(name, *await stored.conversation(owner, name)))


async def _rows(
    exchange: Exchange, caller: Caller, items: list[Item], suffix: str, size: int
) -> list[tuple[str, bytes]]:
    """The items with their ids, in JSON; the body has `size` bytes. Raises `ApiError` 400 and
    404.
    """
    edge = exchange.edge
    items = await edge.stored.resolved(caller.key, items)

    def work() -> list[tuple[str, bytes]]:
        check_items(items, edge.signer)
        return [(item["id"], _encode(item)) for item in with_ids(items, suffix)]

    if size <= _SMALL_BYTES:
        return work()
    return await edge.encoding.run(caller, size, work)


async def _object(exchange: Exchange) -> tuple[Item, int]:
    """The body and its size in bytes, read in a thread if that takes long. Raises `ApiError`
    400 for too many values.
    """
    caller, body = exchange.identify(), await exchange.body() or b"{}"
    read = await exchange.edge.read(caller, body, lambda body, _: decode_object(body))
    return read, len(body)


def _named(exchange: Exchange) -> tuple[StoredResponses, str, str]:
    """Where conversations are stored, the name of the caller's key, and the conversation's id."""
    return exchange.edge.stored, exchange.identify().key, exchange.named()
