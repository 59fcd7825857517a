"""The result of a check: one line of the table."""

from typing import NamedTuple


class Check(NamedTuple):
    """One line: a measured value and its bound, and whether it holds."""

    name: str
    value: float
    bound: str
    ok: bool


def at_most(name: str, value: float, bound: float) -> Check:
    """Holds if the value is a number and at most the bound."""
    return Check(name, value, f"<= {bound:.4g}", value <= bound)


def at_least(name: str, value: float, bound: float) -> Check:
    """Holds if the value is a number and at least the bound."""
    return Check(name, value, f">= {bound:.4g}", value >= bound)


def exactly(name: str, value: float, bound: float) -> Check:
    """Holds if the value is the bound."""
    return Check(name, value, f"= {bound:.4g}", value == bound)


def table(checks: list[Check]) -> str:
    """The lines as a markdown table."""
    lines = ["| check | value | bound | ok |", "|---|---|---|---|"]
    for name, value, bound, ok in checks:
        lines.append(f"| {name} | {value:.4g} | {bound} | {'yes' if ok else 'NO'} |")
    return "\n".join(lines)
