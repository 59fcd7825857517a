"""Stored responses and conversations, as the HTTP edge uses them.

Owns which keys may store, the history of a request, and the errors for missing objects. Must not
know HTTP, nor how anything is written.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from config import Config, ResponsesConfig, responses_path
from gateway.api import (
    REASONING_PREFIX,
    ApiError,
    ResponsesDraft,
    chained,
    invalid,
    references,
    response_of,
    since_compaction,
    with_named,
)
from gateway.responses.archive import Archive
from gateway.responses.background import Background
from gateway.responses.record import ResponseOrigin, ResponseRecord
from gateway.store import ResponseStore, StoreBounds, StoredResponse
from gateway.telemetry import FleetEvent
from protocol.errors import ConfigError

_log = logging.getLogger(__name__)
_DAY_S: Final = 86_400

Item = dict[str, Any]


class StoredResponses:
    """The stored responses of one gateway process, `process` of `num_processes` that share the file
    at `path`. With `path` None nothing is stored. `publish` takes events.
    """

    def __init__(
        self,
        config: ResponsesConfig,
        path: Path | None,
        unix_time: Callable[[], float],
        publish: Callable[[FleetEvent], None],
        process: int = 0,
        num_processes: int = 1,
    ) -> None:
        bounds = StoreBounds(
            config.max_key_responses, config.max_key_bytes, config.max_responses, config.max_bytes
        )
        place = path if config.store == "allow" else None
        self._archive = Archive(
            None if place is None else lambda: ResponseStore(place, bounds, process, unix_time),
            expire_s=config.expire_days * _DAY_S,
            publish=publish,
            num_processes=num_processes,
            is_needed=config.path is not None,
        )
        self.background = Background(self._archive, config.max_background)

    @property
    def trouble(self) -> str:
        """Why responses are not stored now, in words for operators; empty if they are."""
        return self._archive.trouble

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the store until cancelled, which ends what runs in the background. Raises
        `ConfigError` if a file that the configuration names cannot be opened.
        """
        await self._archive.open()
        if not (self._archive.is_kept or self._archive.is_awaited):
            task_status.started()
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._archive.write_on)
                nursery.start_soon(self._archive.sweep_at_times)
                nursery.start_soon(self.background.run)
                task_status.started()
        finally:
            await self._archive.close()

    def may_store(self, *, may_store: bool) -> bool:
        """Whether anything can be stored for a caller that `may_store`."""
        return may_store and self._archive.is_kept

    def record(self, origin: ResponseOrigin) -> ResponseRecord | None:
        """The record of an answer; None if the answer is not stored."""
        if not origin.is_stored and origin.conversation_id is None:
            return None
        return ResponseRecord(self._archive, origin)

    async def resolved(self, owner: str, items: Sequence[Item]) -> list[Item]:
        """`items` with the stored ones that they name; reasoning that is gone is left out, as most
        templates do with old reasoning. Raises `ApiError` 404 for any other item.
        """
        names = references(items)
        found: dict[str, Item] = {}
        if names and self._archive.is_kept:
            store, ids = self._archive.store, list(dict.fromkeys(map(response_of, names)))

            def look() -> bool | None:
                found.update(store.items_of(owner, ids))
                return found.keys() >= set(names) or None

            await self._archive.find(look)
        for name in names:
            if name not in found and not name.startswith(REASONING_PREFIX):
                raise _no_reference(name)
        return with_named(items, found)

    async def history(self, owner: str, draft: ResponsesDraft) -> list[Item]:
        """The items of the response or conversation that the request continues. Raises `ApiError`
        404.
        """
        if (previous_id := draft.previous_id) is not None:
            turns = None
            if self._archive.is_kept:
                store = self._archive.store
                turns = await self._archive.find(store.chain, owner, previous_id)
            if turns is None:
                raise _no_previous(previous_id)
            return chained(turns)
        if (conversation_id := draft.conversation_id) is not None:
            return since_compaction(await self.items(owner, conversation_id))
        return []

    async def response(self, owner: str, response_id: str) -> StoredResponse:
        """The response of that id. Raises `ApiError` 404."""
        store = self._store(_no_response, response_id)
        return _found(await self._archive.find(store.response, owner, response_id), response_id)

    async def delete_response(self, owner: str, response_id: str) -> None:
        """Delete the response; one that runs ends first. Raises `ApiError` 404."""
        store = self._store(_no_response, response_id)
        await self.background.cancel(owner, response_id)
        if not await self._archive.ask(store.delete_response, owner, response_id):
            raise _no_response(response_id)

    async def cancel(self, owner: str, response_id: str) -> StoredResponse:
        """End a response that runs in the background. Raises `ApiError` 400 or 404."""
        self._store(_no_response, response_id)
        found = _found(await self.background.cancel(owner, response_id), response_id)
        if not found.is_background:
            text = "Only a response that was created with background=true can be cancelled."
            raise invalid("response_id", text)
        return found

    async def input_items(self, owner: str, response_id: str) -> list[Item]:
        """The items that the response was made from, oldest first. Raises `ApiError` 404."""
        store = self._store(_no_response, response_id)
        turns = await self._archive.ask(store.inputs, owner, response_id)
        if not turns:
            raise _no_response(response_id)
        *before, (last, _) = turns
        return [*(item for given, made in before for item in (*given, *made["output"])), *last]

    async def create_conversation(
        self, owner: str, conversation_id: str, metadata: Item, items: list[tuple[str, bytes]]
    ) -> int:
        """Create a conversation with `items` (JSON, with ids); returns its time of creation."""
        create = self._archive.store.create_conversation
        return await self._archive.ask(create, owner, conversation_id, metadata, items)

    async def conversation(self, owner: str, conversation_id: str) -> tuple[int, Item]:
        """When the conversation was created, and its metadata. Raises `ApiError` 404."""
        store = self._store(_no_conversation, conversation_id)
        found = await self._archive.ask(store.conversation, owner, conversation_id)
        if found is None:
            raise _no_conversation(conversation_id)
        return found

    async def set_metadata(self, owner: str, conversation_id: str, metadata: Item) -> None:
        """Replace the metadata of a conversation."""
        store = self._archive.store
        await self._archive.ask(store.set_metadata, owner, conversation_id, metadata)

    async def add_items(
        self, owner: str, conversation_id: str, items: list[tuple[str, bytes]]
    ) -> None:
        """Add items, JSON with ids, at the end of a conversation. Raises `ApiError` 404."""
        await self.conversation(owner, conversation_id)
        self._archive.add_items(owner, conversation_id, items)

    async def items(self, owner: str, conversation_id: str) -> list[Item]:
        """All items of a conversation, oldest first. Raises `ApiError` 404."""
        store = self._store(_no_conversation, conversation_id)
        found = await self._archive.ask(store.items, owner, conversation_id)
        if found is None:
            raise _no_conversation(conversation_id)
        return found

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> None:
        """Delete an item. Raises `ApiError` 404."""
        store = self._store(_no_conversation, conversation_id)
        if not await self._archive.ask(store.delete_item, owner, conversation_id, item_id):
            raise no_item(item_id)

    async def delete_conversation(self, owner: str, conversation_id: str) -> None:
        """Delete a conversation and its items. Raises `ApiError` 404."""
        store = self._store(_no_conversation, conversation_id)
        if not await self._archive.ask(store.delete_conversation, owner, conversation_id):
            raise _no_conversation(conversation_id)

    def _store(self, missing: Callable[[str], ApiError], its_id: str) -> ResponseStore:
        if not self._archive.is_kept:
            raise missing(its_id)
        return self._archive.store


def stored_responses(
    config: Config,
    environ: Mapping[str, str],
    publish: Callable[[FleetEvent], None],
    process: tuple[int, int],
) -> StoredResponses:
    """The stored responses of the gateway process `process` of those that share the file. If there
    is no place for a file, none are stored.
    """
    path = None
    try:
        path = responses_path(config, environ)
    except ConfigError as error:
        _log.warning("responses are not stored: %s", error)
    stored = config.gateway.responses
    return StoredResponses(stored, path, time.time, publish, *process)


def _found(response: StoredResponse | None, response_id: str) -> StoredResponse:
    if response is None:
        raise _no_response(response_id)
    return response


def _no_response(response_id: str) -> ApiError:
    return ApiError(404, f"Response with id '{response_id}' not found.", code="not_found")


def _no_previous(response_id: str) -> ApiError:
    return ApiError(
        404,
        f"Previous response with id '{response_id}' not found, or one that it goes on from.",
        code="previous_response_not_found",
        param="previous_response_id",
    )


def _no_conversation(conversation_id: str) -> ApiError:
    text = f"Conversation with id '{conversation_id}' not found."
    return ApiError(404, text, code="not_found", param="conversation")


def _no_reference(item_id: str) -> ApiError:
    text = f"Item with id '{item_id}' not found: send the item itself if it is not stored here."
    return ApiError(404, text, code="not_found", param="input")


def no_item(item_id: str) -> ApiError:
    """404: no item has that id."""
    return ApiError(404, f"Item with id '{item_id}' not found.", code="not_found")
