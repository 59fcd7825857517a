"""Which decode graphs exist, which serves a step, and which is captured next.

Owns the sizes and their order. Must not know CUDA: what is captured is told.
"""

from __future__ import annotations

from typing import Final, final

from workers.engine.draws import Kind

_SIZES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 208, 256)
"""Beyond them every 64: what a padded row costs falls with the size of the batch. 208 and 256 rows
because the library cuts them well: on an H200 the four products of a layer of the 8B shape take 152
us at 192 rows, 147 at 208, 165 at 224 and 154 at 256.
"""

_FIRST: Final = (1, 8, 64, 16, 4, 32, 2, 128)
"""After the largest, which serves every batch, those that bring most."""

Graph = tuple[int, Kind]


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """The rows of the captured graphs, rising; the last serves `max_rows`."""
    sizes = [size for size in _SIZES if size < max_rows]
    sizes += range(_SIZES[-1] + 64, max_rows, 64)
    return (*sizes, max_rows)


@final
class CaptureOrder:
    """Steps of up to `max_rows` rows. A graph that was missed is wished, and wishes go first."""

    def __init__(self, max_rows: int) -> None:
        self.sizes = graph_sizes(max_rows)
        self._captured: set[Graph] = set()
        self._wished: dict[Graph, None] = {}
        first = [size for size in (max_rows, *_FIRST) if size in self.sizes]
        self._order = [(size, Kind.PLAIN) for size in dict.fromkeys((*first, *self.sizes))]

    @property
    def is_wishing(self) -> bool:
        """Whether a step has missed a graph."""
        return bool(self._wished)

    def serving(self, num_rows: int, kind: Kind) -> int | None:
        """The smallest captured size for `num_rows`, or None; a better one is wished."""
        fitting = [size for size in self.sizes if size >= num_rows]
        if (fitting[0], kind) not in self._captured:
            self._wished[fitting[0], kind] = None
        return next((size for size in fitting if (size, kind) in self._captured), None)

    def captured(self, graph: Graph) -> None:
        """It exists now."""
        self._captured.add(graph)
        self._wished.pop(graph, None)

    def next(self, *, wished_only: bool) -> Graph | None:
        """What to capture now: the oldest wish, else what a later step may need."""
        rest = [] if wished_only else self._order
        missing = (graph for graph in (*self._wished, *rest) if graph not in self._captured)
        return next(missing, None)
