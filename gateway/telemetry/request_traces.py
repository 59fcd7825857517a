"""What operators see of requests: when each came, where it waited, which servers had it.

Owns the plain facts of a request while it is open and after its end, and the bounds of what is
kept: one more request pushes the oldest out, and those that failed or moved have a ring of their
own, so that they can be read afterwards. The HTTP edge writes those of the answer, the
turn those of its attempts. Must not know how requests run. A token costs nothing here: the numbers
of tokens are read from `outputs` on request.

Times are on trio's clock, in seconds.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol, final

import msgspec

from gateway.api import Usage

MAX_ATTEMPTS: Final = 24
"""A request that is tried more often shows its first attempts and its last one."""

NAME_DIGITS: Final = 8
"""So much of a sequence's id stands in events."""
OK: Final = 200
MAX_RECENT: Final = 384
MAX_NOTABLE: Final = 128
"""Ended requests that are kept: 1 to 5 KB each, as their decisions hold a line per worker."""


class Candidate(msgspec.Struct, frozen=True):
    """A ready worker and what a request would cost there, in ms of delay for everybody. `running`:
    sequences that were on it at the time.
    """

    worker: str
    is_chosen: bool
    running: int
    cached_tokens: int
    uncached_tokens: int
    wait_ms: float
    prefill_ms: float
    interference_ms: float
    cost_ms: float


class Decision(Protocol):
    """Why a worker was chosen. Kept as it is: few decisions are ever looked at."""

    @property
    def why(self) -> str:
        """In one word."""
        ...

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The workers that were weighed."""
        ...


class Output(Protocol):
    """The answer of one sequence so far."""

    @property
    def num_tokens(self) -> int: ...


class AttemptTrace(msgspec.Struct):
    """One try on a worker, or one question to a provider. `asked_at`: since when it waited for that
    place; `first_at`: its first token. `ended_at`, `end` (why) and `output_tokens` (of the choice,
    by then) are those of one that has failed; the last one ends with the request. `num_busy`: how
    often its server had no room.
    """

    server: str
    asked_at: float
    began_at: float
    reason: str
    decision: Decision | None = None
    is_cloud: bool = False
    choice: int = 0
    cached_tokens: int = 0
    first_at: float | None = None
    ended_at: float | None = None
    end: str = ""
    output_tokens: int = 0
    num_busy: int = 0

    def fail(self, now: float, end: str, output_tokens: int = 0) -> None:
        """It has ended without an answer, or with a part of one; `end` says why."""
        self.ended_at = now
        self.end = end
        self.output_tokens = output_tokens


class TurnTrace(msgspec.Struct):
    """The turns' part. `number` is that of the request that they belong to, of which `num_open` are
    under way. `ticket` waits for a place, or is 0. `prompt_tokens` are those of all prompts.
    `names` are what events and logs call the request.
    """

    number: int = 0
    num_open: int = 0
    model: str = ""
    prompt_tokens: int = 0
    ticket: int = 0
    attempts: list[AttemptTrace] = []
    num_attempts: int = 0
    outputs: list[Output] = []
    names: tuple[bytes, ...] = ()

    @property
    def output_tokens(self) -> int:
        """Tokens of all choices so far, as far as the gateway sees them."""
        return sum([output.num_tokens for output in self.outputs])

    def begin(self, attempt: AttemptTrace) -> None:
        """A server has the request now."""
        self.ticket = 0
        self.num_attempts += 1
        attempts = self.attempts
        if not attempts:
            attempts.append(attempt)
            return
        last = attempts[-1]
        if last.end == "busy" and last.server == attempt.server:
            attempt.num_busy = last.num_busy + 1
            attempt.asked_at = last.asked_at
            attempts[-1] = attempt
        elif len(attempts) < MAX_ATTEMPTS:
            attempts.append(attempt)
        else:
            attempts[-1] = attempt


class RequestTrace(msgspec.Struct):
    """One request. `client` is the program that sent it. `served_by` is "worker", "cloud:NAME" or
    "none". `unix_time` is when it came, as `received_at`. `finish`: why the answer ended, unless a
    provider's bytes were passed on. `parent` are the client's `traceparent` and
    `tracestate`, where spans are exported. `num_seen_tokens` is counted at the end.
    """

    number: int = 0
    id: str = ""
    api: str = ""
    key: str = ""
    client: str = ""
    model: str = ""
    is_stream: bool = False
    received_at: float = 0.0
    unix_time: float = 0.0
    first_at: float | None = None
    ended_at: float | None = None
    status: int = 0
    error: str = ""
    served_by: str = "none"
    finish: str = ""
    parent: tuple[str, str] = ("", "")
    usage: Usage | None = None
    num_seen_tokens: int = 0
    turn: TurnTrace = msgspec.field(default_factory=TurnTrace)

    @property
    def output_tokens(self) -> int:
        """Those of the usage, if there is one, else those that were seen."""
        if self.usage is not None:
            return self.usage.completion_tokens
        return self.num_seen_tokens or self.turn.output_tokens

    def answers_to(self, name: str) -> bool:
        """Whether `name` is its id, or what an event calls it."""
        is_short = len(name) < NAME_DIGITS
        return name == self.id or (
            not is_short and any(one.hex().startswith(name) for one in self.turn.names)
        )


@final
class RequestTraces:
    """`on_end` is called with each request that is over; it must not raise. `keeps_parents`: spans
    are exported, so the client's are kept. All is public for reading.
    """

    def __init__(
        self, *on_end: Callable[[RequestTrace], None], keeps_parents: bool = False
    ) -> None:
        self._on_end = on_end
        self.keeps_parents = keeps_parents
        self.open: dict[int, RequestTrace] = {}
        self._recent: deque[RequestTrace] = deque(maxlen=MAX_RECENT)
        self._notable: deque[RequestTrace] = deque(maxlen=MAX_NOTABLE)
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
        return self._output_tokens + sum([trace.output_tokens for trace in self.open.values()])

    def enter(self, trace: RequestTrace) -> None:
        """A request is here."""
        number = self._number = self._number + 1
        trace.number = trace.turn.number = number
        self.open[number] = trace

    def end(self, trace: RequestTrace) -> None:
        """Its answer is over; `status`, `usage` and `ended_at` say how."""
        self.num_ended += 1
        if trace.status != OK:
            self.num_failed += trace.status >= 500 or trace.status in {408, 429}
        if trace.usage is not None:
            self.prompt_tokens += trace.usage.prompt_tokens
            self.cached_tokens += trace.usage.cached_tokens
        if trace.served_by != "worker":
            self.num_by_cloud += trace.served_by.startswith("cloud:")
        for listener in self._on_end:
            listener(trace)
        if not trace.turn.num_open:
            self._close(trace)

    def end_turn(self, turn: TurnTrace) -> None:
        """A turn is over whose client has left, or had come again as another request."""
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

    def firsts(self, since: float) -> list[float]:
        """Seconds to the first token of those requests, as far as they are kept, that had theirs
        after `since` (on the clock of traces).
        """
        return [
            trace.first_at - trace.received_at
            for trace in (*self.open.values(), *self._recent)
            if trace.first_at is not None and trace.first_at > since
        ]

    def find(self, name: str) -> RequestTrace | None:
        """The request of that id, or of the name that events call it."""
        for trace in (*self.open.values(), *self._recent, *self._notable):
            if trace.answers_to(name):
                return trace
        return None

    def _close(self, trace: RequestTrace) -> None:
        del self.open[trace.number]
        if trace.usage is None:
            trace.num_seen_tokens = trace.turn.output_tokens
        # An output holds on to where its text went, and so to this.
        trace.turn.outputs.clear()
        self._output_tokens += trace.output_tokens
        self._keep(trace)

    def _keep(self, trace: RequestTrace) -> None:
        self._recent.append(trace)
        if trace.status != OK or trace.turn.num_attempts > 1:
            self._notable.append(trace)
