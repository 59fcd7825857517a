"""How long a sequence may be silent at its place.

Owns the bounds of one attempt, as a small state machine over the caller's clock. Must not know
frames, workers or what follows from a silence.

    waiting  --its first part--> speaking  --its end--> (the attempt is over)
       |                            |
       | nothing for `first_s`      | nothing for `stall_s`
       v                            v
    overdue                      overdue

Signs of life (a prompt's progress, a queue position, a preemption that the engine reports) renew
either bound. Progress of other sequences of the same worker renews the first one only: an engine
with work may keep a sequence waiting, but not in the middle of its answer. Their progress renews it
for at most `MOST_RENEWALS` times the bound, so that no sequence is forgotten beside busy ones.
"""

from typing import Final

MOST_RENEWALS: Final = 10
SECOND_PLACE: Final = 4.0
"""The bounds are this many times longer at a second place. Silence moves a sequence only once: if a
prompt takes long, every further move would compute it from the beginning.
"""


class Silence:
    """The bounds of one attempt that begins at `now`. `num_parts` and `num_signs` in `look` only
    rise: what has come of the answer, and signs of life.
    """

    __slots__ = ("_due_at", "_first_s", "_given_up_at", "_num_parts", "_num_signs", "_stall_s")

    def __init__(
        self,
        first_s: float,
        stall_s: float,
        now: float,
        *,
        num_parts: int = 0,
        most_s: float | None = None,
    ) -> None:
        """`most_s`: how long others may renew the first bound, by default `MOST_RENEWALS` of it."""
        self._first_s = first_s
        self._stall_s = stall_s
        self._due_at = now + first_s
        self._given_up_at = now + (MOST_RENEWALS * first_s if most_s is None else most_s)
        self._num_parts = num_parts
        self._num_signs = 0

    @property
    def is_waiting(self) -> bool:
        """Whether no part has come yet."""
        return self._given_up_at > 0.0

    def has_moved(self, num_parts: int) -> bool:
        """Whether a part of the answer has come since the last `look`."""
        return num_parts != self._num_parts

    def look(self, now: float, num_parts: int, num_signs: int, *, others_move: bool) -> bool:
        """Whether the attempt is overdue, judged at least a few times within each bound."""
        if num_parts != self._num_parts:
            self._num_parts = num_parts
            self._given_up_at = 0.0
            self._num_signs = num_signs
            self._due_at = now + self._stall_s
            return False
        is_waiting = self.is_waiting
        if num_signs != self._num_signs:
            self._num_signs = num_signs
            self._due_at = now + (self._first_s if is_waiting else self._stall_s)
            return False
        if is_waiting and others_move:
            self._due_at = min(now + self._first_s, max(self._due_at, self._given_up_at))
        return now >= self._due_at
