"""The captured steps, replayed instead of launched kernel by kernel.

An engine whose device captures nothing has `NoGraphs`, with the same methods. Owns the graphs, and
the choice of the one that serves a step. Must not know what a step computes, nor which graph is
captured next.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Final, final

from torch import Tensor

from workers.engine.drafting.drafter import CapturesDrafts
from workers.engine.graphs.buckets import GraphBucket
from workers.engine.graphs.capture import Capture, Replay
from workers.engine.graphs.capture_order import CaptureOrder, Decode, Graph
from workers.engine.graphs.decode_step import DecodeStep
from workers.engine.graphs.mixed_step import MixedStep
from workers.engine.memory.out_of_memory import is_out_of_memory, shortage
from workers.engine.step.draws import DrawKind


@final
class Launches:
    """The steps, kernel by kernel, as a graph holds them."""

    def __init__(self, decode: DecodeStep, mixed: MixedStep) -> None:
        self._decode = decode
        self._mixed = mixed

    def run(self, graph: Graph) -> Tensor:
        """Compute the step of this size on its inputs."""
        return self._mixed.run(graph) if isinstance(graph, GraphBucket) else self._decode.run(graph)

    def clear(self, graph: Graph) -> None:
        """Fill its inputs with no rows."""
        if isinstance(graph, GraphBucket):
            self._mixed.clear(graph)
        else:
            self._decode.clear(graph)


@final
class NoDraftGraphs:
    """`CapturesDrafts` of a drafter without captured passes, or of none."""

    has_pending_captures: Final = False

    def prepare(self, capture: Capture) -> bool:
        """False: there is nothing to capture."""
        del capture
        return False


@final
class NoGraphs:
    """`Graphs` of a device that captures nothing: every step is launched kernel by kernel."""

    counts: Final = (0, 0)
    has_pending_captures: Final = False

    def __init__(self, launches: Launches) -> None:
        self._launches = launches

    def prepare(self, *, pending_only: bool) -> bool:
        """False: there is nothing to capture."""
        del pending_only
        return False

    def for_decodes(
        self, num_rows: int, kind: DrawKind, longest: int, *, shares: bool = False
    ) -> Decode:
        """The step of just this size."""
        del longest
        return Decode(num_rows, kind, shares)

    def for_mixed(self, need: GraphBucket) -> GraphBucket | None:
        """None: no bucket."""
        del need
        return None

    def holds(self, graph: Graph) -> bool:
        """False: nothing is captured."""
        del graph
        return False

    def run(self, graph: Graph) -> Tensor:
        """Launch the step of this size on its inputs."""
        return self._launches.run(graph)


@final
class Graphs:
    """The graphs of an engine. The passes of a drafter (`drafts`) are captured when no graph of a
    step is left to capture.
    """

    def __init__(
        self, order: CaptureOrder, launches: Launches, capture: Capture, drafts: CapturesDrafts
    ) -> None:
        self._drafts = drafts
        self._order = order
        self._launches = launches
        self._capture = capture
        self._replays: dict[Graph, Replay] = {}
        self._is_full = False

    @property
    def counts(self) -> tuple[int, int]:
        """How many graphs are captured, and how many are wanted."""
        return len(self._replays), self._order.num_wanted

    @property
    def has_pending_captures(self) -> bool:
        """Whether a step has missed a graph that can still be captured."""
        missed = self._drafts.has_pending_captures or self._order.has_pending_captures
        return missed and not self._is_full

    def prepare(self, *, pending_only: bool) -> bool:
        """Capture one more graph; False if there was none to capture. Overwrites the inputs of the
        last step.
        """
        if self._is_full:
            return False
        graph = self._order.next(pending_only=pending_only)
        try:
            if graph is None:
                return self._drafts.prepare(self._capture)
            self._launches.clear(graph)
            self._replays[graph] = self._capture(partial(self._launches.run, graph))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            print(f"no memory for more graphs: {shortage(error)}", file=sys.stderr)
            self._is_full = True
            return False
        self._order.captured(graph)
        return True

    def for_decodes(
        self, num_rows: int, kind: DrawKind, longest: int, *, shares: bool = False
    ) -> Decode:
        """The graph that serves `num_rows` decodes of up to `longest` cached tokens. If none that
        `shares` is captured it is one that does not, which is faster than launches; if none at all
        is captured, the result names the step to launch kernel by kernel.
        """
        found = self._order.decode(num_rows, kind, shares=True) if shares else None
        if found is None:
            found = self._order.decode(num_rows, kind, longest=longest)
        return found or Decode(num_rows, kind, shares)

    def for_mixed(self, need: GraphBucket) -> GraphBucket | None:
        """The graph that will serve such a step, if one can."""
        return self._order.mixed(need)

    def holds(self, graph: Graph) -> bool:
        """Whether it is captured."""
        return graph in self._replays

    def run(self, graph: Graph) -> Tensor:
        """Run the step of this size on its inputs; replays its graph if it is captured."""
        replay = self._replays.get(graph)
        return self._launches.run(graph) if replay is None else replay()


def graphs_of(
    order: CaptureOrder,
    decode: DecodeStep,
    mixed: MixedStep,
    capture: Capture | None,
    drafter: object,
) -> Graphs | NoGraphs:
    """The graphs of a device with this `capture` (None: it captures nothing), and of the passes of
    a `drafter` that `CapturesDrafts`.
    """
    launches = Launches(decode, mixed)
    if capture is None:
        return NoGraphs(launches)
    drafts = drafter if isinstance(drafter, CapturesDrafts) else NoDraftGraphs()
    return Graphs(order, launches, capture, drafts)
