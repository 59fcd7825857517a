"""Which rows of a step belong together and where their keys lie, for the card.

Owns the plan of a paged step. Must not know kernels, models or scheduling.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from torch import Tensor

from kernels.attention.config import PrefillConfig

NO_ROW: Final = -1
"""In place of a decode's position: a padding row, for which nothing is computed."""


class Scope(NamedTuple):
    """What rows see: scores are products times `scale`; the last `window` positions, 0 for all, or
    with `sees_ahead` all of their segment, too.
    """

    scale: float
    window: int = 0
    sees_ahead: bool = False


class ExtendSegment(NamedTuple):
    """Consecutive rows of one sequence: positions [start, start + num_rows)."""

    first_row: int
    num_rows: int
    start: int
    table_row: int


class SharedRun(NamedTuple):
    """Decodes [first_row, first_row + num_rows) whose cached tokens [begin, end) lie in the same
    blocks, those of `table_row`.

    A run that begins behind token 0 is nested: its rows are among those of the run that ends there,
    which precedes it.
    """

    first_row: int
    num_rows: int
    begin: int
    end: int
    table_row: int


class PrefillWork(NamedTuple):
    """Segments, and what decodes share, cut for `config` into what one program does, from
    `kernels.attention.work`.

    `items` int32 [items, 8] and `merges` int32 [rows, 4] on the card, where items without rows and
    merges without pieces do nothing; `num_partials` rows of partial results; `library` are the
    segments that the library's kernel takes instead. `more` are passes behind this one, which use
    the same partial results. `shared` int32 [decodes, 4], None where no decodes can share: of each
    the shared tokens, which items attend to, and the first slot of the results, the slots from one
    to the next, and their number. `ahead` are the items of layers whose rows see ahead, None where
    there are no such layers.
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
    `block_tables` int32 [tables, blocks] that names each row's blocks. They may change between
    replays of a captured graph, as may what `work` holds. Kernels read them before they wait for
    the kernel ahead of them, so whatever wrote them must lie behind a plain launch (one without
    programmatic dependence) in the stream. Rows of one step never share a slot. A decode at
    position `NO_ROW` pads a step: nothing is read or written for it, its output is undefined. So
    is the output of rows behind the decodes that no segment has; their keys and values are written,
    and several may share a slot that is never read.
    `work` (from `kernels.attention.work`) is what the kernels need for segments and for what
    decodes share (`runs`), `shares` (from `kernels.attention.shares`) for decodes; the reference
    needs `prefills` alone. With `invariant` a row's result is bit for bit the same in every plan:
    then all rows are those of segments.
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

    @property
    def first_prepared(self) -> int:
        """The row that is number 0 for items, whose queries are prepared ahead of them: a decode
        where decodes can share, else the first row of the segments.
        """
        return self.num_decodes if self.work is None or self.work.shared is None else 0
