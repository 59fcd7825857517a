"""When each step of a paced engine is over.

Owns the metronome. Must not know clocks (seconds come in as arguments) nor what a step does.
"""

from typing import final


@final
class Pace:
    """Steps of `step_s` on a grid: while one follows the other their ends are exactly `step_s`
    apart, however late a sleep returns, so that nothing drifts. A pause begins a new grid.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._due_at = float("-inf")

    def next_due(self, now: float) -> float:
        """The end of the step that starts now."""
        is_late = now - self._due_at >= self._step_s
        self._due_at = (now if is_late else self._due_at) + self._step_s
        return self._due_at
