"""Computes figures from answers.

Owns what counts, percentiles, and the merging of rounds. Must not know servers or clocks.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

from benchmarks.http.answer import HttpAnswer

P50: Final = 0.5
P99: Final = 0.99


@dataclass(slots=True)
class RoundFigures:
    """One cell at one server in one round. Only complete answers count, except in `errors`.

    `gaps_ms`: times between two reads of a stream with content, divided by the tokens of the later
    read. `pauses_ms`: the same times undivided. `cpu_s` is 0 for a part of the requests, because
    CPU is measured for all of them.
    """

    num_requests: int = 0
    num_answers: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    tokens: int = 0
    events: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    num_early: int = 0
    num_long: int = 0
    num_miscounted: int = 0
    num_without_usage: int = 0
    firsts_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    pauses_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float | None:
        """The rate from the first request to the last content; None without answers."""
        return self.tokens / self.seconds if self.seconds > 0 else None


def round_figures(
    answers: Sequence[HttpAnswer], output_tokens: int, cpu_s: float = 0.0
) -> RoundFigures:
    """The figures of one round. `cpu_s` is the client's CPU time in it."""
    figures = RoundFigures(num_requests=len(answers), cpu_s=cpu_s)
    for answer in answers:
        if answer.error_kind is not None:
            figures.errors[answer.error_kind] += 1
            figures.examples.setdefault(answer.error_kind, answer.error_detail)
        else:
            _add(figures, answer, output_tokens)
    whole = [answer for answer in answers if answer.error_kind is None]
    if whole:
        began_at = min(answer.sent_at for answer in answers)
        figures.seconds = max(answer.last_at for answer in whole) - began_at
    return figures


def _add(figures: RoundFigures, answer: HttpAnswer, output_tokens: int) -> None:
    usage, events = answer.usage, answer.num_events
    figures.num_answers += 1
    figures.events += events
    tokens = events
    if usage is None:
        figures.num_without_usage += 1
    else:
        tokens = usage.completion_tokens
        figures.prompt_tokens += usage.prompt_tokens
        figures.num_miscounted += events > tokens
        if usage.cached_tokens is not None:
            figures.cached_tokens = (figures.cached_tokens or 0) + usage.cached_tokens
        figures.num_early += tokens < output_tokens
        figures.num_long += tokens > output_tokens
    figures.tokens += tokens
    figures.firsts_ms.append(1e3 * (answer.content_at[0] - answer.sent_at))
    figures.pauses_ms += (1e3 * (later - one) for one, later in pairwise(answer.content_at))
    figures.gaps_ms += _gaps_ms(answer, tokens)


def _gaps_ms(answer: HttpAnswer, tokens: int) -> Iterator[float]:
    """A gap for each event. Every event counts as the stream's mean number of tokens, at least one,
    because a stream does not say how many tokens an event has.
    """
    each = max(1.0, tokens / answer.num_events)
    for (one, later), count in zip(pairwise(answer.content_at), answer.events[1:], strict=True):
        gap_ms = 1e3 * (later - one) / (count * each)
        yield from (gap_ms for _ in range(count))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of all values do not exceed; None without values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class HttpFigures:
    """All rounds of one cell at one server: the median of the rounds' rates, and percentiles over
    all requests. None: nothing was counted.
    """

    num_requests: int
    num_answers: int
    tokens_per_s: float | None
    tokens_per_s_rounds: tuple[float, ...]
    first_ms_p50: float | None
    first_ms_p99: float | None
    gap_ms_p50: float | None
    gap_ms_p99: float | None
    pause_ms_p50: float | None
    pause_ms_p99: float | None
    pause_ms_most: float | None
    tokens: int
    tokens_per_event: float | None
    prompt_tokens: float | None
    cached_share: float | None
    num_early: int
    num_long: int
    num_miscounted: int
    num_without_usage: int
    client_us_per_token: float | None
    client_share: float | None
    errors: dict[str, int]
    examples: dict[str, str]

    @property
    def num_errors(self) -> int:
        """Requests without a whole answer."""
        return self.num_requests - self.num_answers

    @property
    def spread(self) -> float | None:
        """Half the range of the rounds' rates over their median."""
        rates = self.tokens_per_s_rounds
        if not self.tokens_per_s or len(rates) < 2:
            return None
        return (max(rates) - min(rates)) / 2 / self.tokens_per_s

    def as_json(self) -> dict[str, Any]:
        """All figures, single values rounded."""
        return {
            key: round(value, 6) if isinstance(value, float) else value
            for key, value in asdict(self).items()
        }


def merge(rounds: Sequence[RoundFigures]) -> HttpFigures:
    """The figures of all rounds."""
    rates = tuple(rate for one in rounds if (rate := one.tokens_per_s) is not None)
    firsts = [value for one in rounds for value in one.firsts_ms]
    gaps = [value for one in rounds for value in one.gaps_ms]
    pauses = [value for one in rounds for value in one.pauses_ms]
    tokens, seconds, cpu_s = (_sum(rounds, key) for key in ("tokens", "seconds", "cpu_s"))
    prompt_tokens, events = _sum(rounds, "prompt_tokens"), _sum(rounds, "events")
    counted = int(_sum(rounds, "num_answers") - _sum(rounds, "num_without_usage"))
    cached = [one.cached_tokens for one in rounds if one.cached_tokens is not None]
    return HttpFigures(
        num_requests=int(_sum(rounds, "num_requests")),
        num_answers=int(_sum(rounds, "num_answers")),
        tokens_per_s=statistics.median(rates) if rates else None,
        tokens_per_s_rounds=rates,
        first_ms_p50=percentile(firsts, P50),
        first_ms_p99=percentile(firsts, P99),
        gap_ms_p50=percentile(gaps, P50),
        gap_ms_p99=percentile(gaps, P99),
        pause_ms_p50=percentile(pauses, P50),
        pause_ms_p99=percentile(pauses, P99),
        pause_ms_most=max(pauses, default=None),
        tokens=int(tokens),
        tokens_per_event=_ratio(tokens, events),
        prompt_tokens=_ratio(prompt_tokens, counted),
        cached_share=_ratio(sum(cached), prompt_tokens) if cached else None,
        num_early=int(_sum(rounds, "num_early")),
        num_long=int(_sum(rounds, "num_long")),
        num_miscounted=int(_sum(rounds, "num_miscounted")),
        num_without_usage=int(_sum(rounds, "num_without_usage")),
        client_us_per_token=_ratio(1e6 * cpu_s, tokens) if cpu_s else None,
        client_share=_ratio(cpu_s, seconds) if cpu_s else None,
        errors=dict(sum((one.errors for one in rounds), Counter())),
        examples={kind: text for one in rounds for kind, text in one.examples.items()},
    )


def rate_ratio(ours: Sequence[RoundFigures], theirs: Sequence[RoundFigures]) -> float | None:
    """The ratio of our tokens per second to theirs: the median over rounds, each of which compares
    figures of the same minute. None if no round has both.
    """
    ratios = [
        one.tokens_per_s / other.tokens_per_s
        for one, other in zip(ours, theirs, strict=False)
        if one.tokens_per_s and other.tokens_per_s
    ]
    return statistics.median(ratios) if ratios else None


def _sum(rounds: Sequence[RoundFigures], key: str) -> float:
    return float(sum(getattr(one, key) for one in rounds))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
