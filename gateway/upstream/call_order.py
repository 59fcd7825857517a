"""The order in which a client gets the parts of several calls: one call after the other.

Owns which parts wait, and how many. Servers may let the parts of several calls alternate, each with
the index of its call. Some clients add every part to the call that began last, others take the
first call as done when the second one begins. Must not know chunks.
"""

from typing import Final, final

from gateway.upstream.call_parts import CallPart, CallParts

MAX_WAITING_CHARS: Final = 2**23
"""The bound on arguments that wait; beyond it all parts are passed on as they come."""


@final
class CallOrder:
    """The parts of one choice. `calls` took them before, and knows the arguments so far."""

    def __init__(self, calls: CallParts) -> None:
        self._calls = calls
        self._open = 0
        self._waiting: dict[int, list[CallPart]] = {}
        self._num_chars = 0
        self._is_full = False

    def take(self, parts: list[CallPart]) -> list[CallPart]:
        """What the client gets now: the parts of the first call until its arguments are whole, then
        what has come of the next one.
        """
        if self._is_full:
            return parts
        now = []
        for part in parts:
            if part.number <= self._open:
                now.append(part)
            else:
                self._waiting.setdefault(part.number, []).append(part)
                self._num_chars += len(part.arguments)
        while self._waiting and self._calls.is_whole(self._open):
            self._open += 1
            now += self._taken(self._open)
        return now + self.rest() if self._num_chars > MAX_WAITING_CHARS else now

    def rest(self) -> list[CallPart]:
        """All that waits, call by call; nothing waits from now on."""
        self._is_full = True
        return [part for number in sorted(self._waiting) for part in self._taken(number)]

    def _taken(self, number: int) -> list[CallPart]:
        """The waiting parts of a call, joined into one."""
        parts = self._waiting.pop(number, [])
        if len(parts) < 2:
            found = parts
        else:
            text, first = "".join(part.arguments for part in parts), parts[0]
            found = [CallPart(number, text, first.id, first.name, first.extra)]
        self._num_chars -= sum(len(part.arguments) for part in found)
        return found
