"""Measured configurations: exceptions to the rules of `choose` and `int4_choose`.

Owns the form of the data files beside it, whose tables say on which card, by which sweep and when
they were measured. `python -m benchmarks.linear_table` writes them; do not edit them by hand. An
entry says for one shape which kernel was the fastest, how that cuts the product up, and, where it
was kept, what the product took. Must not know the rules.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from kernels.linear.config import Config, Gemv, Int4Tiles, Skinny, Wide

Product: TypeAlias = tuple[str, int, int, int]
"""The operation, the rows (the next of those that are measured), and the weight's shape."""

Int4Product: TypeAlias = tuple[int, int, int]
"""The most rows of x, and the weight's shape."""

FOLDER: Final = Path(__file__).parent

DENSE: Final = "measured_h200.json"
"""Weights in 16 bits."""

FP8: Final = "measured_h200_fp8.json"
"""Weights in 8 bits."""

INT4: Final = "measured_h200_int4.json"
"""Weights in 4 bits, by the kernel of `int4_tiles`, where warp groups multiply."""

LIBRARY: Final = "library"
"""The kernel of an entry for which torch's own product is the fastest."""

_KERNELS: Final[dict[str, Any]] = {
    "gemv": Gemv,
    "skinny": Skinny,
    "wide": Wide,
    "int4_tiles": Int4Tiles,
}


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The best of a sweep for one shape. `weight` is the weight's shape, `us` microseconds of the
    product (None: not kept); `tiles` are the fields of the kernel's configuration that are not its
    defaults. In 4 bits all operations have the same tiles, so an entry names none.
    """

    op: str = ""
    rows: int
    weight: tuple[int, int]
    us: float | None = None
    kernel: str
    tiles: dict[str, bool | int] = {}


class Table(msgspec.Struct, forbid_unknown_fields=True):
    """What a sweep found on one `card` with this `software`, on a `date` (year-month-day)."""

    card: str
    software: str
    date: str
    sweep: str
    entries: list[Entry]


def read(name: str) -> list[Table]:
    """The tables of a data file, the oldest first; no two name the same shape. Raises `OSError`,
    and `msgspec.DecodeError` if it holds something else.
    """
    return msgspec.json.decode((FOLDER / name).read_bytes(), type=list[Table])


def products_of(tables: Sequence[Table]) -> dict[Product, Config | None]:
    """The configuration of each product; None means the library."""
    return {
        (entry.op, entry.rows, *entry.weight): None
        if entry.kernel == LIBRARY
        else _KERNELS[entry.kernel](**entry.tiles)
        for table in tables
        for entry in table.entries
    }


def int4_products_of(tables: Sequence[Table]) -> dict[Int4Product, Int4Tiles]:
    """The tiles of each product."""
    return {
        (entry.rows, *entry.weight): _KERNELS[entry.kernel](**entry.tiles)
        for table in tables
        for entry in table.entries
    }


TUNED: Final = products_of(read(DENSE))
TUNED_FP8: Final = products_of(read(FP8))
TUNED_INT4: Final = int4_products_of(read(INT4))
