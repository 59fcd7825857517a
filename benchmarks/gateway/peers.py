"""`python -m benchmarks.gateway.peers`: the cost of other gateways, in turns with ours.

Owns the turns and the table. A shared machine is fast one minute and slow the next, so a single
figure says little; in turns all gateways run in the same minutes. A peer is a command with the
placeholders `{port}`, `{upstream}` (a port) and `{folder}`.

Every gateway relays the floor's answers, whose bytes are checked. `herma, own worker` does its
whole job instead: template, tokens, placement, and the text of the returned tokens. With prices
each request is reserved on disk before it is sent, which no peer does.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.gateway.cases import STEP_MS, relay_job, stream_job, upstream_job, whole_job
from benchmarks.gateway.job import LoadJob
from benchmarks.gateway.processes import (
    LinkKind,
    MeasuredFleet,
    Process,
    drive,
    free_port,
    running,
    running_floor,
)
from benchmarks.gateway.table import in_columns
from benchmarks.gateway.turns import BenchTurn, Turns

NUM_REQUESTS: Final = 2000
NUM_STREAMS: Final = 64
NUM_TOKENS: Final = 100
CONNECTIONS: Final = 32
_LEAST_TOKENS: Final = 5

Runs = dict[str, dict[str, list[float]]]
"""CPU microseconds per request or chunk, by gateway and by case."""


class PeerCase(NamedTuple):
    """A process and its job, of a given share of the full size."""

    process: Process
    count: int
    job: Callable[[int], LoadJob]


class Contender(NamedTuple):
    """A running gateway and its cases by name."""

    name: str
    cases: Mapping[str, PeerCase]


def main(words: list[str] | None = None) -> int:
    """Run, print, write. Returns 0 if every answer was right, else 1."""
    arguments = _arguments(words)
    turns = Turns(arguments.runs, arguments.share)
    runs: Runs = {}
    with ExitStack() as stack:
        num_tokens = max(_LEAST_TOKENS, round(NUM_TOKENS * arguments.share))
        files = dict(arguments.file)
        contenders = list(_contenders(stack, arguments.peer, files, num_tokens))
        for turn in turns:
            for contender in contenders:
                _take_turn(contender, runs, turns.errors, turn)
    rounded = {
        name: {case: [round(us, 2) for us in values] for case, values in cases.items()}
        for name, cases in runs.items()
    }
    return turns.finish(table(runs), arguments.json, peers=dict(arguments.peer), runs=rounded)


def table(runs: Runs) -> str:
    """The medians, and the median ratio of each gateway's cost to the last one's in the same
    turn.
    """
    names = list(runs)
    cases = list(runs[names[0]])
    rows = [["CPU us", *(head for case in cases for head in (case, f"over {names[-1]}"))]]
    for name in names:
        row = [name]
        for case in cases:
            values, others = runs[name][case], runs[names[-1]][case]
            ratios = [value / other for value, other in zip(values, others, strict=True)]
            row += [f"{statistics.median(values):.1f}", f"{statistics.median(ratios):.2f}"]
        rows.append(row)
    return in_columns(rows)


def _take_turn(contender: Contender, runs: Runs, errors: list[str], turn: BenchTurn) -> None:
    """One run of each case; `runs` gets the costs if the turn counts."""
    for name, case in contender.cases.items():
        count = max(CONNECTIONS, round(case.count * turn.share))
        job = case.job(count)
        outcome, cpu_s = drive(job, case.process)
        if outcome.num_errors:
            first = f"{outcome.num_errors} wrong: {outcome.errors[0]}"
            errors.append(f"{contender.name}, {name}: {first}")
        if turn.counts:
            taken = runs.setdefault(contender.name, {}).setdefault(name, [])
            taken.append(cpu_s * 1e6 / (count * job.num_tokens))


def _contenders(
    stack: ExitStack, peers: list[tuple[str, str]], files: Mapping[str, str], num_tokens: int
) -> Iterator[Contender]:
    """All gateways, started; they end with `stack`."""
    upstream = stack.enter_context(running_floor())
    at_once = stack.enter_context(running(MeasuredFleet(0.0, provider_port=upstream), LinkKind()))
    paced = stack.enter_context(running(MeasuredFleet(STEP_MS, NUM_STREAMS), LinkKind()))
    whole = PeerCase(
        at_once,
        NUM_REQUESTS,
        lambda count: whole_job(at_once.port, repeat(0), count, CONNECTIONS),
    )
    streams = PeerCase(
        paced,
        NUM_STREAMS,
        lambda count: stream_job(paced.port, count, CONNECTIONS, num_tokens),
    )
    priced = MeasuredFleet(0.0, provider_port=upstream, has_price=True)
    with_price = stack.enter_context(running(priced, LinkKind()))
    yield Contender("herma, own worker", _named(whole, streams))
    yield _relay("herma, as a relay", at_once, at_once.port, num_tokens)
    yield _relay("herma, as a relay with prices", with_price, with_price.port, num_tokens)
    for name, command in peers:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="herma-bench-")))
        port = free_port()
        placeholders = {"{port}": str(port), "{upstream}": str(upstream), "{folder}": str(folder)}
        for target, source in files.items():
            text = Path(source).read_text(encoding="utf-8")
            (folder / target).write_text(_filled(text, placeholders), encoding="utf-8")
        process = Process(shlex.split(_filled(command, placeholders)), folder / "peer.log")
        stack.callback(process.stop)
        process.wait_for(lambda port=port: _is_answering(port))  # type: ignore[misc]
        yield _relay(name, process, port, num_tokens)


def _relay(name: str, process: Process, port: int, num_tokens: int) -> Contender:
    """A gateway with the floor behind it."""
    whole = PeerCase(process, NUM_REQUESTS, lambda count: upstream_job(port, count, CONNECTIONS))
    streams = PeerCase(
        process, NUM_STREAMS, lambda count: relay_job(port, count, CONNECTIONS, num_tokens)
    )
    return Contender(name, _named(whole, streams))


def _named(whole: PeerCase, streams: PeerCase) -> Mapping[str, PeerCase]:
    return {"a request": whole, "a paced chunk": streams}


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


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.peers")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="turns of each")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="of what is asked")
    parser.add_argument(
        "--peer", type=_pair, action="append", default=[], metavar="NAME=COMMAND", help="repeatable"
    )
    parser.add_argument(
        "--file",
        type=_pair,
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="copied into a peer's {folder}, filled in as its command is; repeatable",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
