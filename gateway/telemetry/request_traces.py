"""What operators see of requests: when each came, where it waited, which servers had it.

Owns the plain facts of a request while it is open and after its end, and the bounds of what is
kept: one more request pushes the oldest out, and those that failed or moved have a ring of their
own, so that they are still there when somebody looks. The HTTP edge writes those of
the answer, the turn those of its attempts. Must not know how requests run. A token costs nothing
here: the numbers of tokens are read from `outputs` when somebody looks.

Times are on trio's clock, in seconds.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, final

import msgspec

from gateway.api import Usage

MAX_ATTEMPTS: Final = 24
"""A request that is tried more often shows its first attempts and its last one."""


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
    place; `first_at`: its first token; `end`: why it ended without an answer, "" if it did not.
    `output_tokens` is how many the choice had when the attempt ended. `num_busy`: how often its
    server had no room.
    """

    server: str
    is_cloud: bool
    choice: int
    asked_at: float
    began_at: float
    reason: str
    decision: Decision | None = None
    cached_tokens: int = 0
    first_at: float | None = None
    ended_at: float | None = None
    end: str = ""
    output_tokens: int = 0
    num_busy: int = 0

    def over(self, now: float, output_tokens: int = 0) -> None:
        """It has ended."""
        self.ended_at = now
        self.output_tokens = output_tokens


class TurnTrace(msgspec.Struct):
    """The turns' part. `number` is that of the request that they belong to, of which `num_open` are
    under way. `ticket` waits for a place since `asked_at`, or is 0. `prompt_tokens` are those of
    all prompts. `names` are what events and logs call the request.
    """

    number: int = 0
    num_open: int = 0
    model: str = ""
    prompt_tokens: int = 0
    ticket: int = 0
    asked_at: float = 0.0
    attempts: list[AttemptTrace] = []
    num_attempts: int = 0
    outputs: list[Output] = []
    num_dropped_tokens: int = 0
    names: list[bytes] = []

    @property
    def output_tokens(self) -> int:
        """Tokens of all choices so far, as far as the gateway sees them."""
        return self.num_dropped_tokens + sum([output.num_tokens for output in self.outputs])

    def enter(self, model: str, prompt_tokens: int, name: bytes, output: Output | None) -> None:
        """A sequence of the request begins; it is known as `name`."""
        self.model = model
        self.prompt_tokens += prompt_tokens
        if len(self.names) < MAX_ATTEMPTS:
            self.names.append(name)
        if output is not None:
            self.outputs.append(output)

    def ask(self, ticket: int, now: float) -> None:
        """The ticket asks for a place."""
        self.ticket, self.asked_at = ticket, now

    def begin(
        self,
        server: str,
        now: float,
        reason: str,
        *,
        choice: int = 0,
        is_cloud: bool = False,
        decision: Decision | None = None,
    ) -> AttemptTrace:
        """A server has the request now."""
        asked_at = self.asked_at if self.ticket else now
        attempt = AttemptTrace(server, is_cloud, choice, asked_at, now, reason, decision)
        self.ticket = 0
        self.num_attempts += 1
        attempts = self.attempts
        if attempts and (last := attempts[-1]).end == "busy" and last.server == server:
            attempt.num_busy = last.num_busy + 1
            attempt.asked_at = last.asked_at
            attempts[-1] = attempt
        elif len(attempts) < MAX_ATTEMPTS:
            attempts.append(attempt)
        else:
            attempts[-1] = attempt
        return attempt

    def drop(self, output: Output) -> None:
        """The sequence is over; its output is not kept."""
        self.outputs.remove(output)
        self.num_dropped_tokens += output.num_tokens


class RequestTrace(msgspec.Struct):
    """One request. `client` is the program that sent it. `served_by` is "worker", "cloud:NAME" or
    "none". `unix_time` is when it came, as `received_at`.
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
    usage: Usage | None = None
    turn: TurnTrace = msgspec.field(default_factory=TurnTrace)

    @property
    def output_tokens(self) -> int:
        """Those of the usage, if there is one, else those that were seen."""
        return self.turn.output_tokens if self.usage is None else self.usage.completion_tokens

    @property
    def is_notable(self) -> bool:
        """It failed, or needed more than one server."""
        return not 200 <= self.status < 300 or self.turn.num_attempts > 1

    def answers_to(self, name: str) -> bool:
        """Whether `name` is its id, or what an event calls it."""
        return name == self.id or any(one.hex().startswith(name) for one in self._names(name))

    def _names(self, name: str) -> Sequence[bytes]:
        return self.turn.names if len(name) >= 8 else ()


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
