"""Draws throughput and latency over the batch size.

Owns the drawing. Only this file needs matplotlib, and only for a picture.
"""

from importlib import import_module
from pathlib import Path
from typing import Any


def plot_decode(report: dict[str, Any], path: Path) -> bool:
    """Draw a report's decode figures as a PNG. Prints why and returns False if matplotlib or the
    figures are missing.
    """
    figures = [one for one in report["figures"] if one["key"].startswith("decode-")]
    if not figures:
        print(f"no {path}: no decode test was run", flush=True)
        return False
    try:
        drawing: Any = import_module("matplotlib.figure")
    except ImportError:
        print(f"no {path}: matplotlib is not installed", flush=True)
        return False
    batches = [int(one["key"].rpartition("-")[2]) for one in figures]
    figure = drawing.Figure(figsize=(10, 4.5), dpi=120, layout="tight")
    latency, rate = figure.subplots(1, 2)
    for label, key, style in (
        ("Herma", "value", "o-"),
        ("vLLM 0.26", "peer", "s--"),
        ("floor", "floor", ":"),
    ):
        known = [(b, one[key]) for b, one in zip(batches, figures, strict=True) if one[key]]
        sizes, times_ms = [batch for batch, _ in known], [ms for _, ms in known]
        latency.plot(sizes, times_ms, style, label=label)
        rate.plot(sizes, [1e3 * batch / ms for batch, ms in known], style, label=label)
    for axes, what in ((latency, "ms per step"), (rate, "output tokens per s")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.set_xlabel("sequences at once")
        axes.set_ylabel(what)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend()
    # The times span less than a decade, so the minor ticks need labels.
    latency.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    figure.suptitle(f"{report['model']}, {report['machine']['device']}: decode, prompt included")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return True
