"""The requests that are open, and the last ones that were.

Owns both bounds and the move from one to the other. Must not know what a request does. One more
request pushes the oldest out; those that failed or moved have a ring of their own, so that they
are still there when somebody looks.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, final

from gateway.telemetry.request_trace import RequestTrace, TurnTrace

MAX_RECENT: Final = 384
MAX_NOTABLE: Final = 128
"""Ended requests that are kept: 1 to 5 KB each, as their decisions hold a line per worker."""
MAX_FIRST: Final = 4096
"""First tokens between two samples."""


@final
class RequestTraces:
    """`on_end` is called with each request that is over; it must not raise. `open` and `firsts` are
    public for reading.
    """

    def __init__(self, *on_end: Callable[[RequestTrace], None]) -> None:
        self._on_end = on_end
        self.open: dict[int, RequestTrace] = {}
        self._recent: deque[RequestTrace] = deque(maxlen=MAX_RECENT)
        self._notable: deque[RequestTrace] = deque(maxlen=MAX_NOTABLE)
        self.firsts: deque[float] = deque(maxlen=MAX_FIRST)
        self.num_ended = 0
        self.num_failed = 0
        self.num_by_cloud = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._output_tokens = 0
        self._number = 0

    @property
    def output_tokens(self) -> int:
        """Of all requests so far, the open ones included."""
        return self._output_tokens + sum([trace.turn.output_tokens for trace in self.open.values()])

    def enter(self, trace: RequestTrace) -> None:
        """A request is here."""
        self._number += 1
        trace.number = trace.turn.number = self._number
        self.open[self._number] = trace

    def note_first(self, trace: RequestTrace, now: float) -> None:
        """Its first content goes out."""
        trace.first_at = now
        self.firsts.append(now - trace.received_at)

    def end(self, trace: RequestTrace) -> None:
        """Its answer is over; `status`, `usage` and `ended_at` say how."""
        self.num_ended += 1
        self.num_failed += trace.status >= 500 or trace.status in {408, 429}
        self.num_by_cloud += trace.served_by.startswith("cloud:")
        if trace.usage is not None:
            self.prompt_tokens += trace.usage.prompt_tokens
            self.cached_tokens += trace.usage.cached_tokens
        for listener in self._on_end:
            listener(trace)
        if not trace.turn.num_open:
            self._close(trace)

    def end_turn(self, turn: TurnTrace) -> None:
        """A turn is over. Its answer may be over too, or still be on its way."""
        turn.num_open -= 1
        trace = self.open.get(turn.number)
        if trace is not None and trace.ended_at is not None and not turn.num_open:
            self._close(trace)

    def take_over(self, trace: RequestTrace, turn: TurnTrace) -> None:
        """The client of a detached turn came again, as `trace`, which has that turn now."""
        detached = self.open.pop(turn.number, None)
        turn.number = trace.number
        trace.turn = turn
        if detached is not None:
            self._keep(detached)

    def recent(self) -> Iterator[RequestTrace]:
        """Those that are over, the last one first; then older ones that are notable."""
        yield from reversed(self._recent)
        oldest = self._recent[0].unix_time if self._recent else 0.0
        yield from (one for one in reversed(self._notable) if one.unix_time < oldest)

    def find(self, name: str) -> RequestTrace | None:
        """The request of that id, or of the name that events call it."""
        for trace in (*self.open.values(), *self._recent, *self._notable):
            if trace.answers_to(name):
                return trace
        return None

    def _close(self, trace: RequestTrace) -> None:
        del self.open[trace.number]
        self._output_tokens += trace.output_tokens
        self._keep(trace)

    def _keep(self, trace: RequestTrace) -> None:
        self._recent.append(trace)
        if trace.is_notable:
            self._notable.append(trace)
