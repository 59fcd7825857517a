"""Whether layers with a window keep nothing else, and how many blocks they get then.

Owns that choice and that division of memory, over plain numbers. Must not know the measurement
(`peak_probe.py`), nor which sequence holds a block (`workers.scheduler.windows`).
"""

from typing import Final, NamedTuple

from workers.scheduler import WindowSizes, most_kept

USUAL_CONTEXT: Final = 4096
"""Tokens. Memory is divided so that sequences of this length use up both kinds of blocks at the
same time. With shorter sequences the windows' blocks run out first, with longer ones the other
blocks. Prefixes that agents come back to are longer, but some of them have only the other
blocks left.
"""

LEAST_SAVED: Final = 16 * 2**20
"""Bytes that a sequence of the whole context must save. With less, the second table, and
prefixes that can be continued at few places only, would cost more than they save.
"""

LEAST_WINDOWS: Final = 2
"""One of a running sequence, and one of a prefix."""

_SLOTS: Final = 4
"""Snapshots for each whole window. The snapshots of one prompt share most of their blocks."""


class WindowDemand(NamedTuple):
    """The bytes of one token in layers that keep only their `window` (tokens), and in the others. A
    step computes up to `token_budget` tokens. `wanted_tokens` tokens of the other layers must fit,
    as the configuration says; 0: it does not. At most `most` whole windows are of use.
    """

    token_bytes: int
    other_bytes: int
    window: int
    block_size: int
    token_budget: int
    wanted_tokens: int
    most: int

    @property
    def most_kept(self) -> int:
        """The most tokens that a sequence keeps between two steps."""
        return most_kept(self.window, self.block_size) * self.block_size


class WindowMemory(NamedTuple):
    """The blocks of layers that keep only their window, the bytes that they take, for how many
    whole windows they are, and how many snapshots may be made of them.
    """

    sizes: WindowSizes
    num_bytes: int
    num_windows: int
    num_snapshots: int


def pays(token_bytes: int, window: int, context: int, block_size: int) -> bool:
    """Whether layers that take `token_bytes` a token should keep only their `window`, where
    sequences have up to `context` tokens.
    """
    kept = most_kept(window, block_size) * block_size
    return context >= 2 * kept and (context - kept) * token_bytes >= LEAST_SAVED


def choose_windows(room_bytes: int, demand: WindowDemand) -> WindowMemory:
    """Divide the room that weights and the largest step leave. There are always blocks for a step
    beside `LEAST_WINDOWS` windows, even if they do not fit; the check of the memory left for other
    keys and values reports that.
    """
    size, each = demand.block_size, demand.most_kept * demand.token_bytes
    # A chunk of each of several prompts may begin and end within a block.
    step_blocks = 2 * -(-demand.token_budget // size) + 1
    block_bytes = size * demand.token_bytes
    room = max(0, room_bytes - step_blocks * block_bytes)
    count = room // (each + USUAL_CONTEXT * demand.other_bytes)
    if demand.wanted_tokens:
        count = min(count, (room - demand.wanted_tokens * demand.other_bytes) // each)
    count = max(LEAST_WINDOWS, min(demand.most, count))
    num_blocks = count * demand.most_kept // size + step_blocks
    sizes = WindowSizes(num_blocks, demand.window)
    return WindowMemory(sizes, num_blocks * block_bytes, count, _SLOTS * count)
