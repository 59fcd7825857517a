"""What the engine measures about its own steps.

Owns the moving averages of `Load` and the longest recent step. Must not read a clock.
"""

from typing import Final

_WEIGHT: Final = 0.1
"""A new step counts a tenth: about the last second at 20 ms per step decides."""

_WINDOW_S: Final = 60.0


class StepMeter:
    """Averages over steps, and how long a step should take; 0 while unknown."""

    def __init__(self) -> None:
        self.step_ms = 0.0
        self.prefill_tokens_per_s = 0.0
        self._longest_s = 0.0
        self._previous_longest_s = 0.0
        self._window_at = 0.0
        self._by_size: dict[int, float] = {}

    def add(self, duration_s: float, num_tokens: int, prefill_tokens: int, now: float) -> None:
        """A step of `num_tokens` ended at `now`; `prefill_tokens` are those of long chunks."""
        self._by_size[num_tokens.bit_length()] = duration_s
        if now - self._window_at >= _WINDOW_S:
            self._previous_longest_s, self._longest_s = self._longest_s, 0.0
            self._window_at = now
        self._longest_s = max(self._longest_s, duration_s)
        self.step_ms = _average(self.step_ms, 1e3 * duration_s)
        if prefill_tokens and duration_s > 0:
            rate = prefill_tokens / duration_s
            self.prefill_tokens_per_s = _average(self.prefill_tokens_per_s, rate)

    def expected_s(self, num_tokens: int) -> float:
        """How long a step of `num_tokens` should take: as the last of that size (in powers of
        two), else in proportion to the nearest smaller one, which overestimates because the
        fixed costs are scaled too. A first long prompt must not look like a hang on a slow CPU.
        """
        size = num_tokens.bit_length()
        smaller = [seen for seen in self._by_size if seen <= size]
        if not smaller:
            return 0.0
        nearest = max(smaller)
        return float(self._by_size[nearest] * 2 ** (size - nearest))

    @property
    def longest_s(self) -> float:
        """The longest step of the last one to two minutes."""
        return max(self._longest_s, self._previous_longest_s)


def _average(old: float, new: float) -> float:
    return new if old == 0.0 else old + _WEIGHT * (new - old)
