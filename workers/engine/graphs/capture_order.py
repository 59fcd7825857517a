"""Which graphs exist, which serves a step, and which is captured next.

Owns the sizes of decode graphs and the order of captures. Must not know CUDA: `captured` reports
what exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar, final

from workers.engine.graphs.buckets import GraphBucket
from workers.engine.step.draws import Kind

_SIZES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 208, 256)
"""Beyond them every 64: what a padded row costs falls with the size of the batch. 208 and 256 rows
because the library cuts them well: on an H200 the four products of a layer of the 8B shape take 152
us at 192 rows, 147 at 208, 165 at 224 and 154 at 256.
"""

_FIRST: Final = (1, 8, 64, 16, 4, 32, 2, 128)
"""After the largest, which serves every batch, those that bring most."""


_SHARED_SIZES: Final = (4, 8, 16, 32, 48, 64, 96, 128, 160, 208, 256)
"""Of the graphs in which rows share tokens: fewer, because they come beside the others."""


class Decode(NamedTuple):
    """A graph for steps of single rows. In one that `shares` they may attend to tokens together:
    two launches more in each layer.
    """

    num_rows: int
    kind: Kind
    shares: bool = False


Graph: TypeAlias = Decode | GraphBucket

AGraph = TypeVar("AGraph", Decode, GraphBucket)


def capture_sizes(max_rows: int) -> tuple[int, ...]:
    """The rows of the captured decode graphs, in the order in which they are wanted."""
    sizes = graph_sizes(max_rows)
    first = [size for size in (max_rows, *_FIRST) if size in sizes]
    return tuple(dict.fromkeys((*first, *sizes)))


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """The rows of the captured decode graphs, rising; the last serves `max_rows`, and of no rows
    there are none.
    """
    if not max_rows:
        return ()
    sizes = [size for size in _SIZES if size < max_rows]
    sizes += range(_SIZES[-1] + 64, max_rows, 64)
    return (*sizes, max_rows)


@final
class CaptureOrder:
    """Decodes of up to `max_rows` rows, and mixed steps in `buckets`, which are captured in their
    order, after the decodes; last, if they can share tokens, the decodes that do. A graph that a
    step missed is pending, and pending graphs go first; those that hold few steps are only
    captured so.
    """

    def __init__(
        self, max_rows: int, buckets: Sequence[GraphBucket] = (), *, shares: bool = False
    ) -> None:
        self.sizes = graph_sizes(max_rows)
        self._shared_sizes = [
            size
            for size in self.sizes
            if size in _SHARED_SIZES or size > _SHARED_SIZES[-1] or size == max_rows
        ]
        self._buckets = sorted(buckets, key=lambda bucket: bucket.num_rows)
        self._captured: set[Graph] = set()
        self._pending: dict[Graph, None] = {}
        decodes = [Decode(size, Kind.PLAIN) for size in capture_sizes(max_rows)]
        sharing = [Decode(size, Kind.PLAIN, shares=True) for size in reversed(self._shared_sizes)]
        wanted = [bucket for bucket in buckets if not bucket.least_sampled]
        self._order: list[Graph] = [*decodes, *wanted, *(sharing if shares else ())]

    @property
    def num_wanted(self) -> int:
        """How many are captured without a step that missed one."""
        return len(self._order)

    @property
    def has_pending_captures(self) -> bool:
        """Whether a step has missed a graph."""
        return bool(self._pending)

    def decode(self, num_rows: int, kind: Kind, *, shares: bool = False) -> Decode | None:
        """The smallest captured graph for `num_rows`, or None; a better one becomes pending."""
        sizes = self._shared_sizes if shares else self.sizes
        return self._best(Decode(size, kind, shares) for size in sizes if size >= num_rows)

    def mixed(self, need: GraphBucket) -> GraphBucket | None:
        """The smallest captured bucket for the step, or None; a better one becomes pending."""
        return self._best(bucket for bucket in self._buckets if bucket.holds(need))

    def captured(self, graph: Graph) -> None:
        """Record that the graph exists."""
        self._captured.add(graph)
        self._pending.pop(graph, None)

    def next(self, *, pending_only: bool) -> Graph | None:
        """What to capture now: the oldest pending graph, else what a later step may need."""
        rest = [] if pending_only else self._order
        missing = (graph for graph in (*self._pending, *rest) if graph not in self._captured)
        return next(missing, None)

    def _best(self, fitting: Iterator[AGraph]) -> AGraph | None:
        """Mostly the first is captured, and the others are never made."""
        best = next(fitting, None)
        if best is None or best in self._captured:
            return best
        self._pending[best] = None
        return next((graph for graph in fitting if graph in self._captured), None)
