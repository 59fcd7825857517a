"""Passes of a drafter that are replayed as one graph, for steps whose rows have fixed addresses.

Owns the inputs and results that a graph reads and writes, the passes that were missed, and the
replays. Must not know networks, nor how a capture is made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from kernels.attention import NO_ROW, PagedPlan
from workers.engine.drafting.drafter import Capture, Drafted, DraftStep

SIZES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""The numbers of sequences for which there are graphs."""

_MOST_GRAPHS: Final = 64
"""The most graphs that are captured: each takes some MiB of the driver's memory. Frequent depths
and batches are among the first.
"""


class Taken(NamedTuple):
    """The rows of a step, at fixed addresses: `kept` [T, n] (see `DraftStep.kept`), the tokens
    behind them int64 [T] if the drafter reads them, and their attention.
    """

    kept: Tensor
    next_ids: Tensor
    plan: PagedPlan


class Blocks(NamedTuple):
    """The S anchors to draft behind: `anchors` int64 [S] at `positions` int32 [S] (`NO_ROW` for
    padding), with `table_rows` int32 [S]. `rows` int64 [S] are the step's rows that gave them.
    """

    anchors: Tensor
    positions: Tensor
    table_rows: Tensor
    rows: Tensor


class _Size(NamedTuple):
    """What a graph is captured for: the addresses and the number of rows, the numbers of sequences
    and of drafts.
    """

    kept: int
    positions: int
    num_rows: int
    num_seqs: int
    depth: int


Pass: TypeAlias = Callable[[Taken, Blocks, int], Drafted]
"""Takes in rows, and makes the given number of drafts, possibly 0, behind each anchor of `Blocks`.
"""


@final
class CapturedDrafts:
    """The captured passes of one drafter, of up to `max_depth` drafts. `reads_next`: the drafter
    reads the tokens behind the rows.
    """

    def __init__(
        self, run: Pass, max_depth: int, device: torch.device, *, reads_next: bool = False
    ) -> None:
        self._reads_next = reads_next
        most = SIZES[-1]
        self._run = run
        self._held = Blocks(
            torch.zeros(most, dtype=torch.int64, device=device),
            torch.full((most,), NO_ROW, dtype=torch.int32, device=device),
            torch.zeros(most, dtype=torch.int32, device=device),
            torch.zeros(most, dtype=torch.int64, device=device),
        )
        self._ids = torch.zeros((most, max_depth), dtype=torch.int64, device=device)
        self._confidence = torch.zeros((most, max_depth), dtype=torch.float32, device=device)
        self._replays: dict[_Size, Callable[[], Tensor]] = {}
        self._taken: dict[_Size, Taken] = {}
        self._missed: list[_Size] = []

    @property
    def has_pending(self) -> bool:
        """Whether a pass was missed."""
        return bool(self._missed)

    def run(self, step: DraftStep, blocks: Blocks) -> Drafted | None:
        """Run a pass over rows in place; None if the step's rows are not in place. A pass that is
        not captured is recorded as missed. Then a captured one for more sequences is replayed, or
        else the pass is launched in the shape in which it would be captured, so that no kernels of
        another shape are compiled.
        """
        size, kept = _size_of(step), step.kept
        if size is None or kept is None or not isinstance(step.plan, PagedPlan):
            return None
        replay = self._replays.get(size)
        if replay is None and size not in self._taken and len(self._taken) < _MOST_GRAPHS:
            self._missed.append(size)
        taken = Taken(kept, self._in_place(size, step.next_ids), step.plan)
        if replay is not None or size in self._missed:
            self._taken[size] = taken
        if replay is None and (larger := self._larger(size)) is not None:
            size, replay = larger, self._replays[larger]
            taken = Taken(kept, self._in_place(size, step.next_ids), step.plan)
            self._taken[size] = taken
        count, depth = len(step.seqs), step.depth
        if depth:
            self._fill(size.num_seqs, blocks, step.plan)
        if replay is None:
            self._pass(size, taken)
        else:
            replay()
        return Drafted(self._ids[:count, :depth], self._confidence[:count, :depth])

    def prepare(self, capture: Capture) -> bool:
        """Capture one pass that was missed; False if there is none. Overwrites its inputs."""
        if not self._missed:
            return False
        size = self._missed.pop()
        kept, next_ids, plan = self._taken[size]
        # The capture runs the pass: it must not take in the old rows again nor write to blocks.
        plan.positions.fill_(NO_ROW)
        plan.table_rows.fill_(_dummy_row(plan))
        self._taken[size] = Taken(kept, next_ids, replace(plan, prefills=()))
        self._fill(size.num_seqs, None, plan)
        # A closure over `_taken`: on a CPU, where the pass is run again, segments change by step.
        self._replays[size] = capture(lambda: self._pass(size, self._taken[size]))
        return True

    def _larger(self, size: _Size) -> _Size | None:
        """The smallest captured pass over these rows that drafts as deep, of more sequences."""
        most = SIZES[-1] if size.depth else 0
        sizes = [size._replace(num_seqs=other) for other in SIZES if size.num_seqs < other <= most]
        return next((other for other in sizes if other in self._replays), None)

    def _in_place(self, size: _Size, next_ids: Tensor) -> Tensor:
        """The tokens behind the rows at the address where the graph reads them."""
        if not self._reads_next:
            return next_ids
        known = self._taken.get(size)
        held = torch.empty_like(next_ids) if known is None else known.next_ids
        return held.copy_(next_ids)

    def _pass(self, size: _Size, taken: Taken) -> Tensor:
        held = Blocks(*[part[: size.num_seqs] for part in self._held])
        drafted = self._run(taken, held, size.depth)
        target = self._ids[: size.num_seqs, : size.depth]
        target.copy_(drafted.ids)
        if drafted.confidence is not None:
            self._confidence[: size.num_seqs, : size.depth].copy_(drafted.confidence)
        return self._ids

    def _fill(self, num_seqs: int, blocks: Blocks | None, plan: PagedPlan) -> None:
        """Fill the inputs of `num_seqs` sequences: the sequences of `blocks`, then padding."""
        count = 0 if blocks is None else blocks.anchors.shape[0]
        if count < num_seqs:
            anchors, positions, table_rows, rows = [part[count:num_seqs] for part in self._held]
            anchors.zero_()
            positions.fill_(NO_ROW)
            table_rows.fill_(_dummy_row(plan))
            rows.zero_()
        if blocks is not None:
            for held, given in zip(self._held, blocks, strict=True):
                held[:count].copy_(given)


def _dummy_row(plan: PagedPlan) -> int:
    return plan.block_tables.shape[0] - 1


def _size_of(step: DraftStep) -> _Size | None:
    """The size that serves the step; None if its rows are not in place or it has too many
    sequences.
    """
    count = len(step.seqs)
    if not step.in_place or step.kept is None or count > SIZES[-1]:
        return None
    num_seqs = SIZES[bisect_left(SIZES, count)] if step.depth else 1
    kept, positions = step.kept.data_ptr(), step.plan.positions.data_ptr()
    return _Size(kept, positions, step.kept.shape[0], num_seqs, step.depth)
