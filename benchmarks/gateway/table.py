"""The figures as a table.

Owns the words for each figure. Must not measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from herma.terminal import table_lines

WORDS: Final[dict[str, str]] = {
    "cpu_us_per_request_repeated": "CPU us per request, repeated 0.9 KB prompt, c=32",
    "cpu_us_per_request_fresh": "CPU us per request, fresh 0.9 KB prompt, c=32",
    "cpu_us_per_chunk_paced": "CPU us per chunk, 32 streams at 50/s",
    "cpu_us_per_token_256": "CPU us per token, 256 streams, 20 ms steps",
    "provider_us_per_event": "CPU us per event of a provider, paced",
    "added_ms_p50": "added ms, p50, c=1",
    "added_ms_p99": "added ms, p99, c=1",
    "gap_over_direct_ms_p99": "gap p99 over the direct run, ms",
    "idle_kb_per_stream": "KB of memory per idle stream",
    "rss_mb": "peak RSS, MB",
    "start_s": "start to first 200, s",
}


def with_derived(figures: Mapping[str, float]) -> dict[str, float]:
    """Add the figures that are differences of two others."""
    derived = dict(figures)
    if "gap_ms_p99" in figures and "gap_direct_ms_p99" in figures:
        gap_ms = figures["gap_ms_p99"] - figures["gap_direct_ms_p99"]
        derived["gap_over_direct_ms_p99"] = gap_ms
    return derived


def table(figures: Mapping[str, float]) -> str:
    """A line for each measured figure."""
    derived = with_derived(figures)
    rows = [("", "measured")]
    rows += [(what, f"{derived[key]:,.2f}") for key, what in WORDS.items() if key in derived]
    return in_columns(rows)


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """The first column left-aligned, the others right-aligned."""
    return "\n".join(table_lines(rows, right=range(1, len(rows[0]))))
