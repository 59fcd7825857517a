"""How the attention kernels are launched: one class per kernel, plain numbers.

Owns the meaning of the numbers. Must not know shapes or tensors. Tuples, because launches are
looked up by them.
"""

from typing import Final, NamedTuple

MULTIPROCESSORS: Final = 132
"""Multiprocessors of an H200."""


class WriteConfig(NamedTuple):
    """Heads of one row that a program takes."""

    heads: int = 16
    warps: int = 2


class DecodeConfig(NamedTuple):
    """A decode launch.

    `tile` cached tokens per step of a program, `target` programs in all. To begin a row takes as
    long as `start` tiles; a cut moves by up to `slack` tiles to avoid beginning one row more.
    `rows` is the launch's room for rows, one of few values so that few kernels are compiled. At
    most `fan` partial results are merged at once.
    """

    tile: int
    warps: int
    stages: int
    target: int
    rows: int
    fan: int = 8
    start: int = 0
    slack: int = 0

    def programs(self, num_kv: int) -> int:
        """How many programs each key head has."""
        return max(1, self.target // num_kv)


FIXED_PIECE: Final = 1024
"""Keys of a piece where contexts are cut by position alone: with 8 key heads a decode behind 16k
tokens makes 128 programs."""

FIXED_SLOTS: Final = 8128
"""How many rows of partial results there are at once: 134 MB for 32 heads x 128, just under a power
of two. A step that needs more is computed in several passes."""


class SharingCosts(NamedTuple):
    """What sharing costs. The unit is the time in which a decode reads one cached token.

    A token of a run costs `tile` for every `tile_rows` decodes of the run. A decode costs `row` for
    every run that it is in, to merge the run's result. A step costs `step` if anything is shared.
    """

    tile_rows: int
    tile: float
    row: float
    step: float

    def tiles(self, num_rows: int) -> float:
        """The cost of a token that `num_rows` decodes read together."""
        return self.tile * -(-num_rows // self.tile_rows)

    def reading(self, num_rows: int) -> float:
        """The cost of a token for `num_rows` decodes, read together or by each decode alone,
        whichever is less.
        """
        return min(num_rows, self.tiles(num_rows))


LIBRARY_GRAIN: Final = 1024
"""The library gets a multiple of this number of rows, because it builds a plan for each exact
size; our kernel computes the rest.
"""


NO_LIBRARY: Final = 2**31
"""The value of `PrefillConfig.library` without the library: more rows than any segment has, so
no segment goes there.
"""


class PrefillConfig(NamedTuple):
    """A launch over segments: `rows` (tokens x heads of a group) by `tile` keys per step.

    `target` programs run at once. Contexts are cut into pieces of at least `piece` keys, so that up
    to `waves` times `target` programs end at about the same time. To begin a piece and to merge its
    result takes as long as `start` keys. From `library` rows on the library is faster. `cuda`: the
    kernel is `kernels.attention.extend_attention`, which has its own warps and stages. `fixed`:
    every context is cut at multiples of `piece`, whatever the load, and single rows are segments.
    """

    rows: int
    tile: int
    warps: int
    stages: int
    target: int
    piece: int = 256
    waves: int = 1
    start: int = 640
    library: int = LIBRARY_GRAIN
    cuda: bool = False
    fixed: bool = False

    def cut_slots(self, num_heads: int, num_kv: int) -> int:
        """How many rows of partial results the pieces that end together have."""
        if self.fixed:
            return FIXED_SLOTS
        return self.rows // (num_heads // num_kv) * self.waves * self.target // num_kv


EXTEND_TILE: Final = 128
"""The rows, and the keys, of a tile of `kernels.attention.extend_attention`."""

EXTEND_CONFIG: Final = PrefillConfig(
    rows=EXTEND_TILE,
    tile=EXTEND_TILE,
    warps=0,
    stages=0,
    target=MULTIPROCESSORS,
    waves=4,
    library=16 * LIBRARY_GRAIN,
    cuda=True,
)
"""An H200 at its 700 W multiplies 543 TFLOP/s for 8k cold rows where the library has 531, and 569
for 16k where it has 575."""
