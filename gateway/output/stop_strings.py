"""Stop strings in a stream of text.

Holds back text that could still become a stop string, so that no part of one is ever emitted,
wherever the stream is split. Must not know tokens.
"""

from collections.abc import Sequence
from typing import Final


class StopMatcher:
    """Finds the stop string that is completed first (the longest of those that end together).

    One Knuth-Morris-Pratt automaton per stop: its state is how much of the stop the text so far
    ends with, which is exactly what must be held back. `matched` is the stop string that ended the
    stream; nothing is emitted after it. While `is_quiet`, text without any of `marks` passes
    unchanged.
    """

    __slots__ = (
        "_automata",
        "_held",
        "can_match",
        "marks",
        "matched",
    )

    def __init__(self, stops: Sequence[str]) -> None:
        self._automata = [_Automaton(stop) for stop in stops]
        self.marks = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.can_match = bool(stops)
        self.matched: str | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is held back and no stop string was found."""
        return not self._held and self.matched is None

    @property
    def num_held(self) -> int:
        """How many characters are held back."""
        return len(self._held)

    def push(self, text: str) -> str:
        """Take more text; return what may be emitted now."""
        if self.matched is not None:
            return ""
        if not self._held and self.marks.isdisjoint(text):
            return text
        ends = [(automaton.feed(text), automaton) for automaton in self._automata]
        found = [(end, -len(automaton.stop), automaton.stop) for end, automaton in ends if end]
        whole = self._held + text
        if found:
            end, _, self.matched = min(found)
            shown = whole[: len(self._held) + end - len(self.matched)]
            self._held = ""
            return shown
        keep = max(automaton.state for automaton in self._automata)
        cut = len(whole) - keep
        self._held = whole[cut:]
        return whole[:cut]

    def flush(self) -> str:
        """The held text: the stream has ended, so it is not a stop string."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """How many characters of one stop (not empty) the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        self._back = _fallbacks(stop)

    def feed(self, text: str) -> int:
        """Number of characters of `text` through the end of the first match; 0 for none."""
        state, stop, back = self.state, self.stop, self._back
        if state == 0 and stop[0] not in text:
            return 0
        for at, char in enumerate(text, 1):
            while state and stop[state] != char:
                state = back[state - 1]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                return at
        self.state = state
        return 0


NO_STOPS: Final = StopMatcher(())
"""Without stop strings there is no state, so all sequences share this one."""


def _fallbacks(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    back = [0] * len(stop)
    state = 0
    for at in range(1, len(stop)):
        while state and stop[state] != stop[at]:
            state = back[state - 1]
        if stop[state] == stop[at]:
            state += 1
        back[at] = state
    return back
