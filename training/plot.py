"""The loss curve as a picture.

Owns the drawing. matplotlib is needed only here, and only for a picture.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any


def plot_loss(log: Sequence[dict[str, Any]], path: Path) -> bool:
    """Draw the loss over the tokens as a PNG. Prints a line and returns False without
    matplotlib.
    """
    try:
        drawing: Any = import_module("matplotlib.figure")
    except ImportError:
        print(f"no {path}: matplotlib is not installed", flush=True)
        return False
    figure = drawing.Figure(figsize=(8, 4.5), dpi=120, layout="tight")
    axes = figure.add_subplot()
    tokens = [entry["tokens"] / 1e6 for entry in log]
    axes.plot(tokens, [entry["loss"] for entry in log], color="tab:blue")
    axes.set_yscale("log")
    axes.set_xlabel("tokens seen (millions)")
    axes.set_ylabel("cross-entropy per trained token (nats)", color="tab:blue")
    axes.set_title("herma-tiny: training loss")
    axes.grid(visible=True, which="both", alpha=0.3)
    began = next((entry["tokens"] / 1e6 for entry in log if entry["long_batches"] > 1), None)
    if began is not None:
        axes.axvline(
            began, color="tab:orange", linestyle="--", label="long conversations from here"
        )
        axes.legend(loc="lower left")
    rates = axes.twinx()
    rates.plot(tokens, [entry["learning_rate"] for entry in log], color="tab:gray", alpha=0.6)
    rates.set_ylabel("share of the full learning rate", color="tab:gray")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return True
