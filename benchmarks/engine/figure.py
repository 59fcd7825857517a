"""One measured number with its floor and bars.

Owns how a figure is compared. Must not know how it was measured.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.engine.drawing import MOST_OFF, Distinct
from benchmarks.engine.peer import NO_BAR, EngineBar


@dataclass(frozen=True, slots=True)
class EngineFigure:
    """One figure. `values` are the single runs; their median counts. `floor` has the same unit;
    None without a card. Rates are better when larger, times when smaller. `experts` are those that
    a step of a mixture read.
    """

    key: str
    name: str
    unit: str
    values: tuple[float, ...]
    floor: float | None = None
    bar: EngineBar = NO_BAR
    experts: Distinct | None = None

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def is_rate(self) -> bool:
        """Whether larger is better."""
        return self.unit.endswith("/s")

    @property
    def counts(self) -> bool:
        """Whether the work was that of real requests."""
        return self.experts is None or self.experts.counts

    @property
    def share(self) -> float | None:
        """The share of the floor's speed that is reached, 0 to 1."""
        if self.floor is None:
            return None
        return self.value / self.floor if self.is_rate else self.floor / self.value

    def reaches(self, bound: float | None) -> bool | None:
        """Whether the value meets a bound; None without one."""
        if bound is None:
            return None
        return self.value >= bound if self.is_rate else self.value <= bound

    def as_json(self) -> dict[str, Any]:
        """All fields, for the result file."""
        return {
            **{name: value for name, value in asdict(self).items() if name != "bar"},
            "value": self.value,
            "share_of_floor": self.share,
            "counts": self.counts,
            **self.bar._asdict(),
            "must_is_met": self.reaches(self.bar.must),
            "goal_is_met": self.reaches(self.bar.goal),
        }


def table(figures: Sequence[EngineFigure]) -> str:
    """The figures as a markdown table."""
    has_experts = any(figure.experts for figure in figures)
    heads = ["test", "ours", "unit", "floor", "share", "vLLM 0.26", "must", "goal", "met"]
    heads += ["experts", "uniform"] * has_experts
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for figure in figures:
        share = "" if figure.share is None else f"{100 * figure.share:.0f} %"
        cells = [
            figure.name, _number(figure.value), figure.unit, _number(figure.floor), share,
            _number(figure.bar.peer), _number(figure.bar.must), _number(figure.bar.goal),
            _met(figure),
        ]  # fmt: skip
        if has_experts:
            cells += map(_number, figure.experts or (None, None))
        lines.append(f"| {' | '.join(cells)} |")
    if has_experts:
        lines.append(
            "\nexperts: distinct ones of a layer, in the last step of each run; uniform: as many "
            f"as independent uniform choices have. Off by more than {100 * MOST_OFF:.0f} %, a row "
            "does not count."
        )
    return "\n".join(lines)


def _met(figure: EngineFigure) -> str:
    if not figure.counts:
        return "does not count"
    if figure.reaches(figure.bar.goal):
        return "goal"
    if figure.bar.must is not None:
        return "must" if figure.reaches(figure.bar.must) else "NO"
    if figure.bar.peer is not None:
        return "faster" if figure.reaches(figure.bar.peer) else "slower"
    return ""


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.1f}"
