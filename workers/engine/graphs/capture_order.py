"""Which graphs exist, which of them serves a step, and which is captured next.

Owns the sizes of decode graphs and the order of captures. Must not know CUDA: its caller reports
graphs by `captured`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, TypeVar, final

from workers.engine.graphs.buckets import GraphBucket
from workers.engine.step.draws import DrawKind

_SIZES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 208, 256)
"""Rows of decode graphs; beyond them there is one every 64 rows. The larger the batch the coarser
the sizes, because a padded row costs less. 208 and 256 are there because the library cuts them
well: on an H200 the four products of a layer of the 8B shape take 152 us at 192 rows, 147 at 208,
165 at 224 and 154 at 256.
"""

_FIRST: Final = (1, 8, 64, 16, 4, 32, 2, 128)
"""The sizes captured first, behind the largest, which serves every batch: they save the most."""


_SHARED_SIZES: Final = (4, 8, 16, 32, 48, 64, 96, 128, 160, 208, 256)
"""Rows of the decode graphs whose rows share prefixes: fewer, because the others exist as well."""


class Decode(NamedTuple):
    """A graph for steps of single rows. If it `shares`, rows may attend to common prefixes
    together, by two more launches in each layer. It serves rows of up to `longest` cached tokens;
    0: any number.
    """

    num_rows: int
    kind: DrawKind
    shares: bool = False
    longest: int = 0


Graph: TypeAlias = Decode | GraphBucket

AGraph = TypeVar("AGraph", Decode, GraphBucket)


def capture_sizes(max_rows: int) -> tuple[int, ...]:
    """The rows of the captured decode graphs, in the order in which they are wanted."""
    sizes = graph_sizes(max_rows)
    first = [size for size in (max_rows, *_FIRST) if size in sizes]
    return tuple(dict.fromkeys((*first, *sizes)))


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """The rows of the captured decode graphs, rising; the last is `max_rows`. Empty for 0 rows."""
    if not max_rows:
        return ()
    sizes = [size for size in _SIZES if size < max_rows]
    sizes += range(_SIZES[-1] + 64, max_rows, 64)
    return (*sizes, max_rows)


@final
class CaptureOrder:
    """The order of captures: decodes of up to `max_rows` rows, then mixed steps in the order of
    `buckets`, then decodes that share prefixes (if `shares`). A graph that a step missed is
    pending; pending graphs go first. Buckets with `least_sampled` serve few steps, so they are
    captured only when a step misses them. `short` names graphs for short contexts, by rows and the
    most cached tokens, rising. They are behind that for any context; no step misses them, because
    that one serves too.
    """

    def __init__(
        self,
        max_rows: int,
        buckets: Sequence[GraphBucket] = (),
        *,
        shares: bool = False,
        short: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self.sizes = graph_sizes(max_rows)
        self._short_contexts = short
        self._shared_sizes = [
            size
            for size in self.sizes
            if size in _SHARED_SIZES or size > _SHARED_SIZES[-1] or size == max_rows
        ]
        self._buckets = sorted(buckets, key=lambda bucket: bucket.num_rows)
        self._captured: set[Graph] = set()
        self._pending: dict[Graph, None] = {}
        decodes: list[Decode] = []
        for size in capture_sizes(max_rows):
            decodes.append(Decode(size, DrawKind.PLAIN))
            decodes += self._short(decodes[-1])
        sharing = [
            Decode(size, DrawKind.PLAIN, shares=True) for size in reversed(self._shared_sizes)
        ]
        wanted = [bucket for bucket in buckets if not bucket.least_sampled]
        self._order: list[Graph] = [*decodes, *wanted, *(sharing if shares else ())]

    @property
    def num_wanted(self) -> int:
        """How many graphs are captured even if no step misses them."""
        return len(self._order)

    @property
    def has_pending_captures(self) -> bool:
        """Whether a step has missed a graph."""
        return bool(self._pending)

    def decode(
        self,
        num_rows: int,
        kind: DrawKind,
        *,
        shares: bool = False,
        longest: int | None = None,
    ) -> Decode | None:
        """The smallest captured graph for `num_rows` of up to `longest` cached tokens (None: any
        number), or None. If a smaller one would do but is not captured, it becomes pending.
        """
        sizes = self._shared_sizes if shares else self.sizes
        found = self._best(Decode(size, kind, shares) for size in sizes if size >= num_rows)
        if found is None or longest is None or found.num_rows not in self._short_contexts:
            return found
        known = self._short_contexts[found.num_rows]
        fitting = (found._replace(longest=most) for most in known if longest <= most)
        return next((short for short in fitting if short in self._captured), found)

    def mixed(self, need: GraphBucket) -> GraphBucket | None:
        """The smallest captured bucket for the step, or None. If a smaller one would do but is not
        captured, it becomes pending.
        """
        return self._best(bucket for bucket in self._buckets if bucket.holds(need))

    def captured(self, graph: Graph) -> None:
        """Record that the graph exists."""
        self._captured.add(graph)
        self._pending.pop(graph, None)
        if isinstance(graph, Decode):
            self._order += [short for short in self._short(graph) if short not in self._order]

    def _short(self, graph: Decode) -> list[Decode]:
        """The graphs of this size for short contexts, if there are some."""
        if graph.shares or graph.longest:
            return []
        known = self._short_contexts.get(graph.num_rows, ())
        return [graph._replace(longest=longest) for longest in known]

    def next(self, *, pending_only: bool) -> Graph | None:
        """What to capture now: the oldest pending graph, else what a later step may need."""
        rest = [] if pending_only else self._order
        missing = (graph for graph in (*self._pending, *rest) if graph not in self._captured)
        return next(missing, None)

    def _best(self, fitting: Iterator[AGraph]) -> AGraph | None:
        """The first captured graph of `fitting`. Usually that is the very first one, so the rest of
        the iterator is not run.
        """
        best = next(fitting, None)
        if best is None or best in self._captured:
            return best
        self._pending[best] = None
        return next((graph for graph in fitting if graph in self._captured), None)
