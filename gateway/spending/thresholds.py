"""Which shares of the spending limits were passed since the last check. Owns which shares of each
window were reported. Must not know receivers. A window that begins again, or a gateway that starts
with money spent, says nothing of the past.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

from gateway.spending.limits import Account, LimitWindow, Period


class Passed(NamedTuple):
    """A share of a limit, in percent."""

    account: Account
    period: Period
    percent: int


@final
class Thresholds:
    """`percents`, rising."""

    def __init__(self, percents: Iterable[int]) -> None:
        self._percents = tuple(sorted(set(percents)))
        self._said: dict[tuple[Account, Period], int] = {}
        self._is_first = True

    def passed(self, windows: Sequence[LimitWindow]) -> list[Passed]:
        """The highest share of each limit that was passed since the last call."""
        found: list[Passed] = []
        for window in windows:
            place = window.account, window.period
            reached = [at for at in self._percents if 100 * window.spent >= at * window.limit]
            highest = max(reached, default=0)
            if highest > self._said.get(place, 0) and not self._is_first:
                found.append(Passed(*place, highest))
            self._said[place] = highest
        self._is_first = False
        return found
