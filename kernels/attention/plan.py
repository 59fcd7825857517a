"""Which rows of a step belong together and where their keys lie, for the card.

Owns the plan of a paged step. Must not know kernels, models or scheduling.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from torch import Tensor

from kernels.attention.config import PrefillConfig

NO_ROW: Final = -1
"""The position of a padding row, for which nothing is computed."""


class Scope(NamedTuple):
    """What rows see. Scores are products times `scale`. A row sees the last `window` positions, 0
    for all, and with `sees_ahead` all rows of its segment. With `borrows` there are queries alone,
    and the keys and values of the rows are in the cache.
    """

    scale: float
    window: int = 0
    sees_ahead: bool = False
    borrows: bool = False


class ExtendSegment(NamedTuple):
    """Consecutive rows of one sequence: positions [start, start + num_rows)."""

    first_row: int
    num_rows: int
    start: int
    table_row: int


class SharedRun(NamedTuple):
    """Decodes [first_row, first_row + num_rows) whose cached tokens [begin, end) lie in the same
    blocks, those of `table_row`.

    A run with `begin` > 0 is nested: its rows are among those of an earlier run that ends there.
    """

    first_row: int
    num_rows: int
    begin: int
    end: int
    table_row: int


class PrefillWork(NamedTuple):
    """Segments, and what decodes share, cut for `config` into items, each the work of one program
    (`kernels.attention.work`).

    - `items` int32 [items, 8] and `merges` int32 [rows, 4] on the card; see `HostWork`. Items
      without rows and merges without pieces do nothing.
    - `num_partials`: how many rows of partial results there are.
    - `library`: the segments that the library's kernel computes instead.
    - `more`: passes behind this one, which use the same memory for partial results.
    - `shared` int32 [decodes, 4], None if no decodes can share. For each decode: how many leading
      tokens items attend to in its place, the first slot of their results, the slots from one
      result to the next, and the number of results.
    - `ahead`: the items for layers whose rows see ahead, None without such layers.
    """

    items: Tensor
    merges: Tensor
    num_partials: int
    library: tuple[ExtendSegment, ...]
    config: PrefillConfig
    more: tuple["PrefillWork", ...] = ()
    shared: Tensor | None = None
    ahead: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PagedPlan:
    """T rows: `num_decodes` single rows of different sequences, then the rows of the segments.

    `positions` int32 [T] within each row's sequence; `table_rows` int32 [T], the row of
    `block_tables` int32 [tables, blocks] that names each row's blocks. They, and the content of
    `work`, may change between replays of a captured graph. Kernels read them before they wait for
    the kernel ahead of them, so a plain launch (one without programmatic dependence) must stand
    between what writes them and the kernels. Rows of one step never share a slot.

    A decode at position `NO_ROW` pads a step: nothing is read or written for it, and its output is
    undefined. Rows behind the decodes that belong to no segment are padding too: their output is
    undefined, but their keys and values are written, to slots that are never read.

    The kernels need `work` (`kernels.attention.work`) for segments and for `runs`, which decodes
    share, and `shares` (`kernels.attention.shares`) for decodes. The reference needs only
    `prefills`. `window_tables` name the blocks of layers that keep only their window, where a
    network has such; entries of what is behind the window are never read. `others` are the same
    rows prepared for the other kinds of heads of a network. With `invariant` a row's result is bit
    for bit the same in every plan; then all rows are those of segments. No decode has more than
    `longest` cached tokens; 0: any number. No layer sees more than `reach` tokens of a row, its own
    among them; 0: all. `shares` are then of those alone.
    """

    positions: Tensor
    table_rows: Tensor
    block_tables: Tensor
    num_decodes: int
    prefills: tuple[ExtendSegment, ...] = ()
    work: PrefillWork | None = None
    shares: Tensor | None = None
    invariant: bool = False
    runs: tuple[SharedRun, ...] = ()
    others: tuple["PagedPlan", ...] = ()
    window_tables: Tensor | None = None
    longest: int = 0
    reach: int = 0

    @property
    def first_prepared(self) -> int:
        """The row from which items count, and from which queries are prepared ahead: row 0 if
        decodes can share, else the first row of the segments.
        """
        return self.num_decodes if self.work is None or self.work.shared is None else 0
