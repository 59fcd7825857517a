"""The harness itself: it must be able to fail, and its times must be what they say."""

import math

import pytest
import trio

from gateway.routing.placement_cost import Option, PlacementWork, choose
from gateway.routing.worker import Worker
from protocol.ids import WorkerId
from tests.chaos.engine import Orders
from tests.chaos.fleet import Event, parse_event
from tests.chaos.measure import Injection, back_at, median, noticed_at, resumed_at
from tests.chaos.pair import PROMPT_TOKEN_S
from tests.chaos.pair_story import BLOCK, NUM_CLIENTS, NUM_MARKED, given_up_again
from tests.chaos.proxy import open_proxies
from tests.chaos.report import missed, spread
from tests.chaos.traffic import Prompt, Stream, Traffic, make_prompts
from tests.fakes.fleet import W1, W2, facts, hello, load

PROMPT = Prompt(0, {"max_tokens": 3})


def stream_of(*times: float, worker: str = "w1", text: str = "abc") -> Stream:
    stream = Stream(PROMPT, times[0] - 0.1, worker=worker, times=list(times), text=text)
    stream.finish, stream.completion_tokens, stream.is_done = "length", 3, True
    return stream


@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [
        ({}, ""),
        ({"text": "abd"}, "WRONG BYTES from character 2: 'd'"),
        ({"text": "ab"}, "WRONG BYTES from character 2: ''"),
        ({"text": "abcc"}, "WRONG BYTES from character 3: 'c'"),
        ({"thought": "hm"}, "WRONG BYTES from character 0: 'hm'"),
        ({"is_done": False}, "ended without its last event"),
        ({"finish": "stop"}, "finish_reason 'stop'"),
        ({"completion_tokens": 2}, "2 tokens in usage"),
        ({"error": "503"}, "503"),
    ],
)
def test_whatever_a_client_must_not_see_is_named(spoil: dict[str, object], verdict: str) -> None:
    """One field wrong, one verdict."""
    stream = stream_of(1.0)
    for name, value in spoil.items():
        setattr(stream, name, value)
    assert Traffic("", [PROMPT], {0: ("abc", "", "length")})._judge(stream) == verdict


def test_times_of_an_injection() -> None:
    """Noticed by the first word on the victim; resumed where the silence of that moment ends."""
    events = [
        Event("engine fault", 9.9, "w1"),
        Event("worker lost", 10.05, "w2"),
        Event("engine fault", 10.1, "w1"),
        Event("worker lost", 10.2, "w1"),
    ]
    assert noticed_at(events, "w1", 10.0) == 10.1
    assert noticed_at(events, "w3", 10.0) is None
    hit = stream_of(9.5, 9.98, 10.12, 10.3, 11.5, 11.6)
    assert resumed_at(hit, 10.0, 10.1) == 10.3
    assert resumed_at(stream_of(9.5, 10.0), 10.0, 10.1) is None
    injection = Injection("w1", 10.0, [hit], noticed_at=10.1, able_at=11.0, resumed_at=[10.3])
    assert injection.detect_s == pytest.approx(0.1)
    assert injection.resume_s == [pytest.approx(0.2)]
    after = [stream_of(11.2, 11.3), stream_of(11.1, worker="w2"), stream_of(10.5, 11.01)]
    injection.back_at = back_at(after, [], "w1", 11.0)
    assert injection.rejoin_s == pytest.approx(0.2)
    assert back_at([], [hit], "w1", 11.0) == 11.5


def test_bars_are_of_median_and_maximum() -> None:
    """Three times the bar at most; what was not measured misses nothing."""
    bars = {"detect": 0.15, "rejoin": 1.0}
    assert missed({"detect": spread([0.1, 0.1, 0.4]), "rejoin": {}}, bars) == []
    assert missed({"detect": spread([0.1, 0.1, 0.5])}, bars) == ["detect max 0.50 > 0.45 s"]
    assert missed({"rejoin": spread([1.2, 1.1])}, bars) == ["rejoin p50 1.10 > 1 s"]
    assert missed({"rejoin": spread([1.2, 1.1])}, bars, (0.2, 0.15)) == []
    assert missed({"rejoin": spread([1.2, 1.2])}, bars, (0.0, 1.5, 0.0)) == [
        "rejoin p50 1.20 > 1 s"
    ]
    assert missed({"detect": spread([0.1, 0.1, 0.6])}, bars, (0.0, 0.3, 0.0)) == []
    assert math.isnan(median([]))


def test_events_are_read_from_the_log() -> None:
    """Events are read from the log: only lines that are events, at the time that they tell."""
    line = '{"event":"worker lost","worker":"w1","time":"1970-01-01T00:00:02.500+00:00"}\n'
    assert parse_event(line) == Event("worker lost", 2.5, "w1", line)
    assert parse_event('2026-11-21 INFO engine w1: {"event": 1}\n') is None


def test_prompts_are_fixed_by_the_seed() -> None:
    """The seed fixes the prompts, which differ from one another."""
    assert make_prompts(8, 1) == make_prompts(8, 1)
    assert make_prompts(8, 1) != make_prompts(8, 2)


async def test_the_proxy_holds_back_and_cuts() -> None:
    """A black hole gives all that it held when it heals; a cut ends connections and refuses new
    ones until then.
    """
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, _echo, listeners)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(20):
            async with open_proxies(1, port) as (proxy,):
                async with await trio.open_tcp_stream("127.0.0.1", proxy.port) as stream:
                    proxy.swallow()
                    await stream.send_all(b"held")
                    with trio.move_on_after(0.1) as silence:
                        await stream.receive_some(10)
                    assert silence.cancelled_caught
                    proxy.heal()
                    assert await stream.receive_some(10) == b"held"
                    proxy.cut()
                    assert await stream.receive_some(10) == b""
                async with await trio.open_tcp_stream("127.0.0.1", proxy.port) as refused:
                    assert await refused.receive_some(10) == b""
        nursery.cancel_scope.cancel()


async def _echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


@pytest.mark.parametrize(("prompt_token_s", "home"), [(PROMPT_TOKEN_S, W1), (0.000_04, W2)])
def test_the_prefix_of_a_second_try_is_worth_more_than_all_clients(
    prompt_token_s: float, home: WorkerId
) -> None:
    """A second try is placed on the worker that holds its prefix, even if all clients run there.
    Without the pace of prompts, at the speed of an idle machine, the other worker is the better
    place, and the test would prove nothing.
    """
    workers = []
    for worker_id, running in ((W1, NUM_CLIENTS + NUM_MARKED - 1), (W2, 0)):
        worker = Worker(worker_id, hello(f"w{worker_id[0]}", facts()), 0.0)
        step_ms = 1e3 * Orders().pace_s
        worker.report(load(running=running, rate=1 / prompt_token_s, step_ms=step_ms), 0.0)
        workers.append(worker)
    work = PlacementWork("s", 500, BLOCK, expected_output=190)
    options = [Option(workers[0], 500 // BLOCK, 0), Option(workers[1], 0, 0)]
    assert choose(work, options, 0.0).worker.worker_id == home


def test_a_pause_of_the_harness_is_no_fault_of_a_gateway() -> None:
    """A pause of the harness is no fault of a gateway, because its proxies carry the heartbeats of
    all links.
    """
    line = "worker w2: gateway tcp://127.0.0.1:1 is gone: the connection is lost"
    assert given_up_again([], 0.0) == ""
    assert line in given_up_again([line], 0.1)
    assert given_up_again([line], 1.4) == ""
