"""What is measured, one function per test.

Owns the size of every run and which figures come of it. Must not know how they are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks.gateway.job import Ask, Job, Outcome
from benchmarks.gateway.processes import Fleet, Gateway, drive, running, running_floor
from benchmarks.gateway.upstream import stream_events, whole_body
from benchmarks.gateway.words import NUM_SEEDS, answer_text, request, seeds

STEP_MS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked. `share` of the full number of requests; `runs` of each test."""

    runs: int = 5
    share: float = 1.0
    server: str | None = None

    def of(self, count: int, least: int) -> int:
        """So many of `count`."""
        return max(least, round(count * self.share))


@dataclass(slots=True)
class Figures:
    """The values of each key, run by run, and every wrong answer."""

    runs: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, key: str, value: float) -> None:
        """One run's."""
        self.runs.setdefault(key, []).append(value)

    def medians(self) -> dict[str, float]:
        """Of each key; the largest for the memory."""
        return {
            key: max(values) if key == "rss_mb" else statistics.median(values)
            for key, values in self.runs.items()
        }

    def hear(self, name: str, outcome: Outcome, *, answers: int, tokens: int) -> None:
        """Every answer must have come, with all its tokens."""
        if outcome.num_errors:
            self.errors.append(f"{name}: {outcome.num_errors} wrong: {outcome.errors[0]}")
        elif (outcome.answers, outcome.tokens) != (answers, tokens):
            self.errors.append(
                f"{name}: {outcome.answers} answers and {outcome.tokens} tokens instead of "
                f"{answers} and {tokens}"
            )


Tell = Callable[[str], None]


def whole_job(port: int, numbers: Iterator[int], count: int, connections: int) -> Job:
    """`count` chats that are answered in one piece, with one token: what a request costs."""
    asks = [Ask(request(next(numbers), seed, 1, stream=False), seed) for seed in seeds(count)]
    expected = [answer_text(seed, 1).encode() for seed in range(NUM_SEEDS)]
    return Job(port, connections, asks, expected, 1, "whole")


def stream_job(port: int, count: int, connections: int, num_tokens: int, num_deaf: int = 0) -> Job:
    """`count` streams of `num_tokens` words."""
    asks = [
        Ask(request(number % NUM_SEEDS, seed, num_tokens, stream=True), seed)
        for number, seed in enumerate(seeds(count))
    ]
    expected = [answer_text(seed, num_tokens).encode() for seed in range(NUM_SEEDS)]
    return Job(port, connections, asks, expected, num_tokens, "stream", num_deaf)


def relay_job(port: int, count: int, connections: int, num_tokens: int) -> Job:
    """`count` streams of the floor's server, whose bytes must not be changed."""
    body = request(0, 0, num_tokens, stream=True)
    expected = b"".join(stream_events(num_tokens))
    return Job(port, connections, [Ask(body, 0)] * count, [expected], num_tokens, "bytes")


def repeated(size: Size, figures: Figures, tell: Tell) -> None:
    """The same prompts again and again, 32 at a time."""
    _requests(size, figures, tell, "cpu_us_per_request_repeated", is_fresh=False)


def fresh(size: Size, figures: Figures, tell: Tell) -> None:
    """A new text of the user in each request, 32 at a time."""
    _requests(size, figures, tell, "cpu_us_per_request_fresh", is_fresh=True)


def _requests(size: Size, figures: Figures, tell: Tell, key: str, *, is_fresh: bool) -> None:
    count = size.of(4000, 64)
    numbers = _numbers(is_fresh=is_fresh)
    with _gateway(size, figures) as gateway:
        for is_warm in _warmed(size, tell, key):
            job = whole_job(gateway.port, numbers, count if is_warm else count // 2, 32)
            outcome, cpu_s = drive(job, gateway)
            figures.hear(key, outcome, answers=len(job.asks), tokens=0)
            if is_warm:
                figures.add(key, cpu_s * 1e6 / len(job.asks))


def paced(size: Size, figures: Figures, tell: Tell) -> None:
    """32 streams of 50 tokens/s: what a token costs, and how evenly it comes."""
    num_tokens, count = 100, size.of(64, 32)
    with _gateway(size, figures, step_ms=STEP_MS) as gateway:
        for is_warm in _warmed(size, tell, "paced"):
            job = stream_job(gateway.port, count, 32, num_tokens if is_warm else 20)
            outcome, cpu_s = drive(job, gateway)
            figures.hear("paced", outcome, answers=count, tokens=count * job.num_tokens)
            if is_warm:
                figures.add("cpu_us_per_chunk_paced", cpu_s * 1e6 / max(1, outcome.tokens))
                figures.add("gap_ms_p99", outcome.gaps.p99)
    with running_floor() as port:
        for is_warm in _warmed(size, tell, "the same directly"):
            job = relay_job(port, count, 32, num_tokens if is_warm else 20)
            outcome, _ = drive(job)
            events = count * len(stream_events(job.num_tokens))
            figures.hear("the same directly", outcome, answers=count, tokens=events)
            if is_warm:
                figures.add("gap_direct_ms_p99", outcome.gaps.p99)


def wide(size: Size, figures: Figures, tell: Tell) -> None:
    """256 streams that each get a token every 20 ms, all in one frame of the engine."""
    num_tokens, count = size.of(256, 20), 256
    with _gateway(size, figures, step_ms=STEP_MS, max_seqs=256) as gateway:
        for is_warm in _warmed(size, tell, "cpu_us_per_token_256"):
            job = stream_job(gateway.port, count, count, num_tokens if is_warm else 20)
            outcome, cpu_s = drive(job, gateway)
            figures.hear("256 streams", outcome, answers=count, tokens=count * job.num_tokens)
            if is_warm:
                figures.add("cpu_us_per_token_256", cpu_s * 1e6 / max(1, outcome.tokens))


def provider(size: Size, figures: Figures, tell: Tell) -> None:
    """32 streams of 50 events/s from an HTTP upstream, whose bytes come unchanged."""
    num_tokens, count = 100, size.of(64, 32)
    with running_floor() as port, _gateway(size, figures, provider_port=port) as gateway:
        for is_warm in _warmed(size, tell, "provider_us_per_event"):
            job = relay_job(gateway.port, count, 32, num_tokens if is_warm else 20)
            outcome, cpu_s = drive(job, gateway)
            events = count * len(stream_events(job.num_tokens))
            figures.hear("provider", outcome, answers=count, tokens=events)
            if is_warm:
                figures.add("provider_us_per_event", cpu_s * 1e6 / max(1, outcome.tokens))


def added(size: Size, figures: Figures, tell: Tell) -> None:
    """One request at a time: what the gateway, the supervisor and the engine's step add to the
    same exchange with a server that answers at once.
    """
    count = size.of(500, 32)
    with running_floor() as port, _gateway(size, figures) as gateway:
        for is_warm in _warmed(size, tell, "added_ms"):
            whole = whole_job(gateway.port, _numbers(is_fresh=False), count, 1)
            outcome, _ = drive(whole)
            figures.hear("one at a time", outcome, answers=count, tokens=0)
            body = whole_body(1)
            direct = Job(port, 1, whole.asks, [body] * NUM_SEEDS, 1, "bytes")
            floor, _ = drive(direct)
            figures.hear("one at a time, directly", floor, answers=count, tokens=0)
            if is_warm:
                figures.add("added_ms_p50", outcome.latencies.p50 - floor.latencies.p50)
                figures.add("added_ms_p99", outcome.latencies.p99 - floor.latencies.p50)


def start(size: Size, figures: Figures, tell: Tell) -> None:
    """From exec to the first 200."""
    for number in range(size.runs):
        tell(f"start_s {number + 1}/{size.runs}")
        with _gateway(size, figures) as gateway:
            figures.add("start_s", gateway.start_s)


CASES: Final[dict[str, Callable[[Size, Figures, Tell], None]]] = {
    "repeated": repeated,
    "fresh": fresh,
    "paced": paced,
    "wide": wide,
    "provider": provider,
    "added": added,
    "start": start,
}


def _numbers(*, is_fresh: bool) -> Iterator[int]:
    """The numbers of prompts: ever new ones, or a few in turn."""
    number = 0
    while True:
        yield number if is_fresh else number % NUM_SEEDS
        number += 1


def _warmed(size: Size, tell: Tell, name: str) -> Iterator[bool]:
    """False once, for the run that warms up, then True for each that counts."""
    tell(f"{name}, warming up")
    yield False
    for number in range(size.runs):
        tell(f"{name} {number + 1}/{size.runs}")
        yield True


@contextmanager
def _gateway(
    size: Size,
    figures: Figures,
    *,
    step_ms: float = 0.0,
    max_seqs: int = 64,
    provider_port: int | None = None,
) -> Iterator[Gateway]:
    """A gateway, whose peak of memory is noted at the end."""
    fleet = Fleet(step_ms, max_seqs, provider_port, size.server)
    with running(fleet) as gateway:
        yield gateway
        figures.add("rss_mb", gateway.memory_mb("VmHWM"))
