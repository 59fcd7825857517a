"""The history: samples of the last hour, for graphs.

Owns the ring of samples, and how two readings of rising counters become a sample. Must not know
what is counted, nor clocks: a reading has its time. An hour takes 100 KB; a request costs nothing.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, final

import msgspec

SAMPLE_S: Final = 5.0
MAX_SAMPLES: Final = 720


class Reading(msgspec.Struct, frozen=True):
    """The counters at one moment (`unix_time`, seconds), and the seconds to the first token of each
    request since the previous reading. `failed` counts requests that ended in an error of ours.
    """

    unix_time: float
    ended: int = 0
    failed: int = 0
    by_cloud: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    open: int = 0
    queued: int = 0
    firsts: Sequence[float] = ()


class HistorySample(msgspec.Struct, frozen=True, array_like=True):
    """What happened in the `seconds` before `unix_time`. Rates are per second. Times to the first
    token are in ms, None without one.
    """

    unix_time: float
    seconds: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    cached_tokens_per_s: float
    requests_per_s: float
    failed: int
    by_cloud: int
    open: int
    queued: int
    first_p50_ms: float | None
    first_p95_ms: float | None


@final
class History:
    """The samples of the last hour. `number` counts all samples so far."""

    def __init__(self) -> None:
        self.samples: deque[HistorySample] = deque(maxlen=MAX_SAMPLES)
        self.number = 0
        self._last: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Add a sample. The first reading, and one after the clock was set back, gives none."""
        last, self._last = self._last, reading
        if last is not None and reading.unix_time > last.unix_time:
            self.samples.append(_between(last, reading))
            self.number += 1

    def since(self, number: int) -> list[HistorySample]:
        """The samples after the first `number` ones, as far as they are kept."""
        num_new = min(self.number - number, len(self.samples))
        return list(self.samples)[len(self.samples) - num_new :]


def percentile(sorted_values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of values in order; None of none."""
    if not sorted_values:
        return None
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def _between(last: Reading, now: Reading) -> HistorySample:
    seconds = now.unix_time - last.unix_time
    firsts = sorted(now.firsts)
    return HistorySample(
        unix_time=round(now.unix_time, 1),
        seconds=round(seconds, 3),
        output_tokens_per_s=_rate(last.output_tokens, now.output_tokens, seconds),
        prompt_tokens_per_s=_rate(last.prompt_tokens, now.prompt_tokens, seconds),
        cached_tokens_per_s=_rate(last.cached_tokens, now.cached_tokens, seconds),
        requests_per_s=_rate(last.ended, now.ended, seconds),
        failed=now.failed - last.failed,
        by_cloud=now.by_cloud - last.by_cloud,
        open=now.open,
        queued=now.queued,
        first_p50_ms=_ms(percentile(firsts, 0.5)),
        first_p95_ms=_ms(percentile(firsts, 0.95)),
    )


def _rate(before: int, now: int, seconds: float) -> float:
    """The rate of a counter, at least 0: a final usage below the running count sets it back."""
    return round(max(0, now - before) / seconds, 2)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)
