"""How a product is cut up: one class per kernel, plain numbers.

Owns the meaning of the numbers. Must not know shapes or tensors. Tuples, as launches are looked up
by them: the hash of a dataclass takes half a microsecond.
"""

from typing import Final, NamedTuple

MAX_TILE_ROWS: Final = 128
"""The most rows of x in a program by default: their sums lie in registers."""

MAX_WIDE_ROWS: Final = 256
"""The most rows of x in a program of `Wide`, by its widest instruction, whose sums take 128
registers of each thread.
"""

_MAX_BLOCKED_ROWS: Final = {1: 208, 2: 208, 3: 144}
"""The same by its warp groups, of a weight whose scales are by block: sums of a block lie beside
those of all. With 16 rows more NVRTC 13.0 spills.
"""

_MAX_SHARED_BLOCKED_ROWS: Final = 64
"""The same where a multiprocessor holds several programs, whose threads have fewer registers."""

_LEAST_STAGES: Final = 2
_LEAST_COLUMNS: Final = 32
_OTHER_BYTES: Final = 4096
"""Bytes of shared memory for sums across warps."""


class Gemv(NamedTuple):
    """`block_n` weight rows per program (two per output of a SwiGLU), in chunks of `block_k`."""

    block_n: int
    block_k: int
    num_warps: int


class Skinny(NamedTuple):
    """Tiles of `block_n` weight rows by `block_k` columns, `num_stages` of them on their way.

    - `splits` programs share the columns of one tile and add up in a fixed order.
    - Without `fuses_norm` a norm before the product is a kernel of its own.
    - `prefetched_bytes`, a power of two: how many bytes of weights a program brings into the L2
      cache before the kernel ahead has ended. 32 KiB in 264 programs are 9 of the cache's 50 MB.
    - `quantises`, for weights in 8 bits scaled by row: a kernel of its own norms x, if needed, and
      quantises it to 8 bits too.
    - A tile has up to `block_rows` rows of x (0: as many as possible); with `pads_rows` always so
      many.
    - A product of quantised rows starts, and asks for weights, as soon as places are free. If it
      `waits`, it starts only when what is ahead of the quantising kernel has ended.
    """

    block_n: int
    block_k: int
    splits: int
    num_warps: int
    num_stages: int
    fuses_norm: bool = True
    prefetched_bytes: int = 32 * 1024
    quantises: bool = False
    block_rows: int = 0
    pads_rows: bool = False
    waits: bool = False

    def tile_rows(self, num_rows: int) -> int:
        """The rows of x in a tile, if x has `num_rows` rows: a power of two, at least 16."""
        if self.pads_rows:
            return self.block_rows
        padded = max(16, 1 << (num_rows - 1).bit_length())
        return min(self.block_rows or MAX_TILE_ROWS, padded)


def fitted(config: Skinny, tile_bytes: int, shared_bytes: int) -> Skinny:
    """`config` for a card with `shared_bytes` of shared memory, where a stage takes `tile_bytes`:
    with fewer stages, down to two, then with fewer columns at once. Sums keep the order of their
    columns.
    """
    while config.num_stages * tile_bytes + _OTHER_BYTES > shared_bytes:
        if config.num_stages > _LEAST_STAGES:
            config = config._replace(num_stages=config.num_stages - 1)
        elif config.block_k > _LEAST_COLUMNS:
            config, tile_bytes = config._replace(block_k=config.block_k // 2), tile_bytes // 2
        else:
            break
    return config


class Wide(NamedTuple):
    """Tiles of 64 x `groups` weight rows, one warp group for every 64, by up to 256 rows of x.

    - `splits` programs of a cluster share the columns of a tile and add up in a fixed order.
    - `reads_once`: weights may leave the cache first.
    - `band`: if x has more rows than a tile, this many tiles of rows are computed side by side.
    - `rows`: the most rows of x in a tile; all tiles have the same number.
    - `stages`: the most tiles of columns that are loaded ahead, as far as shared memory holds them.
      Their weights are requested before the kernel ahead has ended.
    - `cached_bytes`: how much of a weight's row the cache fetches at once, 128 or 256 bytes; a tile
      has 128.
    - `programs`: a multiprocessor holds so many, which share its memory and registers. 182 programs
      then run all at once, where one for each of 132 multiprocessors would take two rounds.
    """

    groups: int
    splits: int
    reads_once: bool = False
    band: int = 0
    rows: int = 0
    stages: int = 8
    cached_bytes: int = 128
    programs: int = 1

    @property
    def most_blocked_rows(self) -> int:
        """The most rows of x in a tile, of a weight whose scales are by block."""
        return _MAX_SHARED_BLOCKED_ROWS if self.programs > 1 else _MAX_BLOCKED_ROWS[self.groups]

    def tile_rows(self, num_rows: int) -> int:
        """Rows of x in a tile, a multiple of 16: with `rows` 128 a tile of 208 has 112."""
        if self.rows:
            num_rows = -(-num_rows // -(-num_rows // self.rows))
        return min(MAX_WIDE_ROWS, -(-num_rows // 16) * 16)


class Int4Tiles(NamedTuple):
    """Tiles of 16 `m_tiles` `warps_m` weight rows in 4 bits, by 8 `eights` rows of x.

    - A stage has `wide` times 256 columns, shared by `warps_k` warps; `stages` stages are on their
      way at once.
    - `splits` programs of a cluster share the columns of a tile and add up in a fixed order.
    - `blocks`: how many programs a multiprocessor should hold, by their registers.
    - `early`: numbers are scaled before the product, instead of the sums of a group after it. That
      takes fewer registers.
    - `turns`: so many groups of these warps take the stages in turns.
    - `wgmma`: four warps multiply together, in bfloat16, at twice the rate; for `m_tiles` 1 and
      `early`.
    - `lone`: if x is a single row, it lies whole in shared memory, as its norm does, and stages are
      of words alone.
    """

    warps_m: int
    warps_k: int
    m_tiles: int
    eights: int
    splits: int
    stages: int
    blocks: int
    early: bool = False
    turns: int = 1
    wgmma: bool = False
    wide: int = 1
    lone: bool = False

    @property
    def parts(self) -> int:
        """How many warps hold parts of the same sums."""
        return self.warps_k * self.turns

    @property
    def tile(self) -> int:
        """Weight rows of a program."""
        return 16 * self.m_tiles * self.warps_m


class Int4Ampere(NamedTuple):
    """Tiles of 16 `m_tiles` `warps_m` weight rows in 4 bits, by 8 `eights` rows of x.

    - `teams` of `warps_m` warps take steps of `columns` columns in turns. Each has `stages` of its
      own in shared memory, all but one of them on their way.
    - `splits` programs share the columns of a tile and add up in a fixed order. It is no constant
      of the compilation.
    """

    warps_m: int
    m_tiles: int
    teams: int
    eights: int
    stages: int
    columns: int = 128
    splits: int = 1

    @property
    def tile(self) -> int:
        """Weight rows of a program."""
        return 16 * self.m_tiles * self.warps_m


Config = Gemv | Skinny | Wide
