"""Fewer combinations of test parameters where Triton interprets kernels, which takes long."""

import os
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def pairwise_cases(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows of the product in which each two values of different factors meet, chosen greedily; on
    a card all rows.
    """
    if not _is_interpreted():
        return list(product(*factors))
    rows = list(product(*(range(len(values)) for values in factors)))
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(best)
        chosen.append(best)
    return [tuple(factors[at][index] for at, index in enumerate(row)) for row in chosen]


def every_second(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Every second row of the product; on a card all rows."""
    rows = list(product(*factors))
    return rows[::2] if _is_interpreted() else rows


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _pairs(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(row), 2))
