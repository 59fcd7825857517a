"""The record of one answer, on its way into the archive.

Owns when a response is stored: a background one at once, any other when it ends, or when its events
take much memory. An answer whose client leaves is not kept. Must not know turns.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import trio

from gateway.api import number_of, with_ids
from gateway.responses.archive import Archive
from gateway.store import AddEvents, AddItems, Insert, Remove, SetObject

FLUSH_BYTES: Final = 64 * 1024

_encode: Final = msgspec.json.Encoder().encode

Fields = dict[str, Any]


class ResponseOrigin(msgspec.Struct, frozen=True):
    """Where an answer belongs. `owner` is the name of an API key; `items` are those that the
    request added. The answer continues the response `previous_id` or the conversation. Without
    `is_stored` only the conversation gets it.
    """

    owner: str
    items: Sequence[Fields]
    previous_id: str | None = None
    conversation_id: str | None = None
    is_background: bool = False
    is_stored: bool = True


class ResponseRecord:
    """A `Recorder`. `last` is the number of the last event that the archive has."""

    def __init__(self, archive: Archive, origin: ResponseOrigin) -> None:
        self._archive = archive
        self._origin = origin
        self._response: Fields = {}
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._has_opening = False
        self._is_inserted = False
        self._has_ended = False
        self._news: trio.Event | None = None
        self.last = -1

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    @property
    def response(self) -> Fields:
        """The last state."""
        return self._response

    def state(self, response: Fields) -> None:
        """See `Recorder`."""
        self._response = response
        is_open = response["status"] in {"queued", "in_progress"}
        if is_open and not self._origin.is_background:
            return
        self._has_ended = not is_open
        if self._origin.is_stored:
            self._store(is_open=is_open)
        if response["status"] in {"completed", "incomplete"}:
            self._add_to_conversation()
        self._wake()

    def events(self, first: int, data: bytes) -> None:
        """See `Recorder`."""
        if not self._origin.is_stored:
            return
        if first == 0:
            self._has_opening = True
            self._parts.insert(0, data)
        else:
            self._parts.append(data)
        self._num_bytes += len(data)
        if self._num_bytes > FLUSH_BYTES:
            self.flush()
        self._wake()

    def tail(self) -> bytes:
        """The events that the archive does not have yet."""
        return b"".join(self._parts) if self._has_opening else b""

    def flush(self) -> None:
        """Pass these events to the archive."""
        if not (self._parts and self._has_opening):
            return
        if not self._is_inserted:
            self._insert(is_open=True)
        first, self.last = self.last + 1, number_of(self._parts[-1][:-2])
        data, self._parts, self._num_bytes = self.tail(), [], 0
        self._archive.put(AddEvents(self._response["id"], first, self.last, data))

    def close(self) -> None:
        """Forget an answer that has not ended, because its client has left."""
        if self._is_inserted and not self._has_ended:
            self._archive.put(Remove(self._response["id"]))

    async def news(self) -> None:
        """Return when something has changed."""
        if self._news is None:
            self._news = trio.Event()
        await self._news.wait()

    def _store(self, *, is_open: bool) -> None:
        if not self._is_inserted:
            self._insert(is_open=is_open)
            self.flush()
            return
        self.flush()
        change = SetObject(self._response["id"], _encode(self._response), is_open)
        self._archive.put(change)

    def _insert(self, *, is_open: bool) -> None:
        response, origin = self._response, self._origin
        self._is_inserted = True
        self._archive.put(
            Insert(
                id=response["id"],
                owner=origin.owner,
                created_at=response["created_at"],
                previous_id=origin.previous_id,
                is_background=origin.is_background,
                is_open=is_open,
                object=_encode(response),
                input=_encode(with_ids(origin.items, _suffix(response))),
            )
        )

    def _add_to_conversation(self) -> None:
        origin, response = self._origin, self._response
        if origin.conversation_id is not None:
            items = [*with_ids(origin.items, _suffix(response)), *response["output"]]
            rows = [(item["id"], _encode(item)) for item in items]
            self._archive.put(AddItems(origin.conversation_id, origin.owner, rows))

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()


def _suffix(response: Fields) -> str:
    suffix: str = response["id"].partition("_")[2]
    return suffix
