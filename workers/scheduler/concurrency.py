"""How many sequences an engine takes at once.

Owns the ceiling, which an engine's start derives from the memory for keys and values, and the
estimates made while it serves: how long answers become, how much a new sequence takes, how many
sequences have a place. Must not know blocks' numbers, plans or devices: counts in, counts out.

A sequence starts only if its answer should fit beside those of the running ones: when blocks run
out, the latest sequence loses all that it has computed. The lengths of answers are not known in
advance, so a preemption raises the estimate at once, and each sequence that ends lowers it a little
again.
"""

import sys
from collections.abc import Iterable
from operator import itemgetter
from typing import Final, final

CARD_SEQS: Final = 256
"""The ceiling on a card: the largest batch with which CUDA graphs and the sampler's tables are
measured.
"""

CPU_SEQS: Final = 16
"""The ceiling on a CPU, where the time of a step grows with its rows."""

_LEAST_TOKENS: Final = 512
"""Tokens of a short chat. A ceiling that leaves each sequence fewer would never be reached, but the
logits of all its rows would take memory from keys and values."""

_LEAST_SEQS: Final = 4

USUAL_OUTPUTS: Final = 512
"""Tokens of an answer before any has ended; gateways assume the same."""

_WEIGHT: Final = 0.05
"""The weight of a new observation in a mean, once there are twenty."""

_OUTLIVED: Final = 0.25
"""At least this share of the usual length, or of the answer's tokens so far if these are more, is
expected to come: an answer that is longer than the mean usually goes on, and the answers that ended
first, which made the mean, were the shortest."""

_MEAN_SHARE: Final = 0.5
"""The share of an answer's final length that its sequence holds on average over its life."""

_RAISE: Final = 1.25
_LOWER: Final = 0.95
_MOST_CAUTION: Final = 2.0
"""Factors of the estimated length: a preemption multiplies it by `_RAISE`, each sequence that ends
by `_LOWER`. One preemption is forgotten after five ends, many in a row after fourteen."""


def most_sequences(wanted: int | None, kv_tokens: int, ceiling: int) -> int:
    """The `max_seqs` of an engine with `kv_tokens` tokens of keys and values: what the
    configuration says, else what the memory is good for, at most `ceiling`.
    """
    if wanted is not None:
        return wanted
    return min(ceiling, max(_LEAST_SEQS, kv_tokens // _LEAST_TOKENS))


def peak_growth(running: Iterable[tuple[int, int]]) -> int:
    """The most additional blocks that sequences hold together at any time. Each is given by the
    blocks that it returns when it ends, and those that it still takes until then; all grow at the
    same pace.

    This is less than the sum of what they take, because the short ones have returned their blocks
    when the longest ends. (Gong et al., the past-future scheduler, ASPLOS 2025.)
    """
    num_held = peak = 0
    lives = sorted(running, key=itemgetter(1), reverse=True)
    total = sum([held for held, _ in lives])
    for num_going_on, (held, growth) in enumerate(lives, 1):
        num_held += held
        peak = max(peak, num_held + num_going_on * growth - total)
    return peak


@final
class Concurrency:
    """`places` sequences have a place, at most `max_seqs`. An answer has `usual_outputs` tokens
    until some have ended. One writer: the scheduler.
    """

    __slots__ = (
        "_caution",
        "_max_seqs",
        "_num_answers",
        "_num_starts",
        "_output",
        "_own",
        "places",
    )

    def __init__(self, max_seqs: int, usual_outputs: int = USUAL_OUTPUTS) -> None:
        self.places = max_seqs
        self._max_seqs = max_seqs
        self._output = float(usual_outputs)
        self._num_answers = 0
        self._caution = 1.0
        self._own = 0.0
        self._num_starts = 0

    def __repr__(self) -> str:
        return (
            f"<Concurrency {self.places}/{self._max_seqs} places, {self._output:.0f} tokens x "
            f"{self._caution:.2f} an answer, {self._own:.1f} blocks a start>"
        )

    def ended(self, num_outputs: int) -> None:
        """A sequence that had started is over, with `num_outputs` tokens."""
        self._num_answers += 1
        self._output += max(_WEIGHT, 1 / self._num_answers) * (num_outputs - self._output)
        self._caution = max(1.0, _LOWER * self._caution)

    def preempted(self) -> None:
        """Blocks ran out: answers are longer than expected."""
        self._caution = min(_MOST_CAUTION, _RAISE * self._caution)

    def started(self, num_starts: int, num_blocks: int) -> None:
        """`num_starts` sequences took `num_blocks` free blocks; blocks that they share with others
        count once.
        """
        for _ in range(num_starts):
            self._num_starts += 1
            weight = max(_WEIGHT, 1 / self._num_starts)
            self._own += weight * (num_blocks / num_starts - self._own)

    def tokens_left(self, num_outputs: int, max_outputs: int) -> int:
        """How many more tokens an answer with `num_outputs` tokens so far should get."""
        usual = self._caution * self._output
        left = max(usual - num_outputs, _OUTLIVED * max(usual, num_outputs))
        return max(0, min(max_outputs - num_outputs, round(left)))

    def revise(
        self, num_running: int, num_spare: int, block_size: int, most: int = sys.maxsize
    ) -> int:
        """Estimate the places again, and return them: one for each running sequence, and as many as
        fit into the `num_spare` blocks that the running ones should not need; at most `most`.
        """
        each = self._own + _MEAN_SHARE * self._caution * self._output / block_size
        fitting = num_running + int(max(0, num_spare) / max(1.0, each))
        most = min(self._max_seqs, most)
        self.places = max(1, min(most, fitting)) if self._num_starts else most
        return self.places
