"""The tests, one function each.

Owns the size of every run and its figures. Must not know how they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.gateway.bench import GatewayBench
from benchmarks.gateway.floor import stream_events, whole_body
from benchmarks.gateway.job import Ask, LoadJob
from benchmarks.gateway.processes import MeasuredFleet, drive
from benchmarks.gateway.words import CLOUD_MODEL, NUM_SEEDS, answer_text, request, seeds

STEP_MS: Final = 20.0


def whole_job(port: int, numbers: Iterator[int], count: int, connections: int) -> LoadJob:
    """`count` chats with one token, answered in one piece: the cost of a request."""
    asks = [Ask(request(next(numbers), seed, 1, stream=False), seed) for seed in seeds(count)]
    expected = [answer_text(seed, 1).encode() for seed in range(NUM_SEEDS)]
    return LoadJob(port, connections, asks, expected, 1, "whole")


def stream_job(
    port: int, count: int, connections: int, num_tokens: int, num_deaf: int = 0
) -> LoadJob:
    """`count` streams of `num_tokens` words."""
    asks = [
        Ask(request(number % NUM_SEEDS, seed, num_tokens, stream=True), seed)
        for number, seed in enumerate(seeds(count))
    ]
    expected = [answer_text(seed, num_tokens).encode() for seed in range(NUM_SEEDS)]
    return LoadJob(port, connections, asks, expected, num_tokens, "stream", num_deaf)


def relay_job(port: int, count: int, connections: int, num_tokens: int) -> LoadJob:
    """`count` streams of the floor's server, whose bytes must arrive unchanged."""
    body = request(0, 0, num_tokens, stream=True, model=CLOUD_MODEL)
    expected = b"".join(stream_events(num_tokens))
    return LoadJob(port, connections, [Ask(body, 0)] * count, [expected], num_tokens, "bytes")


def upstream_job(port: int, count: int, connections: int) -> LoadJob:
    """`count` answers of the floor's server in one piece, through the server at `port`."""
    body = request(0, 0, 1, stream=False, model=CLOUD_MODEL)
    return LoadJob(port, connections, [Ask(body, 0)] * count, [whole_body(1)], 1, "bytes")


def repeated(bench: GatewayBench) -> None:
    """The same prompts repeated, 32 at a time."""
    _requests(bench, "cpu_us_per_request_repeated", is_fresh=False)


def fresh(bench: GatewayBench) -> None:
    """A new user text in each request, 32 at a time."""
    _requests(bench, "cpu_us_per_request_fresh", is_fresh=True)


def _requests(bench: GatewayBench, key: str, *, is_fresh: bool) -> None:
    count = bench.size.of(4000, 64)
    numbers = _numbers(is_fresh=is_fresh)
    with bench.gateway(MeasuredFleet()) as gateway:
        for is_warm in bench.runs(key):
            job = whole_job(gateway.port, numbers, count if is_warm else count // 2, 32)
            outcome, cpu_s = drive(job, gateway)
            bench.add_outcome(key, outcome, answers=len(job.asks), tokens=0)
            if is_warm:
                bench.figures.add(key, cpu_s * 1e6 / len(job.asks))


def paced(bench: GatewayBench) -> None:
    """32 streams of 50 tokens/s: the cost of a token, and the gaps between tokens."""
    num_tokens, count = 100, bench.size.of(64, 32)
    with bench.gateway(MeasuredFleet(STEP_MS)) as gateway:
        for is_warm in bench.runs("paced"):
            job = stream_job(gateway.port, count, 32, num_tokens if is_warm else 20)
            outcome, cpu_s = drive(job, gateway)
            bench.add_outcome("paced", outcome, answers=count, tokens=count * job.num_tokens)
            if is_warm:
                bench.figures.add("cpu_us_per_chunk_paced", cpu_s * 1e6 / max(1, outcome.tokens))
                bench.figures.add("gap_ms_p99", outcome.gaps.p99)
    with bench.floor() as port:
        for is_warm in bench.runs("the same directly"):
            job = relay_job(port, count, 32, num_tokens if is_warm else 20)
            outcome, _ = drive(job)
            events = count * len(stream_events(job.num_tokens))
            bench.add_outcome("the same directly", outcome, answers=count, tokens=events)
            if is_warm:
                bench.figures.add("gap_direct_ms_p99", outcome.gaps.p99)


def wide(bench: GatewayBench) -> None:
    """256 streams that get a token every 20 ms, all in one frame of the engine."""
    num_tokens, count = bench.size.of(256, 20), bench.size.of(256, 32)
    with bench.gateway(MeasuredFleet(STEP_MS, 256)) as gateway:
        for is_warm in bench.runs("cpu_us_per_token_256"):
            job = stream_job(gateway.port, count, count, num_tokens if is_warm else 20)
            outcome, cpu_s = drive(job, gateway)
            bench.add_outcome("256 streams", outcome, answers=count, tokens=count * job.num_tokens)
            if is_warm:
                bench.figures.add("cpu_us_per_token_256", cpu_s * 1e6 / max(1, outcome.tokens))


def provider(bench: GatewayBench) -> None:
    """32 streams of 50 events/s from an HTTP upstream, whose bytes must arrive unchanged."""
    num_tokens, count = 100, bench.size.of(64, 32)
    with bench.floor() as port, bench.gateway(MeasuredFleet(provider_port=port)) as gateway:
        for is_warm in bench.runs("provider_us_per_event"):
            job = relay_job(gateway.port, count, 32, num_tokens if is_warm else 20)
            outcome, cpu_s = drive(job, gateway)
            events = count * len(stream_events(job.num_tokens))
            bench.add_outcome("provider", outcome, answers=count, tokens=events)
            if is_warm:
                bench.figures.add("provider_us_per_event", cpu_s * 1e6 / max(1, outcome.tokens))


def added(bench: GatewayBench) -> None:
    """One request at a time: the time that the gateway, the supervisor and the engine's step add to
    the same exchange with a server that answers at once.
    """
    count = bench.size.of(500, 32)
    with bench.floor() as port, bench.gateway(MeasuredFleet()) as gateway:
        for is_warm in bench.runs("added_ms"):
            whole = whole_job(gateway.port, _numbers(is_fresh=False), count, 1)
            outcome, _ = drive(whole)
            bench.add_outcome("one at a time", outcome, answers=count, tokens=0)
            body = whole_body(1)
            direct = LoadJob(port, 1, whole.asks, [body] * NUM_SEEDS, 1, "bytes")
            floor, _ = drive(direct)
            bench.add_outcome("one at a time, directly", floor, answers=count, tokens=0)
            if is_warm:
                bench.figures.add("added_ms_p50", outcome.latencies.p50 - floor.latencies.p50)
                bench.figures.add("added_ms_p99", outcome.latencies.p99 - floor.latencies.p50)


def start(bench: GatewayBench) -> None:
    """The time from exec to the first 200."""
    for _ in bench.runs("start_s", is_warmed=False):
        with bench.gateway(MeasuredFleet(), is_own=True) as gateway:
            bench.figures.add("start_s", gateway.start_s)


CASES: Final[dict[str, Callable[[GatewayBench], None]]] = {
    "repeated": repeated,
    "fresh": fresh,
    "paced": paced,
    "wide": wide,
    "provider": provider,
    "added": added,
    "start": start,
}


def _numbers(*, is_fresh: bool) -> Iterator[int]:
    """The numbers of prompts: new ones, or a few in turn."""
    number = 0
    while True:
        yield number if is_fresh else number % NUM_SEEDS
        number += 1
