"""A memory of values, bounded in bytes.

Owns what is forgotten: whatever was not asked for longest. Must not know what it holds nor how
large that is (who puts it says so).
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class ByteLru(Generic[_K, _V]):
    """key -> value, `max_bytes` in all. A value that alone is larger is not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[_K, tuple[_V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<ByteLru {len(self)} entries, {self._num_bytes} of {self._max_bytes} bytes>"

    @property
    def num_bytes(self) -> int:
        """What the entries hold, as they were declared."""
        return self._num_bytes

    def get(self, key: _K) -> _V | None:
        """The value, which is the freshest then; None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: _K, value: _V, num_bytes: int) -> None:
        """Keep `value`, of `num_bytes` with its key, instead of the one that `key` had."""
        old = self._entries.pop(key, None)
        if old is not None:
            self._num_bytes -= old[1]
        if num_bytes > self._max_bytes:
            return
        self._entries[key] = (value, num_bytes)
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self._num_bytes -= freed
