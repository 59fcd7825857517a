"""Rates: how fast each open request is answered right now.

Owns the token counts at the last look. Must not know requests or clocks. Without a reader there are
no looks and no cost; the first look gives the average since the first token.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, final

SMOOTHING: Final = 0.4
LEAST_S: Final = 0.2
"""Looks that are closer together see the same rates, which would otherwise jump with each token."""


class RequestProgress(NamedTuple):
    """A request by number: its tokens, and since when they come (on the clock of `look`)."""

    number: int
    num_tokens: int
    first_at: float | None


class _Seen(NamedTuple):
    num_tokens: int
    rate: float


@final
class Rates:
    """`by_number` are tokens per second as of the last look."""

    def __init__(self) -> None:
        self.by_number: dict[int, float] = {}
        self._seen: dict[int, _Seen] = {}
        self._at = float("-inf")

    def look(self, progress: Iterable[RequestProgress], now: float) -> None:
        """The open requests at `now`; those that are missing are forgotten."""
        elapsed_s = now - self._at
        if elapsed_s < LEAST_S:
            return
        before, self._seen, self._at = self._seen, {}, now
        for number, num_tokens, first_at in progress:
            seen = before.get(number)
            if first_at is None:
                rate = 0.0
            elif seen is None or not seen.num_tokens:
                rate = num_tokens / max(LEAST_S, now - first_at)
            else:
                news = max(0, num_tokens - seen.num_tokens) / elapsed_s
                rate = seen.rate + SMOOTHING * (news - seen.rate)
            self._seen[number] = _Seen(num_tokens, rate)
        self.by_number = {number: seen.rate for number, seen in self._seen.items()}
