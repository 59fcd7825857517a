"""Decode steps as CUDA graphs: from the tokens that the card holds to those it samples.

Owns the captured graphs, the tensors that they read and write, and when one is captured. Must not
know sequences or plans. A graph serves every step of up to its number of rows; rows that are not
used are dummies.
"""

from __future__ import annotations

from typing import Final, final

import torch
from torch import Tensor

from kernels.attention import PagedPlan
from kernels.choose import uses_triton
from kernels.embed_rows import embed_rows
from kernels.sample import pick
from workers.engine.draws import DrawTable, Kind
from workers.engine.kv_cache import KvCache
from workers.engine.models.qwen3 import Qwen3
from workers.engine.tables import SequenceTables

_SIZES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Beyond them every 64: what a padded row costs falls with the size of the batch."""


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """The rows of the captured graphs, rising; the last serves `max_rows`."""
    sizes = [size for size in _SIZES if size < max_rows]
    sizes += range(_SIZES[-1] + 64, max_rows, 64)
    return (*sizes, max_rows)


@final
class DecodeGraphs:
    """`rows` int32 [2, max_rows] are the positions and the table rows of the step's rows."""

    def __init__(
        self, model: Qwen3, cache: KvCache, tables: SequenceTables, draws: DrawTable, max_rows: int
    ) -> None:
        self.sizes = graph_sizes(max_rows)
        self.rows = torch.zeros((2, max_rows), dtype=torch.int32, device=model.device)
        self._model = model
        self._cache = cache
        self._tables = tables
        self._draws = draws
        self._graphs: dict[tuple[int, Kind], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        # The reference implementations read back from the device, which no graph can hold.
        self._captures = uses_triton(self.rows)
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None

    @property
    def num_captured(self) -> int:
        """Graphs that exist."""
        return len(self._graphs)

    def size_for(self, num_rows: int) -> int:
        """The smallest size that serves `num_rows`."""
        return next(size for size in self.sizes if size >= num_rows)

    def ensure(self, size: int, kind: Kind) -> None:
        """Capture the graph if it is missing. Call it before the step's rows are sent: a capture
        runs on dummies.
        """
        if not self._captures or (size, kind) in self._graphs:
            return
        self.rows[0].zero_()
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
        self._graphs[size, kind] = (graph, result)

    def run(self, size: int, kind: Kind) -> Tensor:
        """The sampled ids int64 [size], or for `Kind.GENERAL` the logits [size, vocab]."""
        if not self._captures:
            return self._step(size, kind)
        graph, result = self._graphs[size, kind]
        graph.replay()
        return result

    def _step(self, size: int, kind: Kind) -> Tensor:
        positions, table_rows = self.rows[:, :size].unbind()
        plan = PagedPlan(positions, table_rows, self._tables.block_tables, size, ())
        hidden = embed_rows(table_rows, self._tables.last_token, self._model.weights.embedding)
        logits = self._model.logits(self._model.forward(hidden, plan, self._cache))
        if kind is Kind.GENERAL:
            return logits
        draws = self._draws.rows(size, filtered=kind is Kind.FILTERED)
        return pick(logits, draws, positions + 1, self._tables.last_token, table_rows)
