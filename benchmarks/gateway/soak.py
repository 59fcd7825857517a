"""The long runs: a thousand streams for a minute, begun within seconds or at one instant, and a
hundred thousand requests of which clients leave most.

Owns their sizes and the checks at their ends. Must not know how they are shown.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from benchmarks.gateway.bench import GatewayBench
from benchmarks.gateway.cases import stream_job
from benchmarks.gateway.idle import idle
from benchmarks.gateway.job import Ask, LoadJob
from benchmarks.gateway.processes import MeasuredFleet, MeasuredGateway, Process, drive
from benchmarks.gateway.words import NUM_SEEDS, answer_text, request

NUM_STREAMS: Final = 1000
NUM_DEAF: Final = 50
STREAM_S: Final = 60
STREAM_STEP_MS: Final = 50.0
RAMP_S: Final = 5.0
MAX_GAP_MS: Final = 150.0
MAX_GAP_MS_OF_TWO: Final = 200.0
MAX_GROWTH_MB: Final = 10.0
_SAMPLE_S: Final = 1.0
_NUM_LOOKS: Final = 8

NUM_REQUESTS: Final = 100_000
NUM_PARTS: Final = 10
LEAK_TOKENS: Final = 4
_SETTLE_S: Final = 60.0
"""Longer than `disconnect_grace_s`: answers that clients left before the first token continue for
that time.
"""


class MemoryWatch(threading.Thread):
    """The resident memory of a process, once a second."""

    def __init__(self, process: Process) -> None:
        super().__init__(daemon=True)
        self.values_mb: list[float] = []
        self._process = process
        self._over = threading.Event()

    def run(self) -> None:
        """Sample until `stop`."""
        while not self._over.wait(_SAMPLE_S):
            self.values_mb.append(self._process.memory_mb("VmRSS"))

    def stop(self) -> dict[str, float]:
        """Stop sampling. Returns the memory at a tenth of the time (all streams are open), in the
        middle and at the end.
        """
        self._over.set()
        self.join()
        values, last = self.values_mb or [0.0], len(self.values_mb) - 1
        places = {"start": last // 10, "middle": last // 2, "end": last}
        return {name: round(values[max(0, at)], 1) for name, at in places.items()}


def streams(bench: GatewayBench, *, name: str, ramp_s: float, processes: int = 1) -> dict[str, Any]:
    """1,000 streams of 20 tokens/s for a minute in each process, beside 50 clients that read
    nothing. The first requests arrive within `ramp_s`.
    """
    load = os.getloadavg()[0]
    count, num_deaf = bench.size.of(NUM_STREAMS * processes, 20), bench.size.of(NUM_DEAF, 2)
    max_gap_ms = MAX_GAP_MS if processes == 1 else MAX_GAP_MS_OF_TWO
    max_growth_mb = MAX_GROWTH_MB * processes
    num_tokens = bench.size.of(int(STREAM_S * 1000 / STREAM_STEP_MS), 20)
    bench.report_progress(f"{name}: {count} streams of {num_tokens} tokens")
    with bench.gateway(
        MeasuredFleet(STREAM_STEP_MS, count + num_deaf, processes=processes)
    ) as gateway:
        watch = MemoryWatch(gateway)
        watch.start()
        job = stream_job(gateway.port, count, count, num_tokens, num_deaf)
        job = msgspec.structs.replace(job, ramp_s=ramp_s * bench.size.share)
        lost_before = _losses(gateway)
        begun_s = gateway.cpu_s_by_part()
        outcome, _ = drive(job)
        used_s = {part: s - begun_s[part] for part, s in gateway.cpu_s_by_part().items()}
        memory_mb = watch.stop()
        lost = {what: num - lost_before[what] for what, num in _losses(gateway).items()}
        peak_mb = gateway.memory_mb("VmHWM")
    bench.add_outcome(name, outcome, answers=count, tokens=count * num_tokens)
    errors = [f"lost on the way: {lost}"] if any(lost.values()) else []
    if bench.size.share == 1.0:
        if outcome.gaps.p99 > max_gap_ms:
            errors.append(f"gap p99 {outcome.gaps.p99:.0f} ms is over {max_gap_ms}")
        if memory_mb["end"] - memory_mb["start"] > max_growth_mb:
            errors.append(f"memory grew: {memory_mb}")
        if outcome.deaf_cut < num_deaf:
            errors.append(f"{outcome.deaf_cut} of {num_deaf} stuck clients were cut")
    bench.figures.errors += [f"{name}: {error}" for error in errors]
    return {
        "streams": count,
        "ramp_s": ramp_s,
        "load_average": round(load, 1),
        "seconds": round(outcome.seconds, 1),
        "tokens": outcome.tokens,
        "gap_ms_p50": round(outcome.gaps.p50, 1),
        "gap_ms_p99": round(outcome.gaps.p99, 1),
        "gap_ms_most": round(outcome.gaps.most, 1),
        "cpu_us_per_token": {
            part: round(seconds * 1e6 / max(1, outcome.tokens), 2)
            for part, seconds in (*used_s.items(), ("load generator", outcome.cpu_s))
        },
        "rss_mb": {**memory_mb, "peak": round(peak_mb, 1)},
        "deaf_cut": f"{outcome.deaf_cut} of {num_deaf}",
        **lost,
    }


def leak(bench: GatewayBench) -> dict[str, Any]:
    """100,000 requests. Clients leave two thirds of them at any byte. Afterwards tasks, descriptors
    and memory must be as before.
    """
    part = bench.size.of(NUM_REQUESTS // NUM_PARTS, 60)
    with bench.gateway(MeasuredFleet(1.0)) as gateway:
        bench.report_progress("leak, warming up")
        _leave_many(bench, gateway, part, seed=0)
        before = _settled(gateway)
        memory_mb = [before["rss_mb"]]
        num_left = 0
        for number in range(1, (NUM_PARTS if bench.size.share == 1.0 else 1) + 1):
            bench.report_progress(f"leak, {number * part} requests")
            num_left += _leave_many(bench, gateway, part, seed=number)
            memory_mb.append(round(gateway.memory_mb("VmRSS"), 1))
        after = _settled(gateway)
    for what in ("tasks", "descriptors", "in_flight", "running", "detached"):
        if after[what] > before[what]:
            bench.figures.errors.append(f"leak: {what} rose from {before[what]} to {after[what]}")
    if bench.size.share == 1.0 and after["rss_mb"] - before["rss_mb"] > MAX_GROWTH_MB:
        bench.figures.errors.append(
            f"leak: memory rose from {before['rss_mb']} to {after['rss_mb']} MB"
        )
    return {"left": num_left, "before": before, "after": after, "rss_mb_by_part": memory_mb}


SOAKS: Final[dict[str, Callable[[GatewayBench], dict[str, Any]]]] = {
    "streams": functools.partial(streams, name="streams", ramp_s=RAMP_S),
    "burst": functools.partial(streams, name="burst", ramp_s=0.0),
    "two": functools.partial(streams, name="two", ramp_s=RAMP_S, processes=2),
    "leak": leak,
    "idle": idle,
}


def leaving_job(port: int, count: int, seed: int) -> LoadJob:
    """`count` streams: a third is read to its end, a third to any byte, a third not at all."""
    rng = random.Random(seed)
    asks = []
    for number in range(count):
        which = number % NUM_SEEDS
        leave = rng.choice((None, 0, rng.randrange(1, 2500)))
        body = request(which, which, LEAK_TOKENS, stream=True)
        asks.append(Ask(body, which, leave))
    expected = [answer_text(which, LEAK_TOKENS).encode() for which in range(NUM_SEEDS)]
    return LoadJob(port, 32, asks, expected, LEAK_TOKENS, "stream")


def _leave_many(bench: GatewayBench, gateway: MeasuredGateway, count: int, seed: int) -> int:
    outcome, _ = drive(leaving_job(gateway.port, count, seed))
    if outcome.num_errors:
        bench.figures.errors.append(f"leak: {outcome.num_errors} wrong: {outcome.errors[0]}")
    elif outcome.answers + outcome.num_left != count:
        bench.figures.errors.append(f"leak: {outcome.answers} + {outcome.num_left} of {count} came")
    return outcome.num_left


def _settled(gateway: MeasuredGateway) -> dict[str, float]:
    """The counts after the load, once two samples in a row agree: nothing announces that moment."""
    deadline = time.monotonic() + _SETTLE_S
    last: dict[str, float] = {}
    while time.monotonic() < deadline:
        now = _counts(gateway)
        is_idle = now["in_flight"] == now["detached"] == now["running"] == 0
        if is_idle and {**now, "rss_mb": 0} == {**last, "rss_mb": 0}:
            return now
        last = now
        time.sleep(_SAMPLE_S)
    return last


def _counts(gateway: MeasuredGateway) -> dict[str, float]:
    # Counted first: the gateway may still be closing the connection of the samples.
    num_descriptors = gateway.num_descriptors()
    samples = _samples(gateway)
    return {
        "tasks": float(samples["herma_tasks"]),
        "descriptors": num_descriptors,
        "in_flight": float(samples["herma_requests_in_flight"]),
        "running": float(samples["herma_sequences_running"]),
        "detached": float(samples["herma_detached_requests"]),
        "rss_mb": round(gateway.memory_mb("VmRSS"), 1),
    }


def _losses(gateway: MeasuredGateway) -> dict[str, int]:
    # With several processes each look reaches any one of them.
    looks = [_samples(gateway) for _ in range(_NUM_LOOKS)]
    return {
        what: max(int(float(_value(samples, f"herma_{what}_total"))) for samples in looks)
        for what in ("workers_lost", "sequences_resumed")
    }


def _value(samples: dict[str, str], name: str) -> str:
    """The value of a sample; with several processes all samples have the label `process`."""
    return next(value for key, value in samples.items() if key.partition("{")[0] == name)


def _samples(gateway: MeasuredGateway) -> dict[str, str]:
    text = (gateway.get("/metrics") or b"").decode()
    return dict(line.rpartition(" ")[::2] for line in text.splitlines() if line[:1] != "#")
