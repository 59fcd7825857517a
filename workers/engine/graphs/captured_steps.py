"""The captured steps, replayed instead of launched kernel by kernel.

Owns the graphs, and the choice of the one that serves a step. Must not know what a step computes,
nor which graph is captured next.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import final

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
class Graphs:
    """The graphs of an engine. `capture` None: every step is launched kernel by kernel. The passes
    of a `drafter` are captured when no graph of a step is left to capture.
    """

    def __init__(
        self,
        order: CaptureOrder,
        decode: DecodeStep,
        mixed: MixedStep,
        capture: Capture | None,
        drafter: CapturesDrafts | None = None,
    ) -> None:
        self._drafter = drafter
        self._order = order
        self._decode = decode
        self._mixed = mixed
        self._capture = capture
        self._replays: dict[Graph, Replay] = {}
        self._is_full = False

    @property
    def counts(self) -> tuple[int, int]:
        """How many graphs are captured, and how many are wanted."""
        return (0, 0) if self._capture is None else (len(self._replays), self._order.num_wanted)

    @property
    def has_pending_captures(self) -> bool:
        """Whether a step has missed a graph that can still be captured."""
        if self._capture is None or self._is_full:
            return False
        drafter = self._drafter
        missed = drafter is not None and drafter.has_pending_captures
        return missed or self._order.has_pending_captures

    def prepare(self, *, pending_only: bool) -> bool:
        """Capture one more graph; False if there was none to capture. Overwrites the inputs of the
        last step.
        """
        if self._capture is None or self._is_full:
            return False
        graph = self._order.next(pending_only=pending_only)
        try:
            if graph is None:
                return self._drafter is not None and self._drafter.prepare(self._capture)
            self._clear(graph)
            self._replays[graph] = self._capture(partial(self._step, graph))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            print(f"no memory for more graphs: {shortage(error)}", file=sys.stderr)
            self._is_full = True
            return False
        self._order.captured(graph)
        return True

    def for_decodes(self, num_rows: int, kind: DrawKind, *, shares: bool = False) -> Decode:
        """The graph that serves `num_rows` decodes. If none that `shares` is captured it is one
        that does not, which is faster than launches; if none at all is captured, the result names
        the step to launch kernel by kernel.
        """
        if self._capture is None:
            return Decode(num_rows, kind, shares)
        found = self._order.decode(num_rows, kind, shares=True) if shares else None
        return found or self._order.decode(num_rows, kind) or Decode(num_rows, kind, shares)

    def for_mixed(self, need: GraphBucket) -> GraphBucket | None:
        """The graph that will serve such a step, if one can."""
        return None if self._capture is None else self._order.mixed(need)

    def holds(self, graph: Graph) -> bool:
        """Whether it is captured."""
        return graph in self._replays

    def run(self, graph: Graph) -> Tensor:
        """Run the step of this size on its inputs; replays its graph if it is captured."""
        replay = self._replays.get(graph)
        return self._step(graph) if replay is None else replay()

    def _step(self, graph: Graph) -> Tensor:
        return self._mixed.run(graph) if isinstance(graph, GraphBucket) else self._decode.run(graph)

    def _clear(self, graph: Graph) -> None:
        if isinstance(graph, GraphBucket):
            self._mixed.clear(graph)
        else:
            self._decode.clear(graph)
