"""Claims that the ledger has or is about to get, and the ends of some of them.

Owns which claims can still have an end. An end waits for the disk while its claim is open, so ends
never outnumber claims, and `MAX_OPEN` bounds both. Must not know the disk.
"""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar, final

MAX_OPEN: Final = 65_536
"""Claims of one kind whose end is not on the disk. Each is a request under way, but for those that
ended while the disk could not be written.
"""

_E = TypeVar("_E")


@final
class OpenClaims(Generic[_E]):
    """Claims by their number; `ends` are those that wait for the next write."""

    __slots__ = ("_open", "ends")

    def __init__(self) -> None:
        self._open: set[int] = set()
        self.ends: dict[int, _E] = {}

    @property
    def is_full(self) -> bool:
        return len(self._open) >= MAX_OPEN

    def __len__(self) -> int:
        return len(self._open)

    def end(self, number: int, end: _E) -> None:
        """Let `end` wait for the next write. The end of a claim that was never written changes
        nothing on the disk.
        """
        if number in self._open:
            self.ends[number] = end

    def begin_write(self, numbers: Iterable[int]) -> dict[int, _E]:
        """New claims are written, with the ends that have waited, which are returned."""
        self._open.update(numbers)
        ends, self.ends = self.ends, {}
        return ends

    def written(self, ends: dict[int, _E], refused: Iterable[int]) -> None:
        """Everything is on the disk but the claims that were refused."""
        self._open.difference_update(ends)
        self._forget(refused)

    def not_written(self, ends: dict[int, _E], numbers: Iterable[int]) -> None:
        """Take back a batch that was not written: the ends wait again, the claims have failed."""
        self.ends = {**ends, **self.ends}
        self._forget(numbers)

    def _forget(self, numbers: Iterable[int]) -> None:
        self._open.difference_update(numbers)
        for number in numbers:
            self.ends.pop(number, None)
