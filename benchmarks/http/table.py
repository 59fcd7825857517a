"""The figures as Markdown, with notes.

Owns the columns and the notes. Must not measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from benchmarks.http.figures import HttpFigures, merge, rate_ratio
from benchmarks.http.run import ResultRow, Results
from benchmarks.http.workload import Streams

_BUSY: Final = 0.7
"""Share of a core. A client that takes more is part of what it measures."""

_SHARED_EVENTS: Final = 1.05
"""Tokens per event. Up to that, some tokens merely complete a character with the next one."""

_WARM: Final = 0.2
"""Cached share of prompts that share only the template's first tokens."""


def table(results: Results) -> str:
    """A line for each server in each row, in columns that a terminal shows straight."""
    names = [endpoint.name for endpoint in results.plan.endpoints]
    head = ["cell", "server", "tok/s", "first token", "gap", "pause", "prompt", "cached", "errors"]
    if len(names) > 1:
        head += ["× tok/s", "× first"]
    lines = [head]
    for row in results.rows:
        lines += (_line(row, name, names) for name in names if name in row.rounds)
    return _markdown(lines)


def _line(row: ResultRow, name: str, names: list[str]) -> list[str]:
    figures = merge(row.rounds[name])
    line = [
        f"- {row.part}" if row.part else row.cell,
        name,
        "" if row.part else _rate(figures),
        _pair(figures.first_ms_p50, figures.first_ms_p99),
        _pair(figures.gap_ms_p50, figures.gap_ms_p99),
        _number(figures.pause_ms_p99),
        "" if figures.prompt_tokens is None else f"{figures.prompt_tokens:,.0f}",
        "" if figures.cached_share is None else f"{100 * figures.cached_share:.0f} %",
        f"{figures.num_errors} of {figures.num_requests}" if figures.num_errors else "0",
    ]
    if len(names) > 1:
        line += _ratios(row, name, names[-1])
    return line


def _ratios(row: ResultRow, name: str, other: str) -> tuple[str, str]:
    """The ratios of speed, and of time to the first token, to the last server's."""
    if name == other or other not in row.rounds:
        return "", ""
    rate = None if row.part else rate_ratio(row.rounds[name], row.rounds[other])
    ours, theirs = (merge(row.rounds[each]).first_ms_p50 for each in (name, other))
    sooner = theirs / ours if ours and theirs else None
    return ("" if rate is None else f"{rate:.2f}", "" if sooner is None else f"{sooner:.2f}")


def notes(results: Results) -> list[str]:
    """What the columns are, how they were measured, and everything that was wrong."""
    return [
        *(["INTERRUPTED: these are the turns that ended"] if results.is_interrupted else []),
        *_columns(results),
        *_how(results),
        *_shared_events(results),
        *_client(results),
        *(line for row in results.rows if not row.part for line in _remarks(results, row)),
    ]


def _columns(results: Results) -> Iterator[str]:
    yield (
        "first token, gap (time between tokens): p50 / p99 in ms; pause (time between two reads of "
        "a stream that brought content): p99 in ms; prompt: tokens, and their share out of a cache"
    )
    if len(results.plan.endpoints) > 1:
        yield (
            f"×: how many times better than {results.plan.endpoints[-1].name}; tok/s is the median "
            "of the rounds, first that of the p50"
        )


def _how(results: Results) -> Iterator[str]:
    plan = results.plan
    for endpoint in plan.endpoints:
        scale = results.scales.get(endpoint.name)
        words = "reports no usage, so tokens are words of prompts and events of answers"
        if scale is not None:
            words = f"{scale.tokens_per_word:.3g} tokens per word, {scale.overhead_tokens:.0f} more"
            words = f"by its usage {words} per request"
        yield f"{endpoint.name}: {endpoint.url}, model {results.models[endpoint.name]}; {words}"
    yield (
        f"rounds: {plan.rounds}; answers of {plan.options.output_tokens} tokens; seed {plan.seed} "
        "(with the same seed again, servers may find the prompts in their caches)"
    )
    if len(plan.endpoints) > 1:
        firsts = Counter(turn["first"] for turn in results.firsts)
        counts = ", ".join(f"{name} {count}" for name, count in firsts.items())
        yield f"ran first, of {len(results.firsts)} turns: {counts}"


def _shared_events(results: Results) -> Iterator[str]:
    for endpoint in results.plan.endpoints:
        rows = [row for row in results.rows if endpoint.name in row.rounds]
        shares = [merge(row.rounds[endpoint.name]).tokens_per_event or 0.0 for row in rows]
        if shares and max(shares) > _SHARED_EVENTS:
            yield (
                f"{endpoint.name}: {min(shares):.2f} to {max(shares):.2f} tokens per event: gaps "
                "are divided by that, pauses are not"
            )


def _client(results: Results) -> Iterator[str]:
    found = [
        (row.cell, name, merge(rounds))
        for row in results.rows
        if not row.part
        for name, rounds in row.rounds.items()
    ]
    costs = [one.client_us_per_token for _, _, one in found if one.client_us_per_token]
    shares = [(one.client_share, cell, name) for cell, name, one in found if one.client_share]
    if not costs or not shares:
        return
    share, cell, name = max(shares)
    yield (
        f"the client takes {min(costs):.0f} to {max(costs):.0f} us of CPU per token, and at most "
        f"{share:.2f} of its core ({cell}, {name})"
    )
    for share, cell, name in shares:
        if share > _BUSY:
            yield (
                f"NOT TO BE TRUSTED: {cell}, {name}: the client used {share:.2f} of its core, so "
                "it is part of what was measured"
            )


def _remarks(results: Results, row: ResultRow) -> Iterator[str]:
    for name, rounds in row.rounds.items():
        figures = merge(rounds)
        where = f"{row.cell}, {name}"
        for kind, count in sorted(figures.errors.items()):
            yield f"FAILED: {where}: {count} of {figures.num_requests}: {kind}: " + " ".join(
                figures.examples[kind].split()
            )
        yield from (f"{where}: {text}" for text in _oddities(results, figures, row.cell))


def _oddities(results: Results, figures: HttpFigures, cell: str) -> Iterator[str]:
    options, answers = results.plan.options, figures.num_answers
    asked = options.output_tokens
    reason = "it does not honour ignore_eos" if options.ignores_eos else "they may"
    if figures.num_early:
        yield (
            f"{figures.num_early} of {answers} answers ended before {asked} tokens (mean of all "
            f"{figures.tokens / answers:.0f}): {reason}, so it is compared at other lengths"
        )
    if figures.num_long:
        yield f"{figures.num_long} of {answers} answers have more than {asked} tokens"
    if figures.num_without_usage:
        yield f"{figures.num_without_usage} of {answers} answers have no usage: events are counted"
    if figures.num_miscounted:
        yield (
            f"{figures.num_miscounted} of {answers} answers came in more events than their usage "
            "counts tokens"
        )
    is_distinct = any(isinstance(one, Streams) and one.name == cell for one in results.plan.cells)
    cached_share = figures.cached_share or 0.0
    if is_distinct and cached_share > _WARM:
        yield (
            f"{100 * cached_share:.0f} % of the prompts came from a cache, though no two "
            "are alike: it has seen this seed before"
        )


def _rate(figures: HttpFigures) -> str:
    rate = _number(figures.tokens_per_s)
    return rate if figures.spread is None else f"{rate} ±{100 * figures.spread:.1f} %"


def _pair(one: float | None, other: float | None) -> str:
    return "" if one is None else f"{_number(one)} / {_number(other)}"


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _markdown(rows: list[list[str]]) -> str:
    """The first two columns left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [
        [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    rule = ["-" * width if c < 2 else "-" * (width - 1) + ":" for c, width in enumerate(widths)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (padded[0], rule, *padded[1:]))
