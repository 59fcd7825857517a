"""The sizes of the graphs for mixed steps: a few rooms, of which the smallest that holds a step
serves it.

Owns which rooms there are, and what a step needs. Must not know CUDA, nor what is captured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from workers.core.plan import Chunk

_SIZES: Final = (
    (0, 32, 1),
    (16, 48, 16),
    (16, 112, 16),
    (64, 64, 16),
    (16, 240, 16),
    (16, 368, 16),
    (64, 192, 16),
    (192, 64, 16),
    (16, 496, 16),
    (256, 256, 16),
    (16, 1008, 16),
)
"""Rows of decodes and of spans, and spans, in the order of capture: the next turn of an agent alone
on the card, who waits for nothing else, then one beside a few others, which is met most."""

_LAUNCHED_WEIGHTS: Final = 7.5e10
"""Rows times weights of a layer that a card multiplies while the host launches the layer: 0.25 ms
for nine launches (7.8 to 9.9 ms for 36 layers on hosts of an H200, 12 to 20 where others use the
host too), in which it does 600 TFLOP/s. A room beyond it could cost a step more than it saves, if
most of it is padding."""


class Room(NamedTuple):
    """What a graph holds, or a step needs: rows that are decodes, rows of spans, and spans."""

    num_decodes: int
    span_rows: int
    num_spans: int

    @property
    def num_rows(self) -> int:
        """Rows of the forward pass."""
        return self.num_decodes + self.span_rows

    @property
    def num_sampled(self) -> int:
        """Rows whose logits are computed: one of each sequence."""
        return self.num_decodes + self.num_spans

    def holds(self, need: Room) -> bool:
        """Whether such a step fits."""
        return all(has >= wanted for has, wanted in zip(self, need, strict=True))


def rooms(max_rows: int, layer_weights: int) -> tuple[Room, ...]:
    """The rooms for steps of up to `max_rows` sequences of a model with such layers, in the order
    in which they are wanted.
    """
    found: list[Room] = []
    for num_decodes, span_rows, num_spans in _SIZES:
        room = Room(min(num_decodes, max_rows), span_rows, min(num_spans, max_rows))
        is_worth_it = room.num_rows * layer_weights <= _LAUNCHED_WEIGHTS
        if is_worth_it and not any(other.holds(room) for other in found):
            found.append(room)
    return tuple(found)


def need_of(chunks: Iterable[Chunk]) -> Room:
    """The smallest room for these chunks."""
    spans = [chunk.length for chunk in chunks if chunk.length > 1]
    num_decodes = sum([chunk.length == 1 for chunk in chunks])
    return Room(num_decodes, sum(spans), len(spans))
