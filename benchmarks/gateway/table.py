"""The figures beside their bars.

Owns the bars, the goals and the best peer's figures. Must not measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple


class GatewayBar(NamedTuple):
    """The bars of one key. `peer` is the best of the Rust routers on the same kind of machine,
    `litellm` LiteLLM. None: unknown.
    """

    what: str
    must: float
    goal: float
    peer: str = ""
    litellm: str = ""


BARS: Final[dict[str, GatewayBar]] = {
    "cpu_us_per_request_repeated": GatewayBar(
        "CPU us per request, repeated 0.9 KB prompt, c=32", 200, 105, "110", "9,900"
    ),
    "cpu_us_per_request_fresh": GatewayBar(
        "CPU us per request, fresh 0.9 KB prompt, c=32", 550, 350
    ),
    "cpu_us_per_chunk_paced": GatewayBar(
        "CPU us per chunk, 32 streams at 50/s", 22, 12, "24", "677"
    ),
    "cpu_us_per_token_256": GatewayBar("CPU us per token, 256 streams, 20 ms steps", 14, 9),
    "provider_us_per_event": GatewayBar(
        "CPU us per event of a provider, paced", 90, 60, "24", "677"
    ),
    "added_ms_p50": GatewayBar("added ms, p50, c=1", 0.6, 0.25, "0.21", "9.7"),
    "added_ms_p99": GatewayBar("added ms, p99, c=1", 2, 0.5, "0.41", "12"),
    "gap_over_direct_ms_p99": GatewayBar("gap p99 over the direct run, ms", 5, 1, "0", "29"),
    "rss_mb": GatewayBar("peak RSS, MB", 120, 80, "86-109", "420"),
    "start_s": GatewayBar("start to first 200, s", 1.5, 0.5, "0.1-0.6", "6-13"),
}


def with_derived(figures: Mapping[str, float]) -> dict[str, float]:
    """Add the figures that are differences of two others."""
    derived = dict(figures)
    if "gap_ms_p99" in figures and "gap_direct_ms_p99" in figures:
        gap_ms = figures["gap_ms_p99"] - figures["gap_direct_ms_p99"]
        derived["gap_over_direct_ms_p99"] = gap_ms
    return derived


def verdict(key: str, value: float) -> str:
    """`goal`, `must` or `MISSED`."""
    bar = BARS[key]
    if value <= bar.goal:
        return "goal"
    return "must" if value <= bar.must else "MISSED"


def table(figures: Mapping[str, float]) -> str:
    """A line for each measured key with a bar."""
    rows = [("", "measured", "must", "goal", "best Rust peer", "LiteLLM", "")]
    for key, bar in BARS.items():
        if (value := with_derived(figures).get(key)) is not None:
            shown = (f"{value:,.2f}", f"{bar.must:g}", f"{bar.goal:g}", bar.peer, bar.litellm)
            rows.append((bar.what, *shown, verdict(key, value)))
    return in_columns(rows)


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """The first column left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
