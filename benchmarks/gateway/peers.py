"""`herma bench gateway --peer COMMAND`: what other gateways cost, in turns with ours.

Owns the turns and the table. A shared machine is fast one minute and slow the next, so a single
figure says little; in turns all gateways run in the same minutes. A peer is a command with the
placeholders `{port}`, `{upstream}` (a port) and `{folder}`; another Herma is a Python that has it.

Every gateway relays the floor's answers, whose bytes are checked. `herma, own worker` does its
whole job instead: template, tokens, placement, and the text of the returned tokens. With prices
each request is reserved on disk before it is sent, which no peer does.
"""

from __future__ import annotations

import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.gateway.cases import STEP_MS, relay_job, stream_job, upstream_job, whole_job
from benchmarks.gateway.job import LoadJob, LoadOutcome
from benchmarks.gateway.processes import (
    LinkKind,
    MeasuredFleet,
    MeasuredGateway,
    Process,
    drive,
    free_port,
    running,
    running_floor,
)
from benchmarks.gateway.table import in_columns
from benchmarks.gateway.turns import BenchTurn, Turns
from protocol.errors import ConfigError

NUM_REQUESTS: Final = 2000
NUM_STREAMS: Final = 64
NUM_TOKENS: Final = 100
NUM_ALONE: Final = 300
CONNECTIONS: Final = 32
_LEAST_TOKENS: Final = 5

REQUEST: Final = "us a request"
CHUNK: Final = "us a paced chunk"
ADDED: Final = "added ms"
START: Final = "start s"
PEAK: Final = "peak MB"
WITH_RATIO: Final = (REQUEST, CHUNK)

Runs = dict[str, dict[str, list[float]]]
"""The figures of each turn, by gateway and by what is measured."""

_NAMED: Final = re.compile(r"([\w.+-]+)=(.+)", re.DOTALL)


class PeerCase(NamedTuple):
    """What a gateway is asked, `size` times at full size, and the figure of the outcome. `run`
    takes the number that this turn asks.
    """

    size: int
    run: Callable[[int], tuple[LoadOutcome, float]]


class Contender(NamedTuple):
    """A running gateway, its cases by what they measure, and the seconds to its first answer."""

    name: str
    process: Process
    start_s: float
    cases: Mapping[str, PeerCase]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The gateways that are measured in turns: commands of other gateways and Pythons of other
    Hermas, by name, and the files that each peer's folder gets.
    """

    peers: Sequence[tuple[str, str]]
    versions: Sequence[tuple[str, str]] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    share: float = 1.0
    link_kind: LinkKind = field(default_factory=LinkKind)


def compare(comparison: Comparison, runs: int, json: Path | None) -> int:
    """Run `runs` turns, print the table, write the report. Returns 0 if every answer was right,
    else 1.
    """
    turns = Turns(runs, comparison.share)
    with ExitStack() as stack:
        contenders = list(_contenders(stack, comparison))
        figures: Runs = {contender.name: {} for contender in contenders}
        for turn in turns:
            # PeerCase by case, so that what is compared runs within the same seconds.
            for measured in contenders[0].cases:
                for contender in contenders:
                    _take_turn(contender, measured, figures, turns.errors, turn)
            # None comes first behind another case in every turn.
            contenders.reverse()
        for contender in contenders:
            taken = figures[contender.name]
            taken[START] = [contender.start_s]
            taken[PEAK] = [contender.process.memory_mb("VmHWM")]
    rounded = {
        name: {measured: [round(value, 3) for value in values] for measured, values in all_.items()}
        for name, all_ in figures.items()
    }
    named = {"peers": dict(comparison.peers), "versions": dict(comparison.versions)}
    return turns.finish(table(figures), json, **named, runs=rounded)


def table(runs: Runs) -> str:
    """The medians, and the median ratio of each gateway's CPU time to the last one's in the same
    turn.
    """
    names = list(runs)
    measured = list(runs[names[0]])
    head = ["medians"]
    for what in measured:
        head += [what, f"over {names[-1]}"] if what in WITH_RATIO else [what]
    rows = [head]
    for name in names:
        row = [name]
        for what in measured:
            values = runs[name][what]
            row.append(f"{statistics.median(values):.{1 if what in WITH_RATIO else 2}f}")
            if what in WITH_RATIO:
                pairs = zip(values, runs[names[-1]][what], strict=True)
                row.append(f"{statistics.median(value / other for value, other in pairs):.2f}")
        rows.append(row)
    return in_columns(rows)


def named_command(text: str) -> tuple[str, str]:
    """`NAME=COMMAND`, or a command, whose program is its name. Raises `ConfigError`."""
    if (found := _NAMED.fullmatch(text)) is not None:
        return found[1].strip(), found[2]
    words = shlex.split(text)
    if not words:
        raise ConfigError("--peer needs a command, or NAME=COMMAND")
    return Path(words[0]).name, text


def named_value(option: str, text: str) -> tuple[str, str]:
    """`NAME=VALUE` of an option. Raises `ConfigError`."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ConfigError(f"{option} {text!r} is not of the form NAME=VALUE")
    return name, value


def _take_turn(
    contender: Contender, measured: str, figures: Runs, errors: list[str], turn: BenchTurn
) -> None:
    """One run of a case; `figures` gets its figure if the turn counts."""
    case = contender.cases[measured]
    outcome, figure = case.run(max(CONNECTIONS, round(case.size * turn.share)))
    if outcome.num_errors:
        first = f"{outcome.num_errors} wrong: {outcome.errors[0]}"
        errors.append(f"{contender.name}, {measured}: {first}")
    if turn.counts:
        figures[contender.name].setdefault(measured, []).append(figure)


def _contenders(stack: ExitStack, comparison: Comparison) -> Iterator[Contender]:
    """All gateways, started; they end with `stack`."""
    upstream = stack.enter_context(running_floor())
    num_tokens = max(_LEAST_TOKENS, round(NUM_TOKENS * comparison.share))
    for name, python in (("herma", sys.executable), *comparison.versions):
        yield from _our_contenders(stack, name, python, comparison.link_kind, upstream, num_tokens)
    for name, command in comparison.peers:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="herma-bench-")))
        port = free_port()
        placeholders = {"{port}": str(port), "{upstream}": str(upstream), "{folder}": str(folder)}
        for target, source in comparison.files.items():
            text = Path(source).read_text(encoding="utf-8")
            (folder / target).write_text(_filled(text, placeholders), encoding="utf-8")
        started_at = time.monotonic()
        process = Process(shlex.split(_filled(command, placeholders)), folder / "peer.log")
        stack.callback(process.stop)
        process.wait_for(lambda port=port: _is_answering(port))  # type: ignore[misc]
        start_s = time.monotonic() - started_at
        yield _relay(name, process, start_s, port, upstream, num_tokens)


def _our_contenders(
    stack: ExitStack, name: str, python: str, link_kind: LinkKind, upstream: int, num_tokens: int
) -> Iterator[Contender]:
    """One Herma in its three roles."""

    def started(fleet: MeasuredFleet) -> MeasuredGateway:
        return stack.enter_context(running(fleet, link_kind, python))

    at_once = started(MeasuredFleet(0.0, provider_port=upstream))
    paced = started(MeasuredFleet(STEP_MS, NUM_STREAMS))
    with_price = started(MeasuredFleet(0.0, provider_port=upstream, has_price=True))

    def alone(count: int) -> LoadJob:
        return whole_job(at_once.port, repeat(0), count, 1)

    cases = {
        REQUEST: _cpu_case(
            at_once,
            NUM_REQUESTS,
            lambda count: whole_job(at_once.port, repeat(0), count, CONNECTIONS),
        ),
        CHUNK: _cpu_case(
            paced,
            NUM_STREAMS,
            lambda count: stream_job(paced.port, count, CONNECTIONS, num_tokens),
        ),
        ADDED: _added_case(alone, upstream),
    }
    yield Contender(f"{name}, own worker", at_once, at_once.start_s, cases)
    for role, gateway in (("as a relay", at_once), ("as a relay with prices", with_price)):
        named = f"{name}, {role}"
        yield _relay(named, gateway, gateway.start_s, gateway.port, upstream, num_tokens)


def _relay(
    name: str, process: Process, start_s: float, port: int, upstream: int, num_tokens: int
) -> Contender:
    """A gateway with the floor behind it."""
    cases = {
        REQUEST: _cpu_case(
            process, NUM_REQUESTS, lambda count: upstream_job(port, count, CONNECTIONS)
        ),
        CHUNK: _cpu_case(
            process, NUM_STREAMS, lambda count: relay_job(port, count, CONNECTIONS, num_tokens)
        ),
        ADDED: _added_case(lambda count: upstream_job(port, count, 1), upstream),
    }
    return Contender(name, process, start_s, cases)


def _cpu_case(process: Process, size: int, job: Callable[[int], LoadJob]) -> PeerCase:
    """CPU microseconds of `process` for each request or chunk."""

    def run(count: int) -> tuple[LoadOutcome, float]:
        asked = job(count)
        outcome, cpu_s = drive(asked, process)
        return outcome, cpu_s * 1e6 / (count * asked.num_tokens)

    return PeerCase(size, run)


def _added_case(job: Callable[[int], LoadJob], upstream: int) -> PeerCase:
    """The p50 of one request at a time, less that of the same exchange with the floor, in ms."""

    def run(count: int) -> tuple[LoadOutcome, float]:
        outcome, _ = drive(job(count))
        direct, _ = drive(upstream_job(upstream, count, 1))
        return outcome, outcome.latencies.p50 - direct.latencies.p50

    return PeerCase(NUM_ALONE, run)


def _filled(text: str, placeholders: Mapping[str, str]) -> str:
    for name, value in placeholders.items():
        text = text.replace(name, value)
    return text


def _is_answering(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
            return True
    except (URLError, ConnectionError, TimeoutError):
        return False
