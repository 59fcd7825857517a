"""What the engine measures about its own steps.

Owns the moving averages of `Load` and the longest recent step. Must not read a clock.
"""

from typing import Final

_WEIGHT: Final = 0.1
"""A new step counts a tenth: about the last second at 20 ms per step decides."""

_WINDOW_S: Final = 60.0

_PREFILL_MEMORY_TOKENS: Final = 8192
"""About how many of the last prefilled tokens decide the rate. An average over steps would let a
cached prompt's 10 tokens in a 5 ms step weigh as much as 4,000 tokens in 100 ms, and a router
would take the worker that has seen the most hits for the slowest."""

_MIN_PREFILL_TOKENS: Final = 256
"""A step with fewer mostly measures its fixed costs, and says nothing about the rate."""


class StepMeter:
    """Averages over steps, and how long a step should take; 0 while unknown."""

    def __init__(self) -> None:
        self.step_ms = 0.0
        self._prefill_tokens = 0.0
        self._prefill_s = 0.0
        self._longest_s = 0.0
        self._previous_longest_s = 0.0
        self._window_at = 0.0
        self._by_size: dict[int, float] = {}

    def add(self, duration_s: float, num_tokens: int, prefill_tokens: int, now: float) -> None:
        """A step of `num_tokens` ended at `now`; `prefill_tokens` of them are in long chunks."""
        self._by_size[num_tokens.bit_length()] = duration_s
        if now - self._window_at >= _WINDOW_S:
            self._previous_longest_s, self._longest_s = self._longest_s, 0.0
            self._window_at = now
        self._longest_s = max(self._longest_s, duration_s)
        self.step_ms = _average(self.step_ms, 1e3 * duration_s)
        if prefill_tokens >= _MIN_PREFILL_TOKENS and duration_s > 0:
            kept = max(0.0, 1.0 - prefill_tokens / _PREFILL_MEMORY_TOKENS)
            self._prefill_tokens = kept * self._prefill_tokens + prefill_tokens
            self._prefill_s = kept * self._prefill_s + duration_s

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
    def prefill_tokens_per_s(self) -> float:
        """Tokens per second of the recent steps that prefilled."""
        return self._prefill_tokens / self._prefill_s if self._prefill_s else 0.0

    @property
    def longest_s(self) -> float:
        """The longest step of the last one to two minutes."""
        return max(self._longest_s, self._previous_longest_s)


def _average(old: float, new: float) -> float:
    return new if old == 0.0 else old + _WEIGHT * (new - old)
