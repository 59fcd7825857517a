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

    `tile` cached tokens per step, `target` programs in all; beginning a row takes as long as
    `start` tiles, and a cut moves by up to `slack` of them to spare that. `rows` is what the launch
    has room for, few values so that few kernels are compiled; at most `fan` partial results are
    merged at once.
    """

    tile: int
    warps: int
    stages: int
    target: int
    rows: int
    fan: int = 8
    start: int = 0
    slack: int = 0


FIXED_PIECE: Final = 1024
"""Keys of a piece where contexts are cut by position alone: a decode of 16k is 128 programs of 8
key heads."""

FIXED_SLOTS: Final = 8128
"""Rows of partial results at once: 134 MB of 32 heads x 128, just under a power of two. A step that
needs more is attended in several passes."""


class SharingCosts(NamedTuple):
    """What sharing takes, in cached tokens that a decode reads in that time.

    A token of a run takes `tile` for each `tile_rows` decodes that share it, a decode `row` for
    every run in which it is, to merge what is found; a step `step` if anything is shared.
    """

    tile_rows: int
    tile: float
    row: float
    step: float

    def tiles(self, num_rows: int) -> float:
        """A token of so many decodes, read together."""
        return self.tile * -(-num_rows // self.tile_rows)

    def reading(self, num_rows: int) -> float:
        """The same, together or apart."""
        return min(num_rows, self.tiles(num_rows))


LIBRARY_GRAIN: Final = 1024
"""The library's plans are built for exact sizes: it gets whole multiples, ours does the rest."""


NO_LIBRARY: Final = 2**31
"""Rows that no segment has."""


class PrefillConfig(NamedTuple):
    """A launch over segments: `rows` (tokens x heads of a group) by `tile` keys per step.

    `target` programs run at once. Contexts are cut into `piece` keys at the least, so that up to
    `waves` times as many end together; beginning one, and merging what it leaves, takes as long as
    `start` keys. From `library` rows on the library is faster. `cuda` is
    `kernels.attention.extend_attention`, which has its own warps and stages. `fixed` cuts every
    context at the multiples of `piece`, whatever the load, and single rows are segments too.
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
        """Rows of partial results of as many pieces as end together, each a tile's tokens."""
        if self.fixed:
            return FIXED_SLOTS
        return self.rows // (num_heads // num_kv) * self.waves * self.target // num_kv


EXTEND_TILE: Final = 128
"""Rows, and keys, of a tile of `kernels.attention.extend_attention`."""

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
