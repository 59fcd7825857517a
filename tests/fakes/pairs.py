"""Fewer combinations of test parameters: in `make test`, and where Triton interprets kernels.

What `make test` leaves out has the mark `slow`: `make long` runs it.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def seldom(*values: object) -> list[Any]:
    """Parameters of `make long` alone."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def each_once(*factors: Sequence[Any]) -> list[Any]:
    """All rows of the product. `make test` has some in which each value is met, the first row among
    them.
    """
    count = max(len(values) for values in factors)
    often = {tuple(at % len(values) for values in factors) for at in range(count)}
    return _rows(often, factors)


def each_pair(*factors: Sequence[Any]) -> list[Any]:
    """All rows of the product. `make test` has those of `pairwise_cases`: each two values of
    different factors meet.
    """
    return _rows(_pairwise(factors), factors)


def _rows(often: Iterable[tuple[int, ...]], factors: Sequence[Sequence[Any]]) -> list[Any]:
    chosen = set(often)
    found = []
    for row in product(*(range(len(values)) for values in factors)):
        marks = () if row in chosen else pytest.mark.slow
        values = [factors[at][index] for at, index in enumerate(row)]
        found.append(pytest.param(*values, marks=marks))
    return found


def pairwise_cases(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows of the product in which each two values of different factors meet, chosen greedily; on
    a card all rows.
    """
    if not _is_interpreted():
        return list(product(*factors))
    return [tuple(factors[at][index] for at, index in enumerate(row)) for row in _pairwise(factors)]


def _pairwise(factors: Sequence[Sequence[Any]]) -> list[tuple[int, ...]]:
    """Rows of indices, chosen greedily."""
    rows = list(product(*(range(len(values)) for values in factors)))
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(best)
        chosen.append(best)
    return chosen


def every_second(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Every second row of the product; on a card all rows."""
    rows = list(product(*factors))
    return rows[::2] if _is_interpreted() else rows


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _pairs(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(row), 2))
