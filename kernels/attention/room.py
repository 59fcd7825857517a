"""Work of spans at fixed sizes, for a captured step that meets other spans at every replay.

Owns how many items and merges any spans of a room can need, and their place in the step's input.
Must not launch anything.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from kernels.attention.choose import PrefillConfig
from kernels.attention.plan import PrefillSpan, PrefillWork
from kernels.attention.work import prefill_work

_ITEM_WORDS = 8
_MERGE_WORDS = 4

WordArray = np.ndarray[tuple[int], np.dtype[np.int32]]


class SpanRoom(NamedTuple):
    """Up to `num_spans` spans of `num_rows` rows in all, whatever their pasts.

    `num_items` and `num_partials` bound what `prefill_work` makes of them.
    """

    num_rows: int
    num_spans: int
    num_heads: int
    num_kv: int
    config: PrefillConfig
    num_items: int
    num_partials: int

    @property
    def num_words(self) -> int:
        """int32 numbers that hold the items, then the merges: one for each row at most."""
        return _ITEM_WORDS * self.num_items + _MERGE_WORDS * self.num_rows

    def lay_out(self, spans: Sequence[PrefillSpan], num_decodes: int, words: WordArray) -> None:
        """Write the work of `spans`, which lie behind `num_decodes` decodes, into zeros `words`.

        Raises `ValueError` for spans that the room does not hold.
        """
        num_rows = sum([span.num_rows for span in spans])
        if len(spans) > self.num_spans or num_rows > self.num_rows:
            raise ValueError(f"{len(spans)} spans of {num_rows} rows do not fit into {self}")
        work = prefill_work(
            spans, num_decodes, self.num_heads, self.num_kv, self.config, library=False
        )
        items, merges = work.items.ravel(), work.merges.ravel()
        words[: items.size] = items
        first = _ITEM_WORDS * self.num_items
        words[first : first + merges.size] = merges

    def work(self, words: Tensor) -> PrefillWork:
        """Views of the words on the card, which must lie at a multiple of 16 bytes."""
        first = _ITEM_WORDS * self.num_items
        items, merges = words[:first].view(-1, _ITEM_WORDS), words[first:].view(-1, _MERGE_WORDS)
        return PrefillWork(items, merges, self.num_partials, (), self.config)


def span_room(
    num_rows: int, num_spans: int, num_heads: int, num_kv: int, config: PrefillConfig
) -> SpanRoom:
    """The room with its bounds. Raises `ValueError` where the library would take a span.

    A tile has up to t tokens, so n spans of R rows have at most (R + n (t - 1)) // t tiles. Pieces
    are at least 1 / X of all tiles' keys, X = waves x target / key heads, and a tile of x pieces'
    keys is cut into fewer than x + 1: no more than X items beside one per tile, no more than t X
    slots beside one per row.
    """
    if num_rows >= config.library:
        raise ValueError(
            f"{num_rows} rows of spans: from {config.library} on the library takes them"
        )
    tokens = config.rows // (num_heads // num_kv)
    num_tiles = (num_rows + num_spans * (tokens - 1)) // tokens
    num_cuts = config.waves * config.target // num_kv
    return SpanRoom(
        num_rows,
        num_spans,
        num_heads,
        num_kv,
        config,
        num_items=num_cuts + num_tiles,
        num_partials=config.cut_slots(num_heads, num_kv) + num_rows,
    )
