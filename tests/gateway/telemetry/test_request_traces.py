"""Requests that are open, and the last ones that were."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.api import Usage
from gateway.telemetry import AttemptTrace, RequestTrace, RequestTraces
from gateway.telemetry.request_traces import MAX_ATTEMPTS, MAX_NOTABLE, MAX_RECENT


@dataclass
class Output:
    """A sequence's answer so far."""

    num_tokens: int = 0


@dataclass
class Client:
    """What a test knows of a request."""

    trace: RequestTrace = field(default_factory=RequestTrace)
    tokens: int = 0


def ended(traces: RequestTraces, name: str, status: int = 200, **fields: object) -> RequestTrace:
    """A request that has come and gone."""
    trace = RequestTrace(id=name, status=status, ended_at=1.0, **fields)  # type: ignore[arg-type]
    traces.enter(trace)
    traces.end(trace)
    return trace


def test_rings_are_bounded_and_what_failed_is_kept_longer() -> None:
    """A failure is still there when thousands that went well have come after it."""
    traces = RequestTraces()
    failed = ended(traces, "bad", 502)
    for number in range(3 * MAX_RECENT):
        ended(traces, f"good{number}", unix_time=1.0 + number)
    assert traces.find("bad") is failed
    assert traces.find("good0") is None
    shown = list(traces.recent())
    assert len(shown) <= MAX_RECENT + MAX_NOTABLE
    assert [trace.id for trace in shown].count("bad") == 1
    for number in range(MAX_NOTABLE):
        ended(traces, f"worse{number}", 502, unix_time=9e9)
    assert traces.find("bad") is None


def test_a_request_is_found_by_its_id_and_by_what_events_call_it() -> None:
    """Events name the first eight digits of a sequence's id."""
    traces = RequestTraces()
    trace = ended(traces, "chatcmpl-1")
    trace.turn.names += (bytes.fromhex("0123456789abcdef"),)
    assert traces.find("chatcmpl-1") is trace
    assert traces.find("01234567") is trace
    assert traces.find("0123") is None
    assert traces.find("") is None


def test_a_detached_turn_belongs_to_the_client_that_comes_back() -> None:
    """A detached turn belongs to the client that comes back: one trace is open until the turn ends,
    with the place that it holds.
    """
    traces = RequestTraces()
    first, second = RequestTrace(id="first"), RequestTrace(id="second")
    traces.enter(first)
    first.turn.num_open += 1
    first.turn.begin(AttemptTrace("gpu0", 1.0, 1.0, "why"))
    first.status, first.ended_at = 499, 2.0
    traces.end(first)
    assert list(traces.open.values()) == [first]
    traces.enter(second)
    traces.take_over(second, first.turn)
    assert list(traces.open.values()) == [second]
    assert second.turn.attempts[0].server == "gpu0"
    second.turn.num_open -= 1
    traces.end_turn(second.turn)
    second.status, second.ended_at = 200, 3.0
    traces.end(second)
    assert not traces.open
    assert [trace.id for trace in traces.recent()] == ["second", "first"]


def test_attempts_are_bounded() -> None:
    """A worker that is busy again and again is one attempt; a long odyssey keeps its beginning."""
    turn = RequestTrace().turn
    for number in range(100):
        turn.begin(AttemptTrace("gpu0", number, number + 0.5, "why", end="busy"))
    assert [(one.num_busy, one.asked_at) for one in turn.attempts] == [(99, 0.0)]
    for number in range(100):
        turn.begin(AttemptTrace(f"gpu{number}", 200.0, 200.0, "why", end="lost"))
    assert len(turn.attempts) == MAX_ATTEMPTS
    assert turn.attempts[1].server == "gpu1"
    assert turn.attempts[-1].server == "gpu99"
    assert turn.num_attempts == 200


class TracesMachine(RuleBasedStateMachine):
    """Clients come, get tokens, leave and come back in any order; nothing is lost or kept twice."""

    clients = Bundle("clients")
    detached = Bundle("detached")

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[RequestTrace] = []
        self.traces = RequestTraces(self.heard.append)
        self.open: dict[int, Client] = {}
        self.left: dict[int, RequestTrace] = {}
        self.tokens = 0

    @rule(target=clients)
    def come(self) -> Client:
        client = Client()
        self.traces.enter(client.trace)
        client.trace.turn.num_open += 1
        client.trace.turn.outputs.append(Output())
        self.open[id(client.trace)] = client
        return client

    @rule(client=clients, count=st.integers(1, 50))
    def get_tokens(self, client: Client, count: int) -> None:
        if client.trace.ended_at is None:
            for output in client.trace.turn.outputs:
                assert isinstance(output, Output)
                output.num_tokens += count
                client.tokens += count

    @rule(client=consumes(clients), status=st.sampled_from((200, 500, 429)))
    def finish(self, client: Client, status: int) -> None:
        trace = client.trace
        self._end_turn(trace)
        trace.usage = Usage(5, 2, client.tokens)
        trace.status, trace.ended_at = status, 1.0
        self.traces.end(trace)
        self._over(client)

    @rule(target=detached, client=consumes(clients))
    def leave(self, client: Client) -> Client:
        client.trace.status, client.trace.ended_at = 499, 1.0
        self.traces.end(client.trace)
        return client

    @rule(client=consumes(detached))
    def grace_is_over(self, client: Client) -> None:
        self._end_turn(client.trace)
        self._over(client)

    @rule(target=clients, client=consumes(detached))
    def come_back(self, client: Client) -> Client:
        again = Client(tokens=client.tokens)
        self.traces.enter(again.trace)
        self.traces.take_over(again.trace, client.trace.turn)
        del self.open[id(client.trace)]
        self.open[id(again.trace)] = again
        return again

    def _end_turn(self, trace: RequestTrace) -> None:
        trace.turn.num_open -= 1
        self.traces.end_turn(trace.turn)

    def _over(self, client: Client) -> None:
        del self.open[id(client.trace)]
        self.tokens += client.tokens

    @invariant()
    def open_ones_are_open(self) -> None:
        assert {id(one) for one in self.traces.open.values()} == self.open.keys()

    @invariant()
    def tokens_are_counted_once(self) -> None:
        going_on = sum(client.tokens for client in self.open.values())
        assert self.traces.output_tokens == self.tokens + going_on

    @invariant()
    def nothing_holds_on_to_an_output(self) -> None:
        assert not any(trace.turn.outputs for trace in self.traces.recent() if trace.usage)

    @invariant()
    def each_end_is_heard_once(self) -> None:
        assert len({id(trace) for trace in self.heard}) == len(self.heard) == self.traces.num_ended


def test_first_tokens_are_those_since_the_last_look() -> None:
    """First tokens since the last look are those of open requests and of those that have ended
    since.
    """
    traces = RequestTraces()
    for number in range(4):
        ended(traces, str(number), received_at=10.0 * number, first_at=10.0 * number + 0.5)
    traces.enter(RequestTrace(received_at=40.0, first_at=41.0))
    traces.enter(RequestTrace(received_at=40.0))
    assert sorted(traces.firsts(20.0)) == [0.5, 0.5, 1.0]


TestTraces = TracesMachine.TestCase
