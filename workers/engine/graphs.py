"""Decode steps as CUDA graphs: from the tokens that the card holds to those it samples.

Owns the captured graphs and the tensors that they read and write. Must not know sequences or plans,
nor which graph comes next. A graph serves every step of up to its number of rows; rows that are not
used are none. A step that no graph serves yet is launched kernel by kernel.
"""

from __future__ import annotations

import sys
from typing import final

import torch
from torch import Tensor

from kernels.attention import NO_ROW, PagedPlan
from kernels.choose import uses_triton
from kernels.embed_rows import embed_rows
from kernels.sample import pick
from workers.engine.capture_order import CaptureOrder
from workers.engine.draws import DrawTable, Kind
from workers.engine.kv_cache import KvCache
from workers.engine.models.qwen3 import Qwen3
from workers.engine.tables import SequenceTables


@final
class DecodeGraphs:
    """`rows` int32 [2, max_rows] are the positions and the table rows of the step's rows."""

    def __init__(
        self, model: Qwen3, cache: KvCache, tables: SequenceTables, draws: DrawTable, max_rows: int
    ) -> None:
        self._order = CaptureOrder(max_rows)
        self.rows = torch.zeros((2, max_rows), dtype=torch.int32, device=model.device)
        self._model = model
        self._cache = cache
        self._tables = tables
        self._draws = draws
        self._graphs: dict[tuple[int, Kind], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._is_full = False
        # The reference implementations read back from the device, which no graph can hold.
        self._captures = uses_triton(self.rows)
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None

    @property
    def is_wishing(self) -> bool:
        """Whether a step has missed a graph that can still be captured."""
        return not self._is_full and self._captures and self._order.is_wishing

    def prepare(self, *, wished_only: bool) -> bool:
        """Capture one more graph; False if there was none to capture."""
        graph = self._order.next(wished_only=wished_only) if self._captures else None
        if graph is None or self._is_full:
            return False
        try:
            self._graphs[graph] = self._capture(*graph)
        except torch.OutOfMemoryError as error:
            print(f"no memory for more decode graphs: {error}", file=sys.stderr)
            self._is_full = True
            return False
        self._order.captured(graph)
        return True

    def size_for(self, num_rows: int, kind: Kind) -> int:
        """The rows of the graph that will serve so many, or as many rows if none can."""
        return (self._order.serving(num_rows, kind) if self._captures else None) or num_rows

    def run(self, size: int, kind: Kind) -> Tensor:
        """The sampled ids int64 [size], or for `Kind.GENERAL` the logits [size, vocab]."""
        captured = self._graphs.get((size, kind))
        if captured is None:
            return self._step(size, kind)
        graph, result = captured
        graph.replay()
        return result

    def _capture(self, size: int, kind: Kind) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Without rows: those of the last step are lost."""
        self.rows[0].fill_(NO_ROW)
        self.rows[1].fill_(self._tables.dummy_row)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        # The first run compiles kernels and takes workspaces: neither may happen in a capture.
        with torch.cuda.stream(stream):
            self._step(size, kind)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            result = self._step(size, kind)
        return graph, result

    def _step(self, size: int, kind: Kind) -> Tensor:
        positions, table_rows = self.rows[:, :size].unbind()
        plan = PagedPlan(positions, table_rows, self._tables.block_tables, size)
        plan = self._model.prepared(plan, self._cache)
        hidden = embed_rows(table_rows, self._tables.last_token, self._model.weights.embedding)
        logits = self._model.logits(self._model.forward(hidden, plan, self._cache))
        if kind is Kind.GENERAL:
            return logits
        draws = self._draws.rows(size, filtered=kind is Kind.FILTERED)
        return pick(logits, draws, positions + 1, self._tables.last_token, table_rows)
