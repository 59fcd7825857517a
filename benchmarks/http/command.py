"""`herma bench http`: from the command line to a table, a picture and a result file.

Owns what the options mean, and the exit status. Must not know how requests are sent.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from benchmarks.http.client import Endpoint, RequestOptions
from benchmarks.http.figures import merge
from benchmarks.http.plot import plot
from benchmarks.http.run import HttpBench, HttpPlan, Results
from benchmarks.http.table import notes, table
from benchmarks.http.workload import Agents, Cold, PromptWords, Staggered, Streams, WorkloadCell
from benchmarks.machine import describe_machine
from benchmarks.progress import ProgressBar
from protocol.errors import ConfigError

DEFAULT_URL: Final = "http://127.0.0.1:8080/v1"
NONE: Final = "-"
EXIT_INTERRUPTED: Final = 130
_LEAST_WORDS: Final = 100


def run_command(arguments: argparse.Namespace) -> int:
    """Run, print, write: when interrupted, what was measured so far. Returns 0 if every request got
    a whole answer, else 1. Raises `HermaError`.
    """
    plan = plan_of(arguments, os.environ)
    progress = ProgressBar(plan.num_turns)
    bench = HttpBench(plan, progress.begin, progress.note, progress.end)
    status, results = EXIT_INTERRUPTED, bench.results
    try:
        trio.run(bench.run)
        status = 1 if results.num_errors else 0
    except* KeyboardInterrupt:
        results.is_interrupted = True
    if not results.rows:
        return status
    lines = "\n".join(f"- {line}" for line in notes(results))
    progress.say(f"\n{table(results)}\n\n{lines}")
    if arguments.json is not None:
        text = json.dumps(report(results), indent=2)
        arguments.json.write_text(f"{text}\n", encoding="utf-8")
    if arguments.plot is not None:
        plot(results, arguments.plot)
    return status


def plan_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> HttpPlan:
    """The plan of the options. Raises `ConfigError`."""
    cells = tuple(_cells(arguments))
    if arguments.stagger:
        cells = tuple(one for cell in cells for one in (cell, Staggered(cell, cell.streams)))
    if not cells:
        raise ConfigError("nothing to measure: give --cells, --agents or --cold")
    for option in ("rounds", "requests", "input", "output"):
        if getattr(arguments, option) < 1:
            raise ConfigError(f"--{option} must be at least 1")
    if arguments.patience <= 0:
        raise ConfigError("--patience must be more than 0 seconds")
    seed = arguments.seed
    return HttpPlan(
        endpoints=tuple(endpoints_of(arguments, environ)),
        cells=cells,
        rounds=arguments.rounds,
        seed=random.SystemRandom().randrange(10**9) if seed is None else seed,
        words=PromptWords() if arguments.text is None else _words(arguments.text),
        options=RequestOptions(arguments.output, arguments.patience, not arguments.no_ignore_eos),
    )


def _cells(arguments: argparse.Namespace) -> Iterator[WorkloadCell]:
    for text in _listed(arguments.cells):
        yield Streams(_count("--cells", text), arguments.input, arguments.requests)
    shared, longest = _pair("--agent-tokens", arguments.agent_tokens, ",")
    for text in _listed(arguments.agents):
        yield Agents(*_pair("--agents", text, "x"), shared, longest)
    for text in _listed(arguments.cold):
        yield Cold(*_pair("--cold", text, "x"))


def _listed(text: str) -> Iterator[str]:
    return filter(None, dict.fromkeys(text.replace(NONE, "").split(",")))


def _count(option: str, text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise ConfigError(f"{option}: {text!r} is not a positive number")


def _pair(option: str, text: str, mark: str) -> tuple[int, int]:
    one, found, other = text.partition(mark)
    if not found:
        raise ConfigError(f"{option}: {text!r} is not two numbers with {mark!r} between")
    return _count(option, one), _count(option, other)


def endpoints_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Iterator[Endpoint]:
    """The servers that the options name. Raises `ConfigError`."""
    urls = [url.rstrip("/") for url in arguments.url or [DEFAULT_URL]]
    count = len(urls)
    if any("@" in urlsplit(url).netloc for url in urls):
        raise ConfigError("--url must not hold a password, which would be printed: use --key-env")
    names = _each("--name", arguments.name, count) or [urlsplit(url).netloc for url in urls]
    if len(set(names)) < count:
        raise ConfigError(f"servers need different names: give --name {count} times")
    models = _each("--model", arguments.model, count, may_be_one=True) or [""] * count
    variables = _each("--key-env", arguments.key_env, count) or [NONE] * count
    for name, url, model, variable in zip(names, urls, models, variables, strict=True):
        key = "" if variable == NONE else environ.get(variable, "")
        if variable != NONE and not key:
            raise ConfigError(f"--key-env: the environment variable {variable} is not set")
        yield Endpoint(name, url, model, key)


def _each(
    option: str, values: Sequence[str] | None, count: int, *, may_be_one: bool = False
) -> list[str]:
    """One value for each server. A key is never passed to another server implicitly."""
    if not values:
        return []
    if len(values) == 1 and may_be_one:
        return list(values) * count
    if len(values) != count:
        raise ConfigError(f"{option} was given {len(values)} times for {count} --url")
    return list(values)


def _words(path: Path) -> PromptWords:
    try:
        words = tuple(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text: {error}") from error
    if len(words) < _LEAST_WORDS:
        raise ConfigError(f"--text: {path} has {len(words)} words; give at least {_LEAST_WORDS}")
    return PromptWords(words, is_text=True)


def report(results: Results) -> dict[str, Any]:
    """Everything for the result file; no keys."""
    plan = results.plan
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "client": describe_machine(("trio", "httptools", "msgspec")),
        "servers": [
            {"name": one.name, "url": one.url, "model": results.models[one.name]}
            for one in plan.endpoints
        ],
        "rounds": plan.rounds,
        "is_interrupted": results.is_interrupted,
        "seed": plan.seed,
        "output_tokens": plan.options.output_tokens,
        "ignores_eos": plan.options.ignores_eos,
        "ran_first": results.firsts,
        "notes": notes(results),
        "rows": [
            {
                "cell": row.cell,
                "part": row.part,
                "servers": {name: merge(rounds).as_json() for name, rounds in row.rounds.items()},
            }
            for row in results.rows
        ],
    }
