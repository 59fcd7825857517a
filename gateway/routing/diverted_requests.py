"""The requests for a sleeping model that went to a provider instead (`while_waking = "cloud"`).

Owns for how long these requests count as waiting. They do not wait in the queue, so without this
count nothing would wake the model. Must not know workers. Times are arguments.
"""

from typing import Final, final

DIVERTED_S: Final = 15.0
"""A request that went away counts as waiting for this time, or until the next one."""
SERIES_S: Final = 60.0
"""Requests that follow each other within this time are one series, whose waits add up: an agent
asks again when it has read the last answer and called its tools. A single request costs a busy
neighbour nothing, a model that is asked again and again has its turn in the end.
"""


@final
class DivertedRequests:
    """The requests of one model that went to a provider. `since` is when the first request of the
    series came.
    """

    def __init__(self) -> None:
        self.since = float("-inf")
        self._last_at = float("-inf")
        self._earlier_s = 0.0

    def __repr__(self) -> str:
        return f"<DivertedRequests since={self.since} last={self._last_at} +{self._earlier_s:g} s>"

    def another(self, now: float) -> None:
        """A request went to a provider."""
        if now < self._last_at + SERIES_S:
            self._earlier_s = self.waited_s(now)
        else:
            self.since, self._earlier_s = now, 0.0
        self._last_at = now

    def is_waiting(self, now: float) -> bool:
        """Whether the last request still counts as waiting."""
        return now < self._last_at + DIVERTED_S

    def waited_s(self, now: float) -> float:
        """The sum of the seconds for which the requests of the series have counted as waiting."""
        return self._earlier_s + min(now - self._last_at, DIVERTED_S)
