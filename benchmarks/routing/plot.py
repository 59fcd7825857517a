"""Draws the table: time to first token over load, one panel per trace and fleet size.

Owns the drawing. Only this file needs matplotlib, and only for a picture.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.routing.policies import BOUNDS, OURS, POLICIES
from benchmarks.routing.run import Row
from benchmarks.routing.table import TableCell, cells

METRIC: Final = "ttft_p90_ms"
_Axes: TypeAlias = Any  # matplotlib may be absent
_COLOURS: Final = (
    "#4e79a7", "#a0cbe8", "#59a14f", "#8cd17d", "#b6992d",
    "#f28e2b", "#76b7b2", "#b07aa1", "#9c755f", "#ff9da7",
)  # fmt: skip


def plot_rows(rows: Sequence[Row], path: Path) -> bool:
    """Draw a PNG. Prints a line and returns False without matplotlib."""
    try:
        drawing: Any = import_module("matplotlib.figure")
    except ImportError:
        print(f"no {path}: matplotlib is not installed", flush=True)
        return False
    found = cells(rows)
    traces = list(dict.fromkeys(cell.trace for cell in found))
    sizes = sorted({cell.workers for cell in found})
    size = (1.5 + 3.2 * len(sizes), 1.2 + 2.7 * len(traces))
    figure = drawing.Figure(figsize=size, dpi=90, layout="constrained")
    panels = figure.subplots(len(traces), len(sizes), squeeze=False, sharex=True)
    for line, trace in enumerate(traces):
        for column, num_workers in enumerate(sizes):
            axes = panels[line][column]
            own = [cell for cell in found if (cell.trace, cell.workers) == (trace, num_workers)]
            axes.set_visible(bool(own))
            _draw(axes, own)
            axes.set_title(f"{trace}, {num_workers} workers", fontsize=9)
            if column == 0:
                axes.set_ylabel("p90 to first token, s")
            if line == len(traces) - 1:
                axes.set_xlabel("load")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return True


def _draw(axes: _Axes, found: Sequence[TableCell]) -> None:
    """One line per policy; ours is thick, bounds are dotted."""
    colours = iter(_COLOURS)
    for policy in POLICIES:
        ordered = sorted((c for c in found if policy in c.figures), key=lambda cell: cell.load)
        if policy == OURS:
            style = {"color": "#d62728", "linewidth": 2.6, "marker": "o", "zorder": 5}
        elif policy in BOUNDS:
            style = {"color": "black", "linewidth": 1.0, "linestyle": ":"}
            style["marker"] = "x" if policy == "bound_oracle" else "+"
        else:
            style = {"color": next(colours), "linewidth": 1.1, "marker": ".", "alpha": 0.9}
        if ordered:
            values_s = [cell.figures[policy][METRIC] / 1e3 for cell in ordered]
            axes.plot([cell.load for cell in ordered], values_s, label=policy, **style)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda *_: "")
    axes.grid(visible=True, which="major", alpha=0.3)
