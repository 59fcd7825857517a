"""/v1/conversations: lists of items that responses continue and add to.

Owns the endpoints; a conversation belongs to the API key that created it. Must not know how it is
stored.
"""

from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

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
from gateway.http.auth import Gatekeeper
from gateway.http.body import read_body
from gateway.http.edge import Edge
from gateway.http.error_responses import send_json
from gateway.http.responses_route import send_page
from gateway.responses import no_item

ID_PREFIX: Final = "conv_"

_encode: Final = msgspec.json.Encoder().encode

Item = dict[str, object]


class ConversationsRoute:
    """The endpoints of the Conversations API."""

    def __init__(self, edge: Edge, gate: Gatekeeper) -> None:
        self._edge = edge
        self._gate = gate
        self._stored = edge.stored

    async def create(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Create a conversation, with items if the body has some."""
        caller = self._gate.identify(scope)
        if not self._stored.may_store(may_store=caller.may_store):
            text = "Conversations are switched off here ([gateway.responses] or the key's `store`)."
            raise ApiError(403, text, code="not_stored")
        body = typed_body(await self._object(scope, receive), ConversationBody)
        suffix = self._edge.draw(12).hex()
        rows = await self._rows(caller.key, body.items or [], suffix)
        conversation_id, metadata = ID_PREFIX + suffix, body.metadata or {}
        created = await self._stored.create_conversation(
            caller.key, conversation_id, metadata, rows
        )
        await send_json(send, Conversation(conversation_id, created, metadata))

    async def retrieve(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """A conversation without its items."""
        owner, name = self._named(scope)
        await send_json(send, Conversation(name, *await self._stored.conversation(owner, name)))

    async def update(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Replace the metadata."""
        owner, name = self._named(scope)
        body = typed_body(await self._object(scope, receive), MetadataBody)
        created, _ = await self._stored.conversation(owner, name)
        await self._stored.set_metadata(owner, name, body.metadata)
        await send_json(send, Conversation(name, created, body.metadata))

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Delete a conversation and its items."""
        owner, name = self._named(scope)
        await self._stored.delete_conversation(owner, name)
        await send_json(send, Deleted(name, "conversation.deleted"))

    async def list_items(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """A page of items."""
        owner, name = self._named(scope)
        await send_page(scope, send, await self._stored.items(owner, name))

    async def add_items(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Append items; the answer is the items that were added."""
        owner, name = self._named(scope)
        body = typed_body(await self._object(scope, receive), ItemsBody)
        rows = await self._rows(owner, body.items, self._edge.draw(12).hex())
        await self._stored.add_items(owner, name, rows)
        added = [msgspec.json.decode(item) for _, item in rows]
        await send_json(send, page_of(added, "asc", str(max(1, len(added))), ""))

    async def item(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """One item."""
        owner, name = self._named(scope)
        wanted = scope["path_params"]["item"]
        items = await self._stored.items(owner, name)
        found = next((item for item in items if item["id"] == wanted), None)
        if found is None:
            raise no_item(wanted)
        await send_json(send, found)

    async def delete_item(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Delete one item; the answer is the conversation."""
        owner, name = self._named(scope)
        await self._stored.delete_item(owner, name, scope["path_params"]["item"])
        await send_json(send, Conversation(name, *await self._stored.conversation(owner, name)))

    async def _rows(self, owner: str, items: list[Item], suffix: str) -> list[tuple[str, bytes]]:
        """The items with their ids, in JSON. Raises `ApiError` 400 and 404."""
        items = await self._stored.resolved(owner, items)
        check_items(items, self._edge.signer)
        return [(item["id"], _encode(item)) for item in with_ids(items, suffix)]

    async def _object(self, scope: Scope, receive: Receive) -> Item:
        max_bytes = self._edge.config.max_body_bytes
        return decode_object(await read_body(receive, scope["headers"], max_bytes) or b"{}")

    def _named(self, scope: Scope) -> tuple[str, str]:
        """The name of the caller's key, and the id of the conversation."""
        return self._gate.identify(scope).key, scope["path_params"]["name"]
