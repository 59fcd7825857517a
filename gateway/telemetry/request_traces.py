"""Request traces: what operators see of requests (when each came, where it waited, which servers
had it).

Owns the facts of a request while it is open and after its end, and the bound on ended requests: the
oldest is dropped, but requests that failed or moved have a ring of their own, so that they can be
read later. The HTTP edge writes the facts of the answer, the turn those of its attempts. Must not
know how requests run. A token costs nothing here: token counts are read from `outputs` on demand.

Times are on trio's clock, in seconds.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol, final

import msgspec

from config import ConversationLimitsConfig
from gateway.api import Usage
from protocol.ids import WorkerId

MAX_ATTEMPTS: Final = 24
"""A request with more attempts shows its first ones and its last one."""

NAME_DIGITS: Final = 8
"""How many digits of a sequence's id appear in events."""
OK: Final = 200
MAX_RECENT: Final = 384
MAX_NOTABLE: Final = 128
"""Ended requests that are kept: 1 to 5 KB each, as their decisions hold a line per worker."""


class CandidateWorker(msgspec.Struct, frozen=True):
    """A ready worker, and the cost of a request there in ms of delay for all requests. `running`
    sequences were on it at that time. `host_tokens` of the cached tokens had to be loaded from its
    host.
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
    host_tokens: int = 0
    load_ms: float = 0.0


class Decision(Protocol):
    """Why a worker was chosen. It is evaluated only when it is looked at, which is seldom."""

    @property
    def why(self) -> str:
        """The reason in one word."""
        ...

    @property
    def candidates(self) -> tuple[CandidateWorker, ...]:
        """The workers that were weighed."""
        ...


class TracedOutput(Protocol):
    """The answer of one sequence so far."""

    @property
    def num_tokens(self) -> int: ...


class AttemptTrace(msgspec.Struct):
    """One attempt on a worker or provider. It waited for its place from `asked_at`, and had its
    first token at `first_at`. A failed attempt has `ended_at`, `end` (the reason) and
    `output_tokens` (of the choice so far); the last attempt ends with the request. `num_busy` is
    how often its server had no room.
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
        """End the attempt without an answer, or with a part of one, for the reason `end`."""
        self.ended_at = now
        self.end = end
        self.output_tokens = output_tokens


class Limited(msgspec.Struct, frozen=True):
    """The conversation `name` of `key`, and what it may use at most."""

    key: str
    name: str
    limits: ConversationLimitsConfig


class AnsweredAttempt(msgspec.Struct, frozen=True, gc=False):
    """The attempt that answered a request: its worker has the prompt in its prefix cache. `tool` is
    the tool that the answer called last ("": none).
    """

    worker_id: WorkerId
    request_id: bytes
    attempt: int
    tool: str


class TurnTrace(msgspec.Struct):
    """The part of a trace that turns write. `num_open` turns of the request `number` run now.
    `ticket` is the one that waits for a place, or 0. `prompt_tokens` is the sum over all prompts.
    `names` identify the request in events and logs. While the request runs, `prompt` has its packed
    ids and `text` that by which they can be read. `cost` is what providers charge for it so far,
    in micro-units, `spent_tokens` are those of all answers that were paid for or computed, with
    their prompts. It is held for `hold_s` before it begins. Its conversation may have
    limits. `answered` is None unless a worker has answered.
    """

    number: int = 0
    num_open: int = 0
    model: str = ""
    prompt_tokens: int = 0
    ticket: int = 0
    attempts: list[AttemptTrace] = []
    num_attempts: int = 0
    outputs: list[TracedOutput] = []
    names: tuple[bytes, ...] = ()
    prompt: bytes = b""
    text: object = None
    cost: int = 0
    spent_tokens: int = 0
    hold_s: float = 0.0
    limited: Limited | None = None
    answered: AnsweredAttempt | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens of all choices so far, as far as the gateway sees them."""
        return sum([output.num_tokens for output in self.outputs])

    def begin(self, attempt: AttemptTrace) -> None:
        """A server gets the request now."""
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
    "none". It arrived at `unix_time`, on trio's clock `received_at`. `finish` is why the answer
    ended, unless a provider's bytes were passed on. `parent` holds the client's `traceparent` and
    `tracestate` if spans are exported. `num_seen_tokens` is counted at the end. `conversation` is
    the name of its conversation, `notice` what the answer says of it in a header.
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
    conversation: str = ""
    notice: str = ""
    turn: TurnTrace = msgspec.field(default_factory=TurnTrace)

    @property
    def output_tokens(self) -> int:
        """The output tokens of the usage, if there is one, else those that were seen."""
        if self.usage is not None:
            return self.usage.completion_tokens
        return self.num_seen_tokens or self.turn.output_tokens

    def answers_to(self, name: str) -> bool:
        """Whether `name` is the request's id, or its name in events."""
        is_short = len(name) < NAME_DIGITS
        return name == self.id or (
            not is_short and any(one.hex().startswith(name) for one in self.turn.names)
        )


@final
class RequestTraces:
    """The traces of open and recent requests, public for reading. The functions `on_end` are called
    with each request that has ended, and must not raise. `keeps_parents`: spans are exported, so
    the client's span headers are kept.
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
        """The output tokens of all requests so far, including open ones."""
        return self._output_tokens + sum([trace.output_tokens for trace in self.open.values()])

    def enter(self, trace: RequestTrace) -> None:
        """Add a request that has arrived."""
        number = self._number = self._number + 1
        trace.number = trace.turn.number = number
        self.open[number] = trace

    def end(self, trace: RequestTrace) -> None:
        """The answer has ended; `status`, `usage` and `ended_at` are set."""
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
        """End a turn whose client has left, or that another request has taken over."""
        trace = self.open.get(turn.number)
        if trace is not None and trace.ended_at is not None and not turn.num_open:
            self._close(trace)

    def take_over(self, trace: RequestTrace, turn: TurnTrace) -> None:
        """The request `trace` takes over a detached turn, and gets its part of the trace."""
        detached = self.open.pop(turn.number, None)
        turn.number = trace.number
        trace.turn = turn
        if detached is not None:
            self._keep(detached)

    def recent(self) -> Iterator[RequestTrace]:
        """Ended requests, the last one first; then older ones that failed or moved."""
        yield from reversed(self._recent)
        oldest = self._recent[0].unix_time if self._recent else 0.0
        yield from (one for one in reversed(self._notable) if one.unix_time < oldest)

    def firsts(self, since: float) -> list[float]:
        """Seconds to the first token, for each kept request that had it after `since` (on the clock
        of traces).
        """
        return [
            trace.first_at - trace.received_at
            for trace in (*self.open.values(), *self._recent)
            if trace.first_at is not None and trace.first_at > since
        ]

    def find(self, name: str) -> RequestTrace | None:
        """The request with that id, or with that name in events."""
        for trace in (*self.open.values(), *self._recent, *self._notable):
            if trace.answers_to(name):
                return trace
        return None

    def _close(self, trace: RequestTrace) -> None:
        del self.open[trace.number]
        if trace.usage is None:
            trace.num_seen_tokens = trace.turn.output_tokens
        trace.turn.prompt, trace.turn.text = b"", None
        # An output refers to the sink of its events, and so to the whole answer.
        trace.turn.outputs.clear()
        self._output_tokens += trace.output_tokens
        self._keep(trace)

    def _keep(self, trace: RequestTrace) -> None:
        self._recent.append(trace)
        if trace.status != OK or trace.turn.num_attempts > 1:
            self._notable.append(trace)
