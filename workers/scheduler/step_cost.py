"""How long a step takes, learned from those that were measured.

Owns the model of a step's time: what its decodes take, and what each prompt token adds by the
length of its context. Must not read a clock, nor know sequences.

A step of `n` decodes and prompt chunks takes about

    decode_s(n) + sum over chunks of length * (token_s + context_s * mean context)

The decodes are averaged by their number, in powers of two, and lie on lines between these averages:
where prompts arrive all the time, no step has decodes alone, and what was measured when there were
half as many would make a crowd look small. What prompts add is a line through the
last steps that had some, by least absolute deviations: a step that waited for a compiler does not
bend it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from workers.scheduler.plan import Chunk

FIRST_TOKENS: Final = 512
"""How many prompt tokens may run beside decodes before anything was measured."""

_TRUST: Final = 2
"""A step may have at most this multiple of the prompt tokens of the largest remembered step. So
larger steps are measured one doubling at a time."""

_MEMORY: Final = 16
"""The last steps with prompts that are remembered: 0.1 to 1 s of a busy card. A fit takes 60 us."""

_FULL_WEIGHT: Final = 1024
"""A step of fewer prompt tokens counts in proportion: its fixed costs hide what a token adds."""

_DECODE_WEIGHT: Final = 0.2
"""The weight of a new step in the averages of its number of decodes."""

_LEAST_SPREAD: Final = 256.0
"""Tokens. If the mean contexts of the steps differ by less, the old slope is kept."""

_STEEPEST: Final = 1 / 64
"""The most that a token of context adds, as a share of `token_s`. An 8B on an H200 has 1/20,000, a
network of a few layers on a CPU some 1/500."""

_HIGHEST: Final = 4.0
"""The time per token of a step counts as at most this multiple of the median."""

_NOISE: Final = 0.03
"""Deviations below this share of the median have nearly the same weight; otherwise the weight of a
point on the line would be infinite."""

_ITERATIONS: Final = 3
_TINY: Final = 1e-12


class _Measured(NamedTuple):
    """A step's decodes, prompt tokens, their mean context, and how long it took."""

    num_decodes: int
    tokens: int
    context: float
    duration_s: float


class _Decodes(NamedTuple):
    """Steps of decodes alone: the mean of their numbers, and of their times."""

    number: float
    duration_s: float


@final
class StepCost:
    """Seconds of steps. Nothing is known at first: then decodes and tokens cost nothing, and
    `most_tokens` bounds what is tried.
    """

    def __init__(self) -> None:
        self.token_s = 0.0
        self.context_s = 0.0
        self.most_tokens = FIRST_TOKENS
        self._decodes: dict[int, _Decodes] = {}
        """The times by the number of bits of the number of decodes, in rising order."""
        self._measured: deque[_Measured] = deque(maxlen=_MEMORY)

    def __repr__(self) -> str:
        return (
            f"<StepCost {1e6 * self.token_s:.3g} us a token, {1e9 * self.context_s:.3g} ns by "
            f"context, at most {self.most_tokens} tokens>"
        )

    def decode_s(self, num_decodes: int) -> float:
        """Seconds of a step of `num_decodes` decodes alone: of the next smaller number that was
        measured, and on the line from it to the next larger one, or on the last line. Such a line
        rises at most as if each decode cost the same, so that one late step bends it little. Fewer
        than were measured take as long as the least, and 0 the least time of a step.
        """
        low: _Decodes | None = None
        slope = 0.0
        for seen in self._decodes.values():
            if low is not None:
                steepest = low.duration_s / low.number
                rise = (seen.duration_s - low.duration_s) / (seen.number - low.number)
                slope = min(max(0.0, rise), steepest)
            elif num_decodes <= seen.number:
                return seen.duration_s
            if low is not None and num_decodes < seen.number:
                break
            low = seen
        if low is None:
            return 0.0
        return low.duration_s + slope * (num_decodes - low.number)

    def prompt_s(self, start: int, length: int) -> float:
        """What a chunk of `length` prompt tokens behind `start` others adds to a step."""
        return length * (self.token_s + self.context_s * (start + length / 2))

    def tokens_within(self, seconds: float, start: int) -> float:
        """The longest chunk behind `start` tokens that adds at most `seconds`; may be infinite."""
        if seconds <= 0:
            return 0.0
        slope = self.token_s + self.context_s * start
        # Products of two of these numbers could be too small for a float.
        root = slope + math.hypot(slope, math.sqrt(2 * self.context_s) * math.sqrt(seconds))
        return 2 * seconds / root if root > 0 else math.inf

    def add(self, chunks: Sequence[Chunk], num_prompt: int, duration_s: float) -> None:
        """A step took `duration_s`; `num_prompt` of its tokens are in chunks of more than one."""
        if num_prompt:
            self._add_prompts(chunks, duration_s)
            return
        self._add_decodes(len(chunks), duration_s)

    def _add_decodes(self, number: int, duration_s: float) -> None:
        # A step that is more than twice as long as usual counts as twice as long.
        size = number.bit_length()
        old = self._decodes.get(size)
        if old is None:
            self._decodes[size] = _Decodes(number, duration_s)
            self._decodes = dict(sorted(self._decodes.items()))
        elif duration_s < old.duration_s / 2:
            self._decodes[size] = _Decodes(number, duration_s)
        else:
            late_s = min(duration_s, 2 * old.duration_s) - old.duration_s
            self._decodes[size] = _Decodes(
                old.number + _DECODE_WEIGHT * (number - old.number),
                old.duration_s + _DECODE_WEIGHT * late_s,
            )

    def _add_prompts(self, chunks: Sequence[Chunk], duration_s: float) -> None:
        num_decodes, tokens, depth = 0, 0, 0.0
        for chunk in chunks:
            length = chunk.length
            if length == 1:
                num_decodes += 1
            else:
                tokens += length
                depth += length * (chunk.start + length / 2)
        self._measured.append(_Measured(num_decodes, tokens, depth / tokens, duration_s))
        self._fit()
        largest = max(seen.tokens for seen in self._measured)
        self.most_tokens = max(FIRST_TOKENS, _TRUST * largest)

    def _fit(self) -> None:
        """The line with the least sum of weighted absolute deviations, by reweighting squares."""
        points = [
            (
                min(seen.tokens, _FULL_WEIGHT),
                seen.context,
                max(0.0, seen.duration_s - self.decode_s(seen.num_decodes)) / seen.tokens,
            )
            for seen in self._measured
        ]
        slope = self.context_s
        usual = _median([(y, weight) for weight, _, y in points])
        points = [(weight, x, min(y, _HIGHEST * usual)) for weight, x, y in points]
        noise = _NOISE * usual + _TINY
        level = _median([(y - slope * x, weight) for weight, x, y in points])
        for _ in range(_ITERATIONS):
            weights = [n / (abs(y - level - slope * x) + noise) for n, x, y in points]
            weighted = [(w, x, y) for w, (_, x, y) in zip(weights, points, strict=True)]
            total = sum(weights)
            mean_x = sum(w * x for w, x, _ in weighted) / total
            mean_y = sum(w * y for w, _, y in weighted) / total
            spread = sum(w * (x - mean_x) ** 2 for w, x, _ in weighted) / total
            if spread >= _LEAST_SPREAD**2:
                products = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in weighted)
                slope = max(0.0, products / total / spread)
            level = max(0.0, mean_y - slope * mean_x)
            slope = min(slope, _STEEPEST * level)
        self.token_s, self.context_s = level, slope


def _median(weighted: list[tuple[float, int]]) -> float:
    """The value with half of the weight on either side."""
    half = sum(weight for _, weight in weighted) / 2
    for value, weight in sorted(weighted):
        half -= weight
        if half <= 0:
            return value
    return 0.0
