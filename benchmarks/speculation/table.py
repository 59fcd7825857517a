"""The figures as a table, a verdict and a picture.

Owns their form. Only the picture needs matplotlib.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.speculation.measure import ADAPTIVE, IDLE, NONE, SpeculationFigure

_PAYS: Final = 1.05
"""A smaller gain is within the difference between two runs."""

Series = dict[tuple[str, int], dict[str, SpeculationFigure]]
"""Figures by kind and batch, then by way."""


def series_of(figures: Sequence[SpeculationFigure]) -> Series:
    """The figures grouped in the order in which they were measured."""
    found: Series = {}
    for figure in figures:
        found.setdefault((figure.kind, figure.batch), {})[figure.way] = figure
    return found


def rows(figures: Sequence[SpeculationFigure]) -> list[str]:
    """A Markdown table: tokens/s of each way, and the yield of a pass at the best depth."""
    series = series_of(figures)
    ways = list(dict.fromkeys(figure.way for figure in figures))
    heads = "".join(f" {'K = ' + way if way.isdigit() else way} |" for way in ways)
    lines = [
        f"| tokens/s | at once |{heads} best | gain | tokens a pass |",
        "|---|---|" + "---|" * (len(ways) + 3),
    ]
    for (kind, batch), by_way in series.items():
        cells = [f"{by_way[way].tokens_per_s:,.0f}" if way in by_way else "" for way in ways]
        best = best_of(by_way)
        gain = f"{gain_of(by_way, best):.2f}" if NONE in by_way else ""
        length = f"{by_way[best].length:.2f}"
        lines.append(f"| {kind} | {batch} | {' | '.join([*cells, best, gain, length])} |")
    return lines


def acceptances(figures: Sequence[SpeculationFigure]) -> list[str]:
    """The acceptance at each place, at the greatest depth of each kind and batch."""
    found = []
    for (kind, batch), by_way in series_of(figures).items():
        deepest = max(by_way.values(), key=lambda figure: len(figure.acceptance))
        shown = ", ".join(f"{share:.2f}" for share in deepest.acceptance)
        if shown:
            found.append(f"{kind}, {batch} at once, accepted by place: {shown}")
    return found


def verdicts(figures: Sequence[SpeculationFigure]) -> list[str]:
    """Whether speculation pays here: a line for each kind and batch."""
    found = []
    for (kind, batch), by_way in series_of(figures).items():
        if NONE not in by_way:
            continue
        best = best_of(by_way)
        gain = gain_of(by_way, best)
        answer = f"yes, {_named(best)}: {gain:.2f} times" if gain >= _PAYS else "no"
        adaptive = ""
        if ADAPTIVE in by_way:
            adaptive = f"; adaptive depth gives {gain_of(by_way, ADAPTIVE):.2f}"
        found.append(f"{kind}, {batch} at once: {answer}{adaptive}")
    return found


def best_of(by_way: dict[str, SpeculationFigure]) -> str:
    """The fastest way with drafts; without any, the fastest way."""
    drafting = {way: figure for way, figure in by_way.items() if way not in (NONE, IDLE)} or by_way
    return max(drafting, key=lambda way: drafting[way].tokens_per_s)


def gain_of(by_way: dict[str, SpeculationFigure], way: str) -> float:
    """The ratio of the speed to that without drafts."""
    return by_way[way].tokens_per_s / by_way[NONE].tokens_per_s


def _named(way: str) -> str:
    return f"{way} drafts" if way.isdigit() else f"{way} depth"


def plot(figures: Sequence[SpeculationFigure], title: str, path: Path) -> bool:
    """Draw the gain over the depth as a PNG. Prints why and returns False without matplotlib."""
    try:
        drawing: Any = import_module("matplotlib.figure")
    except ImportError:
        print(f"no {path}: matplotlib is not installed", flush=True)
        return False
    series = {key: by_way for key, by_way in series_of(figures).items() if NONE in by_way}
    kinds = list(dict.fromkeys(kind for kind, _ in series))
    figure = drawing.Figure(figsize=(2 + 4.5 * len(kinds), 4.5), dpi=120, layout="tight")
    all_axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for kind, axes in zip(kinds, all_axes, strict=True):
        for (own, batch), by_way in series.items():
            if own == kind:
                _draw(axes, batch, by_way)
        axes.axhline(1.0, color="grey", linewidth=1)
        axes.set_title(kind)
        axes.set_xlabel("drafts of a pass, K")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(title="at once", fontsize="small")
    all_axes[0].set_ylim(bottom=0.0)  # of all, when all is drawn
    all_axes[0].set_ylabel("speed, times that without drafts")
    figure.suptitle(f"{title}\ndashed: adaptive depth; grey: no drafts", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return True


def _draw(axes: Any, batch: int, by_way: dict[str, SpeculationFigure]) -> None:  # noqa: ANN401 - matplotlib's
    """A line over fixed depths, and a dashed one for the adaptive depth."""
    depths = sorted([int(way) for way in by_way if way.isdigit()])
    points = [0, *depths]
    gains = [1.0, *[gain_of(by_way, str(depth)) for depth in depths]]
    (line,) = axes.plot(points, gains, "o-", markersize=3, label=str(batch))
    if ADAPTIVE in by_way:
        gain = gain_of(by_way, ADAPTIVE)
        axes.axhline(gain, linestyle="--", linewidth=1, color=line.get_color())
