"""Passes of a drafter that are replayed as one graph, where a step's rows lie at fixed addresses.

Owns the inputs and results that a graph reads and writes, which passes were missed, and the
replays. Must not know networks, nor how a capture is made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from kernels.attention import NO_ROW, PagedPlan
from workers.engine.drafting.drafter import Capture, Drafted, DraftStep

SIZES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Sequences of a graph."""

_MOST_GRAPHS: Final = 64
"""Each takes some MiB of the driver's memory; depths and batches that come often are soon there."""


class Blocks(NamedTuple):
    """What is drafted behind: `anchors` int64 [S] at `positions` int32 [S], or `NO_ROW` for none,
    with `table_rows` int32 [S].
    """

    anchors: Tensor
    positions: Tensor
    table_rows: Tensor


class _Size(NamedTuple):
    """What a graph is captured for: rows at these addresses, so many sequences and drafts."""

    taps: int
    positions: int
    num_rows: int
    num_seqs: int
    depth: int


Pass: TypeAlias = Callable[[Tensor, PagedPlan, Blocks, int], Drafted]
"""Takes in taps and rows, and drafts behind `Blocks` so many tokens, perhaps none."""


@final
class CapturedDrafts:
    """The captured passes of one drafter, up to `max_depth` drafts deep."""

    def __init__(self, run: Pass, max_depth: int, device: torch.device) -> None:
        most = SIZES[-1]
        self._run = run
        self._held = Blocks(
            torch.zeros(most, dtype=torch.int64, device=device),
            torch.full((most,), NO_ROW, dtype=torch.int32, device=device),
            torch.zeros(most, dtype=torch.int32, device=device),
        )
        self._ids = torch.zeros((most, max_depth), dtype=torch.int64, device=device)
        self._confidence = torch.zeros((most, max_depth), dtype=torch.float32, device=device)
        self._replays: dict[_Size, Callable[[], Tensor]] = {}
        self._missed: dict[_Size, tuple[Tensor, PagedPlan]] = {}

    @property
    def has_pending(self) -> bool:
        """Whether a pass was missed."""
        return bool(self._missed)

    def run(self, step: DraftStep, blocks: Blocks) -> Drafted | None:
        """The drafts of a pass over rows in place, None if the step's are not. One that is not
        captured is missed, and launched as it would be captured, so that no others are compiled.
        """
        size = _size_of(step)
        if size is None or step.taps is None or not isinstance(step.plan, PagedPlan):
            return None
        replay = self._replays.get(size)
        if replay is None and len(self._replays) + len(self._missed) < _MOST_GRAPHS:
            self._missed[size] = step.taps, step.plan
        count, depth = len(step.seqs), step.depth
        if depth:
            self._fill(size.num_seqs, blocks, step.plan)
        if replay is None:
            self._pass(size, step.taps, step.plan)
        else:
            replay()
        return Drafted(self._ids[:count, :depth], self._confidence[:count, :depth])

    def prepare(self, capture: Capture) -> bool:
        """Capture one pass that was missed; False if there is none. Its inputs are lost."""
        if not self._missed:
            return False
        size, (taps, plan) = self._missed.popitem()
        # Neither may the rows that lie there be taken in again, nor blocks be written.
        plan.positions.fill_(NO_ROW)
        self._fill(size.num_seqs, None, plan)
        self._replays[size] = capture(lambda: self._pass(size, taps, plan))
        return True

    def _pass(self, size: _Size, taps: Tensor, plan: PagedPlan) -> Tensor:
        held = Blocks(*[part[: size.num_seqs] for part in self._held])
        drafted = self._run(taps, plan, held, size.depth)
        target = self._ids[: size.num_seqs, : size.depth]
        target.copy_(drafted.ids)
        if drafted.confidence is not None:
            self._confidence[: size.num_seqs, : size.depth].copy_(drafted.confidence)
        return self._ids

    def _fill(self, num_seqs: int, blocks: Blocks | None, plan: PagedPlan) -> None:
        """The inputs of so many sequences: those of `blocks`, then none."""
        count = 0 if blocks is None else blocks.anchors.shape[0]
        if count < num_seqs:
            anchors, positions, table_rows = [part[count:num_seqs] for part in self._held]
            anchors.zero_()
            positions.fill_(NO_ROW)
            table_rows.fill_(plan.block_tables.shape[0] - 1)  # the dummy's
        if blocks is not None:
            for held, given in zip(self._held, blocks, strict=True):
                held[:count].copy_(given)


def _size_of(step: DraftStep) -> _Size | None:
    """What serves the step; None where its rows lie anywhere, or there are too many sequences."""
    count = len(step.seqs)
    if not step.in_place or step.taps is None or count > SIZES[-1]:
        return None
    num_seqs = SIZES[bisect_left(SIZES, count)] if step.depth else 1
    taps, positions = step.taps.data_ptr(), step.plan.positions.data_ptr()
    return _Size(taps, positions, step.taps.shape[0], num_seqs, step.depth)
