"""Loops: an agent that makes the same calls again and learns nothing from them.

Owns what a loop is. Must not know what is done about one.

A position of a loop repeats if its call is the same and its result is the same; or if the same tool
gives the same error, whatever it was asked. A result that changes is news, so polling that shows
progress, reading again after an edit, and pages are no loops; nor is the same test after each fix,
because the fixes differ. Something that is still pending may be asked for often.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.api import Message
from gateway.conversations.steps import AgentStep, StepReader, Strictness

MAX_PERIOD: Final = 8
PENDING_TIMES: Final = 8
"""A call whose result says that something is pending may be repeated this many times as often as
others.
"""
MAX_REPEATS: Final = 64


class Loop(NamedTuple):
    """`tools` are called in this order, for the `repeats`th time without news."""

    tools: tuple[str, ...]
    repeats: int
    is_error: bool

    @property
    def words(self) -> str:
        """The loop in a few words, with names of tools only."""
        what = "the same error" if self.is_error else "the same result"
        names = " ".join("".join(c for c in one if c.isprintable())[:40] for one in self.tools)
        return f"{names}: {what} {self.repeats} times"


class LoopFinder:
    """Finds the loop at the end of a conversation."""

    def __init__(self) -> None:
        self._reader = StepReader()

    def find(self, messages: Sequence[Message], repeats: int) -> Loop | None:
        """The loop that the last messages are in, if it has come round `repeats` times or more."""
        if len(messages) < 2 * repeats:
            return None
        most = MAX_PERIOD * repeats
        steps = self._reader.latest(messages, most)
        if not steps:
            steps = self._reader.answers(messages, most)
        found = loop_in(steps, repeats)
        if found is None or found.repeats < repeats:
            return None
        if any(one.facts.is_pending for one in steps[-len(found.tools) :]):
            most *= PENDING_TIMES
            steps = self._reader.latest(messages, most)
            found = loop_in(steps, repeats)
            if found is None or found.repeats < repeats * PENDING_TIMES:
                return None
        return found


def loop_in(steps: Sequence[AgentStep], repeats: int) -> Loop | None:
    """The loop at the end of `steps` with the shortest period."""
    for period in range(1, MAX_PERIOD + 1):
        if len(steps) < period * repeats:
            return None
        count = _rounds(steps, period)
        if count >= repeats:
            last = steps[-period:]
            tools = tuple(one.tool or "answer" for one in last)
            return Loop(tools, min(count, MAX_REPEATS), any(one.facts.is_error for one in last))
    return None


def _rounds(steps: Sequence[AgentStep], period: int) -> int:
    """How many times in a row the last `period` steps have been made."""
    length = len(steps)
    num_same = 0
    for at in range(length - period - 1, -1, -1):
        if not _is_same(steps[at], steps[at + period]):
            break
        num_same += 1
    return (num_same + period) // period


def _is_same(one: AgentStep, other: AgentStep) -> bool:
    """Whether `other` brought nothing new after `one`."""
    if one.tool != other.tool or not one.has_result_of(other):
        return False
    facts = one.facts
    if facts.is_unseen or facts.is_error:
        return facts.is_error and not facts.is_unseen
    if facts.is_ack:
        return one.has_call_of(other, Strictness.EXACT)
    return one.has_call_of(other, Strictness.PAGED if facts.is_blank else Strictness.LOOSE)
