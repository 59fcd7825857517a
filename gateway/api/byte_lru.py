"""A cache that is bounded in bytes and forgets its least recently used entries.

Must not know what it holds.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class ByteLru(Generic[_K, _V]):
    """A map from key to value, with `max_bytes` in all; a larger entry is not kept. `size_of` gives
    the bytes of an entry.

    The value of a key never changes while it is kept. One thread writes; `find` may run in any.
    """

    def __init__(self, max_bytes: int, size_of: Callable[[_K, _V], int]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._entries: OrderedDict[_K, _V] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<ByteLru {len(self)} entries, {self.num_bytes} of {self._max_bytes} bytes>"

    def get(self, key: _K) -> _V | None:
        """The value, which counts as used now."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def find(self, keys: Iterable[_K]) -> list[_V | None]:
        """The value of each key, None where it is unknown. Writes nothing: 25 ns per key."""
        return list(map(self._entries.get, keys))

    def drop(self, key: _K) -> None:
        """Forget the value of a key, if there is one."""
        value = self._entries.pop(key, None)
        if value is not None:
            self.num_bytes -= self._size_of(key, value)

    def put(self, entries: Iterable[tuple[_K, _V]]) -> None:
        """Keep values. Known keys count as used now."""
        for key, value in entries:
            if key in self._entries:
                self._entries.move_to_end(key)
            elif (num_bytes := self._size_of(key, value)) <= self._max_bytes:
                self._entries[key] = value
                self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= self._size_of(*self._entries.popitem(last=False))
