"""Draws the table as a picture.

Owns the drawing. Only this file needs matplotlib, and only for a picture.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.http.figures import HttpFigures, merge
from benchmarks.http.run import Results

_Axes: TypeAlias = Any  # matplotlib may be absent
_COLOURS: Final = ("#d62728", "#4e79a7", "#59a14f", "#b6992d")
_PANELS: Final = (
    ("output tokens/s", "tokens_per_s", None),
    ("ms to the first token: p50, and a line to p99", "first_ms_p50", "first_ms_p99"),
    ("ms between tokens: p50, and a line to p99", "gap_ms_p50", "gap_ms_p99"),
)


def plot(results: Results, path: Path) -> bool:
    """Draw a PNG. Prints why and returns False if matplotlib or the figures are missing."""
    names = [endpoint.name for endpoint in results.plan.endpoints]
    found = [
        (row.cell, {name: merge(rounds) for name, rounds in row.rounds.items()})
        for row in results.rows
        if not row.part
    ]
    if not any(one.num_answers for _, figures in found for one in figures.values()):
        print(f"no {path}: no answer came", flush=True)
        return False
    try:
        drawing: Any = import_module("matplotlib.figure")
    except ImportError:
        print(f"no {path}: matplotlib is not installed", flush=True)
        return False
    figure = drawing.Figure(figsize=(6 + 1.1 * len(found), 8.5), dpi=120, layout="constrained")
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    for axes, (what, low, high) in zip(panels, _PANELS, strict=True):
        for number, name in enumerate(names):
            _draw(axes, [figures.get(name) for _, figures in found], low, high, number, len(names))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        # Within a decade only the minor ticks have room for labels.
        axes.yaxis.set_minor_formatter(
            lambda value, _: f"{value:,g}" if f"{value:e}"[0] in "25" else ""
        )
        low_end, high_end = axes.get_ylim()
        axes.set_ylim(low_end / 1.6, high_end * 1.4)
        axes.set_title(what, fontsize=10, loc="left")
        axes.grid(visible=True, axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    panels[-1].set_xticks(range(len(found)), [cell for cell, _ in found])
    patches: Any = import_module("matplotlib.patches")
    handles = [
        patches.Patch(color=_colour(number), label=name) for number, name in enumerate(names)
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(names), fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return True


def _draw(
    axes: _Axes,
    cells: list[HttpFigures | None],
    low: str,
    high: str | None,
    number: int,
    num_names: int,
) -> None:
    """One server's bars with their values."""
    width = 0.8 / num_names
    for at, figures in enumerate(cells):
        if figures is None or not (value := getattr(figures, low)):
            continue
        x = at + (number - (num_names - 1) / 2) * width
        axes.bar(x, value, width * 0.92, color=_colour(number))
        top = getattr(figures, high) if high is not None else None
        failed = f"\n{figures.num_errors} failed" if figures.num_errors and top is None else ""
        _write(axes, x, value, failed, is_above=top is None)
        if top is not None:
            axes.plot([x, x], [value, top], color="black", linewidth=1.0, marker="_")
            _write(axes, x, top, is_above=True)


def _write(axes: _Axes, x: float, value: float, more: str = "", *, is_above: bool) -> None:
    """Write a value above its point, or inside the bar that ends there."""
    axes.annotate(
        (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") + more,
        (x, value),
        (0, 3 if is_above else -10),
        textcoords="offset points",
        ha="center",
        fontsize=7,
        color="black" if is_above else "white",
    )


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
