"""The host tier of one engine: its region, the words of its pages, and the copies.

Owns how these fit together, and the identity of a layout. Must not know the configuration, nor what
is stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple, final

import msgspec
import torch
from torch import Tensor

from workers.engine.models.kv_cache import KvCache
from workers.engine.models.state_slots import StateSlots
from workers.engine.step.states import States
from workers.engine.tier.card_copies import CardCopies, staging_rows
from workers.engine.tier.copies import HostCopies, PageCopies, Swapper
from workers.engine.tier.page_words import PageWords
from workers.engine.tier.region import HostRegion
from workers.scheduler.tier import HostTier, Index, TierLayout, TierPool, TierRoom

_ON_HOST: Final = 16
"""Pages of one transfer without a card."""


class Memories(NamedTuple):
    """What the tier copies: keys and values of the target and, if it has a drafter that keeps any,
    of the drafter; and the states of a network with recurrent layers.
    """

    caches: tuple[KvCache, ...]
    kept: States

    @property
    def words(self) -> PageWords:
        """The words of their pages."""
        return PageWords(self.caches, self.kept.prefixes, self.kept.running)

    def identity(self, model: bytes) -> bytes:
        """A hash of what a page means: the `model`, and the shapes and dtypes of these memories."""
        shapes = [_shape(memory) for cache in self.caches for memory in cache.memories]
        if self.kept.running is not None:
            shapes += _shapes(self.kept.running)
        return hashlib.sha256(model + msgspec.json.encode(shapes)).digest()


@final
class EngineTier:
    """The tier over `memories` in a region of `layout` behind the descriptor `fd` (None: one of the
    engine's own, which ends with it). `swaps`: preempted sequences go there too. Raises `OSError`.
    """

    def __init__(
        self,
        memories: Memories,
        layout: TierLayout,
        fd: int | None,
        device: torch.device,
    ) -> None:
        words, is_card = memories.words, device.type == "cuda"
        self.swaps = False
        self.layout = layout
        self.region = HostRegion(fd, layout, device if is_card else None)
        self.swapper = Swapper(self.region, words)
        self.copies: PageCopies = (
            CardCopies(self.region, words, device) if is_card else HostCopies(self.region, words)
        )
        rows = staging_rows(words.page_bytes) if is_card else _ON_HOST
        self.room = TierRoom(layout.num_pages, words.state_pages, rows, layout.page_bytes)
        self._index = Index(self.region.index, layout)
        # Behind a restart the first requests want these pages, so they open beside the first steps
        # and the captures of graphs. Fresh pages cost more, and no request waits for them.
        if kept := [page for page, _ in self._index.records()]:
            self.region.open(kept)

    def __repr__(self) -> str:
        return f"<EngineTier {self.region!r}>"

    def host_tier(self, now: float) -> HostTier:
        """The books of the tier, with what the region holds already; its pages open from now on, if
        they do not yet. Call it once. `now` is in seconds of the scheduler's clock.
        """
        pool = TierPool(self.layout.num_pages, index=self._index)
        tier = HostTier(self.room, pool)
        tier.num_recovered = pool.recover(now)
        held = [page for name in pool.names if (one := pool.get(name)) for page in one.pages]
        self.region.open(held)
        pool.expect(held)
        for pages in self.copies.take_opened():
            tier.open(pages)
        return tier

    def close(self) -> None:
        """Let go of the region."""
        self.copies.close()


def _shape(memory: Tensor) -> tuple[str, list[int]]:
    layers, sides, _, *block = memory.shape
    return str(memory.dtype), [layers, sides, *block]


def _shapes(slots: StateSlots) -> Sequence[tuple[str, list[int]]]:
    return [(str(part.dtype), list(part.shape[1:])) for part in (slots.matrices, slots.tails)]
