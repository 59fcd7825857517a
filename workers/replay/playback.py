"""What one sequence says and when.

Owns the order of an answer's tokens, their times, and what comes after them. Must not know clocks
(seconds come in as arguments), text, or who listens.
"""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple, final

from workers.replay.script import Rule

_NEVER = float("inf")


class Line(NamedTuple):
    """What is due now: ids to say, or why the sequence fails, or the end of the process."""

    ids: tuple[int, ...] = ()
    error: str | None = None
    die: Literal["kill", "exit", "hang"] | None = None


@final
class Part:
    """The way of one sequence through its rule's answer, from output `num_said` on.

    `due_at` is when it says its next line. `may_die` is False in starts after those that die.
    """

    def __init__(
        self,
        rule: Rule,
        answer: array[int],
        end_id: int | None,
        *,
        num_said: int,
        now: float,
        may_die: bool,
    ) -> None:
        self._rule = rule
        self._answer = answer
        self._end_id = end_id
        self._num_said = num_said
        self._die_at = rule.die_after_tokens if rule.die is not None and may_die else None
        # A sequence that goes on after another attempt has waited there.
        self.due_at = now + (0.0 if num_said else rule.wait_s)
        if self._die_at is not None and num_said >= self._die_at > 0:
            self._die_at = None

    def next_line(self) -> Line:
        """What is due; the next one is `token_ms` later for each of its tokens."""
        if self._num_said == self._die_at:
            return Line(die=self._rule.die)
        ids = self._next_ids()
        if not ids:
            if self._rule.finish == "error":
                return Line(error=f"the script's rule {self._rule.name!r} ends with an error")
            self.due_at = _NEVER
            return Line()
        self._num_said += len(ids)
        self.due_at += len(ids) * self._rule.token_ms / 1e3
        return Line(ids)

    def _next_ids(self) -> tuple[int, ...]:
        """The next chunk, which ends where the process dies; none where the answer breaks off."""
        rule, answer, said = self._rule, self._answer, self._num_said
        most = rule.chunk_tokens
        if self._die_at is not None and said < self._die_at:
            most = min(most, self._die_at - said)
        if rule.finish == "length":
            return tuple(answer[index % len(answer)] for index in range(said, said + most))
        ids = tuple(answer[said : said + most])
        if not ids and rule.finish == "stop" and self._end_id is not None:
            return (self._end_id,)
        return ids
