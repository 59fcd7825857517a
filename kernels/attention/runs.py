"""The slots for partial results of tokens that decodes share.

Owns the slots of runs that were cut into pieces of one length, once per step, on the host. Must not
know blocks, nor which decodes share what.

The runs of a decode follow each other from token 0 on, and their pieces have consecutive numbers.
The results of a decode lie at equal distances in that order, so that one loop merges them. For that
all runs within one outermost run, the root, share a table of slots: a row for each piece, a column
for each decode.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from kernels.attention.plan import SharedRun

IntArray: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int32]]

SHARED_WORDS: Final = 4
"""Words of `PrefillWork.shared` for each decode."""

MAX_LEVELS: Final = 4
"""The most runs that one decode is in: merging more costs more than they save."""


class _Root:
    """The table of an outermost run and those in it."""

    def __init__(self, run: SharedRun) -> None:
        self.run = run
        self.first_slot = 0
        self.num_pieces = 0


class RunSlots(NamedTuple):
    """For every run the slot of its first piece's first row (`first_slots`), and the number of
    slots from piece to piece (`steps`); `shared` as in `PrefillWork`; the number of slots.
    """

    first_slots: list[int]
    steps: list[int]
    shared: IntArray
    num_slots: int


def num_tiles(runs: Sequence[SharedRun], tokens: int) -> int:
    """How many items of up to `tokens` rows uncut runs have."""
    return sum([-(-run.num_rows // tokens) for run in runs])


def run_slots(runs: Sequence[SharedRun], share: int, num_decodes: int, first_slot: int) -> RunSlots:
    """The slots from `first_slot` on, of pieces of `share` tokens."""
    roots: list[_Root] = []
    open_runs: list[tuple[SharedRun, int]] = []
    before: list[int] = []
    of_run: list[_Root] = []
    for run in runs:
        while open_runs and open_runs[-1][0].first_row + open_runs[-1][0].num_rows <= run.first_row:
            open_runs.pop()
        if not open_runs:
            roots.append(_Root(run))
        before.append(open_runs[-1][1] if open_runs else 0)
        end = before[-1] - (run.begin - run.end) // share  # one more piece for the remainder
        open_runs.append((run, end))
        of_run.append(roots[-1])
        roots[-1].num_pieces = max(roots[-1].num_pieces, end)
    free = first_slot
    for root in roots:
        root.first_slot = free
        free += root.num_pieces * root.run.num_rows
    shared = np.zeros((num_decodes, SHARED_WORDS), np.int32)
    first_slots, steps = [], []
    for run, pieces, root in zip(runs, before, of_run, strict=True):
        step, column = root.run.num_rows, run.first_row - root.run.first_row
        first_slots.append(root.first_slot + pieces * step + column)
        steps.append(step)
        rows = shared[run.first_row : run.first_row + run.num_rows]
        rows[:, 0] = run.end
        rows[:, 1] = root.first_slot + column + np.arange(run.num_rows)
        rows[:, 2] = step
        rows[:, 3] = pieces - (run.begin - run.end) // share
    return RunSlots(first_slots, steps, shared, free - first_slot)
