"""Bars, table and JSON.

Owns what counts as missed, and how it is shown. Must not know how anything was measured.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from tests.chaos.faults import BARS_S, FAULTS
from tests.chaos.measure import median
from tests.chaos.scenario import Outcome

RESUME_S: Final = 0.3
REJOIN_S: Final = 1.0
MAX_FACTOR: Final = 3.0
HEAD: Final = (
    f"{'fault':16} {'workers':>7} {'answers':>7} {'hit':>4}  "
    f"{'detect p50':>10} {'max':>6}  {'resume p50':>10} {'max':>6}  {'rejoin p50':>10} {'max':>6}"
    f"  {'late':>5} {'load':>5}  verdict"
)


def row_of(outcome: Outcome) -> dict[str, Any]:
    """The figures of one scenario, seconds, with `missed` bars and `problems`."""
    injections = outcome.injections
    figures = {
        "detect": spread([i.detect_s for i in injections if i.detect_s is not None]),
        "resume": spread([one for i in injections for one in i.resume_s]),
        "rejoin": spread([i.rejoin_s for i in injections if i.rejoin_s is not None]),
    }
    detection = FAULTS[outcome.name].detection
    bars = {"detect": BARS_S[detection], "resume": RESUME_S, "rejoin": REJOIN_S}
    late_s = [i.late_s for i in injections]
    is_timed = detection != "none"
    return {
        "fault": outcome.name,
        "workers": outcome.num_workers,
        "injections": len(injections),
        "answers": outcome.num_answers,
        "hit": sum(len(i.hit) for i in injections),
        **({name: values for name, values in figures.items() if values} if is_timed else {}),
        "late_s": round(max(late_s, default=0.0), 3),
        "load": round(max((i.load for i in injections), default=0.0), 1),
        "missed": missed(figures, bars, late_s) if is_timed else [],
        "problems": outcome.problems,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and maximum, rounded to milliseconds; nothing of nothing."""
    if not values:
        return {}
    return {"p50": round(median(values), 3), "max": round(max(values), 3)}


def missed(
    figures: dict[str, dict[str, float]], bars: dict[str, float], late_s: Sequence[float] = ()
) -> list[str]:
    """The bars (median, seconds) that the figures do not keep, in words. The bar of a maximum is
    `MAX_FACTOR` times as high. Both are as much higher as the harness was late, in the median and
    at the most: so late may be whatever it measures.
    """
    late = spread(late_s) or {"p50": 0.0, "max": 0.0}
    found = []
    for name, values in figures.items():
        for which, bar in (("p50", bars[name]), ("max", MAX_FACTOR * bars[name])):
            if values and values[which] > bar + late[which]:
                found.append(f"{name} {which} {values[which]:.2f} > {bar:g} s")
    return found


def line_of(row: dict[str, Any]) -> str:
    """One row of the table."""
    cells = []
    for name in ("detect", "resume", "rejoin"):
        values = row.get(name, {})
        cells += [_cell(values.get("p50", math.nan), 10), _cell(values.get("max", math.nan), 6)]
    verdict = "; ".join(row["missed"]) or "ok"
    if row["problems"]:
        verdict = f"{len(row['problems'])} WRONG: {row['problems'][0]}"
    return (
        f"{row['fault']:16} {row['workers']:7} {row['answers']:7} {row['hit']:4}  "
        f"{cells[0]} {cells[1]}  {cells[2]} {cells[3]}  {cells[4]} {cells[5]}"
        f"  {row['late_s']:5.2f} {row['load']:5.1f}  {verdict}"
    )


def _cell(value: float, width: int) -> str:
    return f"{'-':>{width}}" if math.isnan(value) else f"{value:{width}.2f}"
