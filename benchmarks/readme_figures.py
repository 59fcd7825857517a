"""`python -m benchmarks.readme_figures [--check]`: README's figures, from committed reports.

Owns which figure of which report stands in which row. Without `--check` it writes the lines between
the two marks of README.md; with it, it only compares, and ends with 1 if they differ. A figure
without a committed report has no row. Must not know how anything is measured.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
RESULTS: Final = ROOT / "benchmarks/results"
FIRST: Final = "<!-- figures: written by `python -m benchmarks.readme_figures` -->"
LAST: Final = "<!-- end of the figures -->"
PEER: Final = "vLLM 0.26.0"


class EngineRow(NamedTuple):
    """One line: figures of one engine report, beside the peer's own cold start or speed."""

    words: str
    report: str
    keys: tuple[str, ...]


SMALL: Final = "engine_qwen3-0.6b_h200"
LARGE: Final = "engine_qwen3-8b_h200"
EIGHT_BITS: Final = "engine_qwen3-8b_fp8_h200"
HTTP: Final = "http_8b_h200"

ENGINE_ROWS: Final = (
    EngineRow(
        "Qwen3-0.6B, decode at batch 1 / 64 / 256, ms a step",
        SMALL,
        ("decode-1", "decode-64", "decode-256"),
    ),
    EngineRow(
        "Qwen3-8B, decode at batch 1 / 64 / 256, ms a step",
        LARGE,
        ("decode-1", "decode-64", "decode-256"),
    ),
    EngineRow(
        "Qwen3-8B in 8 bits, decode at batch 1 / 8 / 64, ms a step",
        EIGHT_BITS,
        ("decode-1", "decode-8", "decode-64"),
    ),
    EngineRow(
        "Qwen3-8B, first token behind 8k / 32k cached tokens, ms",
        LARGE,
        ("first-8192-cached", "first-32768-cached"),
    ),
    EngineRow(
        "Qwen3-8B, first token of 8k / 32k cold tokens, ms",
        LARGE,
        ("first-8192-cold", "first-32768-cold"),
    ),
    EngineRow("256 mixed requests, Qwen3-0.6B, tokens/s", SMALL, ("workload",)),
    EngineRow("256 mixed requests, Qwen3-8B, tokens/s", LARGE, ("workload",)),
    EngineRow("cold start to first answer, Qwen3-8B, no kernels cached, s", LARGE, ("start",)),
)

DAYS: Final = {SMALL: "2026-11-22", LARGE: "2026-11-22", EIGHT_BITS: "2026-11-22"}
"""When the reports were committed; they have no day of their own."""


def lines() -> Iterator[str]:
    """The block between the marks."""
    reports = {name: _report(name) for name in (*DAYS, HTTP)}
    machine = reports[LARGE]["machine"]
    days = " and ".join(sorted({*DAYS.values(), reports[HTTP]["date"][:10]}))
    yield f"| {machine['device']}, {days} | Herma | {PEER} |"
    yield "|---|---|---|"
    for row in ENGINE_ROWS:
        yield _engine_row(row, reports[row.report])
    yield from _http_rows(reports[HTTP])
    yield ""
    names = ", ".join(f"`{name}.json`" for name in reports)
    yield f"{machine['packages']}. Reports: {names} in `benchmarks/results`; {PEER}'s figures"
    yield "of the engine with their conditions: `benchmarks/engine/peer.py`."


def _engine_row(row: EngineRow, report: dict[str, Any]) -> str:
    found = {one["key"]: one for one in report["figures"]}
    ours = [_shown(found[key]["value"]) for key in row.keys]
    peers = [found[key]["peer"] for key in row.keys]
    shown = ["?" if peer is None else _shown(peer) for peer in peers]
    return f"| {row.words} | {' / '.join(ours)} | {' / '.join(shown)} |"


def _http_rows(report: dict[str, Any]) -> Iterator[str]:
    cells = {(row["cell"], row["part"]): row["servers"] for row in report["rows"]}
    streams, agents = cells["c=64", ""], cells["agents 32x4", ""]
    later = cells["agents 32x4", "later turns"]
    both = [
        f"{_shown(streams[name]['tokens_per_s'])}; {_shown(streams[name]['gap_ms_p99'])}"
        for name in ("herma", "vllm")
    ]
    yield f"| over HTTP, 8B, 64 streams: tokens/s; gap p99, ms | {both[0]} | {both[1]} |"
    both = [
        f"{_shown(agents[name]['tokens_per_s'])}; {_shown(later[name]['first_ms_p50'])}"
        for name in ("herma", "vllm")
    ]
    words = "over HTTP, 8B, 32 agents: tokens/s; first token of later turns p50, ms"
    yield f"| {words} | {both[0]} | {both[1]} |"


def _shown(value: float) -> str:
    """Three digits, as people compare: 3.67, 13.2, 1,259."""
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"


def _report(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def with_figures(text: str) -> str:
    """README's text with the block as the reports have it."""
    head, _, rest = text.partition(FIRST)
    _, found, tail = rest.partition(LAST)
    if not found:
        raise SystemExit(f"{README} has no lines {FIRST} and {LAST}")
    return "\n".join([head + FIRST, "", *lines(), "", LAST + tail])


def main(argv: Sequence[str] | None = None) -> int:
    """Write or compare; 1 if README says something else."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme_figures")
    parser.add_argument("--check", action="store_true", help="compare only; 1 if README differs")
    arguments = parser.parse_args(argv)
    text = README.read_text(encoding="utf-8")
    wanted = with_figures(text)
    if arguments.check and text != wanted:
        sys.stderr.write("README.md differs from the reports: run this without --check\n")
        return 1
    if not arguments.check:
        README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
