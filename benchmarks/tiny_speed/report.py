"""The figures of speed and their bars.

Owns the bars and the table. Must not measure.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

READY_MAX_S: Final = 10.0
FIRST_TOKEN_MAX_S: Final = 0.5
ONE_STREAM_MIN: Final = 60.0
SIXTEEN_STREAMS_MIN: Final = 300.0


@dataclass(frozen=True, slots=True)
class SpeedFigure:
    """One measured value. `at_most` or `at_least` is its bar; with neither it is only reported."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        if self.at_most is not None and self.value > self.at_most:
            return False
        return self.at_least is None or self.value >= self.at_least


def figures_table(figures: Sequence[SpeedFigure]) -> str:
    lines = ["| what | value | bar | holds |", "|---|---:|---:|---|"]
    for one in figures:
        verdict = ("yes" if one.holds else "NO") if _bar(one) else ""
        lines.append(f"| {one.name} | {one.value:.2f} {one.unit} | {_bar(one)} | {verdict} |")
    return "\n".join(lines)


def as_json(figures: Sequence[SpeedFigure]) -> list[dict[str, Any]]:
    return [asdict(one) | {"holds": one.holds} for one in figures]


def _bar(figure: SpeedFigure) -> str:
    if figure.at_most is not None:
        return f"at most {figure.at_most:g}"
    return "" if figure.at_least is None else f"at least {figure.at_least:g}"
