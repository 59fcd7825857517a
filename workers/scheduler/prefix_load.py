"""One load of a prefix from the host, part by part: how far it is.

Owns the facts of a load. Must not know how its blocks are taken, copied or entered: see
`loading.py`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from workers.scheduler.block_table import BlockTable
from workers.scheduler.tier import TierEntry


@dataclass(slots=True, eq=False)
class PrefixLoad:
    """A load under way, of the blocks that `table` holds or will hold, up to `num_blocks`; and of
    the `state` behind them into `slot`.

    - `token_ids` are those of all these blocks, and `proof` that of the blocks asked for so far.
    - `num_asked` leading blocks are on the card or on their way, `num_entered` are on the card.
    - `parts` are over and wait for parts before them: their number of blocks, and how many of those
      came as they were stored, by the index of their first block.
    - `is_cut`: no part follows, and what comes behind `num_entered` is of no use.
    """

    table: BlockTable
    token_ids: array[int]
    num_blocks: int
    proof: bytes
    state: TierEntry | None = None
    slot: int | None = None
    num_asked: int = 0
    num_entered: int = 0
    num_open: int = 0
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    has_asked_state: bool = False
    has_state: bool = False
    is_cut: bool = False
    is_over: bool = False

    @property
    def has_more(self) -> bool:
        """Whether a part has not begun."""
        if self.is_cut:
            return False
        wants_state = self.state is not None and not self.has_asked_state
        return self.num_asked < self.num_blocks or wants_state

    @property
    def num_to_take(self) -> int:
        """Blocks of the card that parts will still take."""
        return 0 if self.is_cut else self.num_blocks - self.num_asked
