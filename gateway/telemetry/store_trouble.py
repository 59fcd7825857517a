"""Whether a store on this host can be used: its trouble in words, and an event at each change.

Owns the words for operators. Trouble has kinds, such as writing and reading; the event at the start
comes with the first kind, the one at the end when no kind is left. Must not know files.
"""

from collections.abc import Callable
from typing import final

from gateway.telemetry.fleet_events import FleetEvent, StoreName, StoreStuck, StoreWell


@final
class StoreTrouble:
    """The trouble of one store; `publish` takes the events."""

    def __init__(self, store: StoreName, publish: Callable[[FleetEvent], None]) -> None:
        self._store: StoreName = store
        self._publish = publish
        self._words: dict[str, str] = {}

    @property
    def words(self) -> str:
        """The present trouble in words for operators; empty if there is none."""
        return "; ".join(self._words.values())

    def begin(self, kind: str, words: str, cause: str) -> bool:
        """Note that something has just failed; returns whether this kind of trouble has just begun.
        `cause` is the reason without a path, for the event.
        """
        if self._words.get(kind) == words:
            return False
        is_first = not self._words
        self._words[kind] = words
        if is_first:
            self._publish(StoreStuck(self._store, cause))
        return True

    def end(self, kind: str) -> bool:
        """Note that something works; returns whether it had failed before."""
        if self._words.pop(kind, None) is None:
            return False
        if not self._words:
            self._publish(StoreWell(self._store))
        return True
