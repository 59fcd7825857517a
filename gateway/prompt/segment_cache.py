"""A memory of packed ids, bounded in bytes, that is read many at a time.

Owns what is forgotten: there is a young half and an old one; what is found in the old becomes young
again, and when the young is full it is the old, and what was old is forgotten. To find what is
young writes nothing, so that all stretches of a prompt are one call of `map`. Must not know what
the keys mean nor how large they are (who puts one says so).
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)


class Generations(Generic[_K]):
    """key -> ids, `max_bytes` in all; `size_of` an entry. What alone is larger than half of the
    bound is not kept.
    """

    def __init__(self, max_bytes: int, size_of: Callable[[_K, bytes], int]) -> None:
        self._half_bytes = max_bytes // 2
        self._size_of = size_of
        self._young: dict[_K, bytes] = {}
        self._old: dict[_K, bytes] = {}
        self._young_bytes = 0
        self._old_bytes = 0

    def __repr__(self) -> str:
        return f"<Generations {len(self._young)} young, {len(self._old)} old, {self.num_bytes} B>"

    @property
    def num_bytes(self) -> int:
        """What all entries hold."""
        return self._young_bytes + self._old_bytes

    def find(self, keys: list[_K]) -> list[bytes | None]:
        """The ids of each key, None for those that are not known."""
        found = list(map(self._young.get, keys))
        if None in found and self._old:
            for at, packed in enumerate(found):
                if packed is None:
                    found[at] = self._young_again(keys[at])
        return found

    def put(self, key: _K, packed: bytes) -> None:
        """Keep the ids of a key, which never change."""
        num_bytes = self._size_of(key, packed)
        if key in self._young or num_bytes > self._half_bytes:
            return
        if self._young_bytes + num_bytes > self._half_bytes:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        self._young[key] = packed
        self._young_bytes += num_bytes

    def _young_again(self, key: _K) -> bytes | None:
        packed = self._old.pop(key, None)
        if packed is not None:
            self._old_bytes -= self._size_of(key, packed)
            self.put(key, packed)
        # One that is asked for twice is young by now.
        return packed if packed is not None else self._young.get(key)
