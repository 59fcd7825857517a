"""The comparison of the rows: ours beside the best of the others, cell by cell.

Owns the comparison and its verdict. A cell is a trace with a number of workers and a load; its
figures are means over seeds. Bounds are shown and never compared.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

from benchmarks.routing.policies import BASELINES, OURS
from benchmarks.routing.run import Row

METRICS: Final = ("ttft_mean_ms", "ttft_p90_ms")
TAIL: Final = "ttft_p99_ms"
"""Reported, not judged: a policy that serves short prompts first pays here."""
COMPARED_LOAD: Final = 0.95
"""Above it no fleet keeps up; such cells are shown, not judged."""
PUBLISHED: Final = ("smg_cache_aware", "llmd_precise", "dynamo_kv", "aibrix_prefix")
PUBLISHED_LOADS: Final = (0.8, 0.95)
WORST_CELL: Final = {"ttft_mean_ms": 1.05, "ttft_p90_ms": 1.10}
LONGEST: Final = "ttft_max_ms"
OVERLOAD_BARS: Final = {**WORST_CELL, LONGEST: 1.5}
BEST_OF_ALL: Final = 1.00
BETTER_THAN_PUBLISHED: Final = 0.85
_NAMES: Final = ("policy", "trace", "workers", "load", "seed")


@dataclass(frozen=True, slots=True)
class TableCell:
    """One trace, fleet size and load; figures by policy and metric."""

    trace: str
    workers: int
    load: float
    figures: dict[str, dict[str, float]]

    @property
    def name(self) -> str:
        return f"{self.trace} x{self.workers} at {self.load:g}"

    def best(self, metric: str) -> tuple[str, float]:
        """The best baseline. Raises `ValueError` if none was run."""
        others = {name: self.figures[name][metric] for name in BASELINES if name in self.figures}
        name = min(others, key=others.__getitem__)
        return name, others[name]

    def ratio(self, metric: str) -> float:
        return self.figures[OURS][metric] / self.best(metric)[1]


def cells(rows: Iterable[Row]) -> list[TableCell]:
    """The cells in the order of the rows, averaged over seeds."""
    grouped: dict[tuple[str, int, float], dict[str, list[Row]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        grouped[row["trace"], row["workers"], row["load"]][row["policy"]].append(row)
    return [
        TableCell(*key, {name: _mean(of_seeds) for name, of_seeds in by_policy.items()})
        for key, by_policy in grouped.items()
    ]


def merged(earlier: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Earlier rows, with new ones in their places; rows of other cells follow."""
    rows = {tuple(row[name] for name in _NAMES): row for row in (*earlier, *new)}
    return list(rows.values())


def compared(found: Sequence[TableCell]) -> list[TableCell]:
    """The judged cells: ours and a baseline ran, at a load that a fleet can carry."""
    return [
        cell
        for cell in found
        if cell.load <= COMPARED_LOAD
        and OURS in cell.figures
        and set(cell.figures) & set(BASELINES)
    ]


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of positive numbers. Raises `ZeroDivisionError` if there are none."""
    return exp(sum(map(log, values)) / len(values))


def lines(rows: Sequence[Row]) -> list[str]:
    """The table and the verdict as text."""
    found = cells(rows)
    text = ["", *_cell_lines(found)]
    judged = compared(found)
    if not judged:
        return [*text, "", f"nothing to judge: no {OURS} beside a baseline at a load <= 0.95"]
    text += ["", *(line for metric in METRICS for line in _verdict(judged, metric))]
    text += [*_tail(judged), *_against_published(judged), *_against_bound(judged)]
    return [*text, "", *overload_lines(found)]


def overload_lines(found: Sequence[TableCell]) -> list[str]:
    """Every cell under the bars of overload, as a table in Markdown: mean and p90 relative to the
    best baseline's, the longest wait and the tokens per second relative to the baseline with the
    best mean. A figure that misses its bar is bold.
    """
    text = [
        "| cell | mean | p90 | longest wait | tok/s | best mean of |",
        "|---|---|---|---|---|---|",
    ]
    num_missed = 0
    for cell in found:
        if OURS not in cell.figures or not set(cell.figures) & set(BASELINES):
            continue
        name, _ = cell.best("ttft_mean_ms")
        ours, best = cell.figures[OURS], cell.figures[name]
        shown = []
        for metric in (*METRICS, LONGEST):
            over = ours[metric] / best[metric] if metric == LONGEST else cell.ratio(metric)
            is_missed = over > OVERLOAD_BARS[metric]
            num_missed += is_missed
            shown.append(f"**{over:.2f}**" if is_missed else f"{over:.2f}")
        rate = ours["throughput_tok_s"] / best["throughput_tok_s"]
        text.append(f"| {cell.name} | {' | '.join(shown)} | {rate:.2f} | {name} |")
    return [*text, f"{num_missed} figures miss the bars of overload"]


def _cell_lines(found: Sequence[TableCell]) -> list[str]:
    width = max(len(cell.name) for cell in found)
    head = f"{'cell':{width}}  {'mean ms':>9} {'best other':>26} {'ratio':>6}"
    text = [head + f"  {'p90 ms':>9} {'best other':>26} {'ratio':>6}  hits   bound"]
    for cell in found:
        if OURS not in cell.figures or not set(cell.figures) & set(BASELINES):
            text += [
                f"{cell.name:{width}}  {name}: mean {one['ttft_mean_ms']:.0f} ms, "
                f"p90 {one['ttft_p90_ms']:.0f} ms, hits {one['hit_rate']:.1%}"
                for name, one in cell.figures.items()
            ]
            continue
        line = f"{cell.name:{width}}"
        for metric in METRICS:
            name, best = cell.best(metric)
            ours = cell.figures[OURS][metric]
            line += f"  {ours:9.0f} {best:9.0f} {name:>16} {ours / best:6.2f}"
        bound = cell.figures.get("bound_infinite")
        line += f"  {cell.figures[OURS]['hit_rate']:5.1%}"
        text.append(line + (f"  {bound['hit_rate']:5.1%}" if bound else ""))
    return text


def _verdict(judged: Sequence[TableCell], metric: str) -> list[str]:
    ratios = {cell.name: cell.ratio(metric) for cell in judged}
    mean, worst = geometric_mean(list(ratios.values())), max(ratios.values())
    bar = WORST_CELL[metric]
    text = [
        f"{metric}: ours / best baseline over {len(ratios)} cells",
        f"  geometric mean {mean:.3f}, at most {BEST_OF_ALL:.2f}: {_said(mean <= BEST_OF_ALL)}",
        f"  worst cell {worst:.2f}, at most {bar:.2f}: {_said(worst <= bar)}",
    ]
    text += [f"  lost: {name} {ratio:.2f}" for name, ratio in ratios.items() if ratio > 1]
    return text


def _tail(judged: Sequence[TableCell]) -> list[str]:
    ratios = {cell.name: cell.ratio(TAIL) for cell in judged}
    worst = max(ratios, key=ratios.__getitem__)
    mean = geometric_mean(list(ratios.values()))
    return [
        f"{TAIL}: ours / best baseline, not judged",
        f"  geometric mean {mean:.3f}, worst cell {ratios[worst]:.2f} ({worst})",
    ]


def _against_published(judged: Sequence[TableCell]) -> list[str]:
    """p90 against the mean of the published cache-aware policies."""
    ratios = [
        cell.figures[OURS]["ttft_p90_ms"]
        / (sum(cell.figures[name]["ttft_p90_ms"] for name in PUBLISHED) / len(PUBLISHED))
        for cell in judged
        if cell.load in PUBLISHED_LOADS and set(PUBLISHED) <= set(cell.figures)
    ]
    if not ratios:
        return []
    mean = geometric_mean(ratios)
    said = _said(mean <= BETTER_THAN_PUBLISHED)
    return [
        f"ttft_p90_ms: ours / mean of {', '.join(PUBLISHED)} at loads 0.8 and 0.95",
        f"  geometric mean {mean:.3f}, at most {BETTER_THAN_PUBLISHED}: {said}",
    ]


def _against_bound(judged: Sequence[TableCell]) -> list[str]:
    """The hit rate's distance from an endless shared cache."""
    gaps = {
        cell.name: cell.figures["bound_infinite"]["hit_rate"] - cell.figures[OURS]["hit_rate"]
        for cell in judged
        if cell.load <= PUBLISHED_LOADS[0] and "bound_infinite" in cell.figures
    }
    if not gaps:
        return []
    name = max(gaps, key=gaps.__getitem__)
    return [f"hit rate: at most {100 * gaps[name]:.1f} points below bound_infinite ({name})"]


def _mean(of_seeds: Sequence[Row]) -> dict[str, float]:
    return {
        key: sum(row[key] for row in of_seeds) / len(of_seeds)
        for key in of_seeds[0]
        if key not in _NAMES
    }


def _said(holds: bool) -> str:
    return "holds" if holds else "FAILS"
