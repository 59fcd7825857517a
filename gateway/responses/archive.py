"""The archive: the one task that writes stored responses.

Owns the queue before the disk, and the thread in which all calls of the store run, one at a time.
A write queues its changes and never waits. A read waits for the changes that were queued before it,
so a client finds what it has received. Must not know what a response says.
"""

import logging
from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

import msgspec
import trio

from gateway.api import ApiError, stopped
from gateway.store import (
    AddEvents,
    AddItems,
    Change,
    DiskFull,
    ResponseStore,
    ResponseStoreError,
    SetObject,
)
from gateway.telemetry import FleetEvent, StoreTrouble
from protocol.errors import ConfigError

MAX_QUEUED_BYTES: Final = 64 * 2**20
"""The bound on changes that wait for a slow disk. Beyond it responses are lost, with a log line."""
SWEEP_S: Final = 60.0
RETRY_S: Final = 0.5
MAX_TRIES: Final = 5
FIND_S: Final = 0.5
LOOK_AGAIN_S: Final = 0.05

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_log = logging.getLogger(__name__)
_encode: Final = msgspec.json.Encoder().encode


class Archive:
    """The store of one gateway process. `is_kept`: there is one; nothing is stored otherwise.
    `is_awaited`: its disk was full at the start, so that there may be one later.

    `open_store` opens the file, which `is_needed` if the configuration names it. What was not used
    for `expire_s` is deleted. `publish` takes events.
    """

    def __init__(
        self,
        open_store: Callable[[], ResponseStore] | None,
        *,
        expire_s: float,
        publish: Callable[[FleetEvent], None],
        num_processes: int = 1,
        is_needed: bool = False,
    ) -> None:
        self._open_store = open_store
        self._expire_s = expire_s
        self._num_processes = num_processes
        self._is_needed = is_needed
        self._store: ResponseStore | None = None
        self.is_awaited = False
        self._queue: list[Change] = []
        self._queued_bytes = 0
        self._is_writing = False
        self._has_work = trio.Event()
        self._written = trio.Event()
        self._thread = trio.CapacityLimiter(1)
        self._trouble = StoreTrouble("stored responses", publish)

    @property
    def trouble(self) -> str:
        """The present trouble in words for operators; empty if there is none."""
        return self._trouble.words

    @property
    def is_kept(self) -> bool:
        return self._store is not None

    @property
    def is_shared(self) -> bool:
        """Whether other processes write the same file."""
        return self._num_processes > 1

    async def open(self) -> None:
        """Open the file; what an earlier run left open has failed.

        Raises `ConfigError` if the configuration names a file that cannot be opened; otherwise
        nothing is stored then. One whose disk is full is opened by `sweep_at_times`.
        """
        if self._open_store is None:
            return
        try:
            await self._begin(self._open_store)
        except ConfigError as error:
            self.is_awaited = isinstance(error, DiskFull)
            if self._is_needed and not self.is_awaited:
                raise
            words = f"responses are not stored: {error}"
            self._trouble.begin("open", words, "responses are not stored; the log says why")
            _log.warning("%s", words)
            return
        await self._write()

    async def _begin(self, open_store: Callable[[], ResponseStore]) -> None:
        """Open the file, and queue the end of what was left open there. Raises `ConfigError` and
        `ResponseStoreError`.
        """
        with trio.CancelScope(shield=True):  # an opened file is always closed
            store = await self._in_thread(open_store)
            try:
                # This is queued before any new response, which is unfinished as well.
                left = await self._in_thread(store.left_open, self._num_processes)
            except ResponseStoreError:
                await self._in_thread(store.close)
                raise
        self._store = store
        for response_id, response, events in left:
            failed, number, event = stopped(response, events)
            self.put(AddEvents(response_id, number, number, event))
            self.put(SetObject(response_id, _encode(failed), is_open=False))

    async def _try_again(self, open_store: Callable[[], ResponseStore]) -> None:
        """Open a file whose disk was full at the start."""
        try:
            await self._begin(open_store)
        except (ConfigError, ResponseStoreError) as error:
            if self._trouble.begin("open", words := f"responses are not stored: {error}", words):
                _log.warning("%s", words)
        else:
            self._trouble.end("open")
            _log.warning("responses are stored from now on")

    async def write_on(self) -> None:
        """Write queued changes until cancelled."""
        while True:
            if not self._queue:
                await self._has_work.wait()
            await self._write()

    async def close(self) -> None:
        """Write what is still queued, and close the file."""
        with trio.CancelScope(shield=True):
            await self._write()
            store, self._store = self._store, None
            if store is not None:
                await self._in_thread(store.close)

    async def sweep_at_times(self) -> None:
        """From time to time delete what has expired, and empty the write-ahead log of its data. A
        file whose disk was full is opened first.
        """
        while True:
            if self._store is None and self._open_store is not None:
                await self._try_again(self._open_store)
            if self._store is not None:
                await self._sweep(self._store)
            await trio.sleep(SWEEP_S)

    async def _sweep(self, store: ResponseStore) -> None:
        try:
            await self._in_thread(store.expire, self._expire_s)
            await self._in_thread(store.scrub)
        except ResponseStoreError as error:
            _log.error("%s", error)

    def add_items(self, owner: str, conversation_id: str, items: list[tuple[str, bytes]]) -> None:
        """Queue items for the end of a conversation."""
        self.put(AddItems(conversation_id, owner, items))

    def put(self, change: Change) -> None:
        """Queue a change. Never waits; if the disk does not keep up it is lost."""
        size = _num_bytes(change)
        if self._queued_bytes + size > MAX_QUEUED_BYTES:
            _log.error("a stored response is lost: the disk does not keep up")
            return
        self._queued_bytes += size
        self._queue.append(change)
        self._has_work.set()

    async def ask(self, call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """The result of `call` on the store, after all changes so far. Raises `ApiError` 503."""
        while self._queue or self._is_writing:
            await self._written.wait()
        try:
            return await self._in_thread(call, *arguments)
        except ResponseStoreError as error:
            _log.error("%s", error)
            text = "Stored responses cannot be read now; the gateway's log says why."
            raise ApiError(503, text, code="unavailable", retry_after_s=1) from error

    async def find(
        self, call: Callable[[*Arguments], T | None], *arguments: *Arguments
    ) -> T | None:
        """Like `ask`, but if several processes share the file, a missing result is looked up again:
        another process may have answered its client just before it writes.
        """
        found = await self.ask(call, *arguments)
        looks = round(FIND_S / LOOK_AGAIN_S) if self.is_shared else 0
        while found is None and looks:
            looks -= 1
            await trio.sleep(LOOK_AGAIN_S)
            found = await self.ask(call, *arguments)
        return found

    @property
    def store(self) -> ResponseStore:
        """The store, for `ask`. Raises `ApiError` 404 if there is none."""
        if self._store is None:
            raise ApiError(404, "Nothing is stored here.", code="not_stored")
        return self._store

    async def _write(self) -> None:
        """Write the queued changes. Shielded from cancellation, which would lose those taken."""
        changes, self._queue, self._queued_bytes = self._queue, [], 0
        self._has_work = trio.Event()
        store = self._store
        if not changes or store is None:
            return
        self._is_writing = True
        try:
            with trio.CancelScope(shield=True):
                for left in reversed(range(MAX_TRIES)):
                    try:
                        await self._in_thread(store.write, changes)
                        self._trouble.end("write")
                        break
                    except ResponseStoreError as error:
                        self._trouble.begin("write", str(error), error.cause)
                        if not left:
                            _log.error("%s; these responses are lost", error)
                        elif left == MAX_TRIES - 1:
                            _log.error("%s; tried again", error)
                        await trio.sleep(RETRY_S if left else 0)
        finally:
            self._is_writing = False
            self._written.set()
            self._written = trio.Event()

    async def _in_thread(self, call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        return await trio.to_thread.run_sync(call, *arguments, limiter=self._thread)


def _num_bytes(change: Change) -> int:
    """The bytes of events and JSON in a change."""
    if isinstance(change, AddItems):
        return sum(len(item) for _, item in change.items)
    return sum(len(part) for part in change if isinstance(part, bytes))
