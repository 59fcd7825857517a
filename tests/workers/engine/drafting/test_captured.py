"""Captured draft passes: what a step that missed its own takes instead."""

import torch

from kernels.attention import PagedPlan
from workers.engine.drafting.captured import Blocks, CapturedDrafts, Taken
from workers.engine.drafting.drafter import Drafted, DraftStep
from workers.engine.graphs.capture import run_again

NUM_ROWS = 8
DEPTH = 2


def test_a_missed_pass_is_served_by_one_of_more_sequences() -> None:
    """A missed pass is served by one of more sequences with the same rows and depth, until it is
    captured itself.
    """
    sizes: list[int] = []

    def run(taken: Taken, blocks: Blocks, depth: int) -> Drafted:
        assert taken.kept.shape[0] == NUM_ROWS
        sizes.append(len(blocks.anchors))
        ids = blocks.anchors[:, None] * 10 + torch.arange(depth)
        return Drafted(ids, torch.full(ids.shape, 0.5))

    drafts = CapturedDrafts(run, DEPTH, torch.device("cpu"))
    kept = torch.zeros(NUM_ROWS, 1)
    numbers = torch.zeros(NUM_ROWS, dtype=torch.int32)
    plan = PagedPlan(numbers, numbers.clone(), numbers.view(2, 4).clone(), 0)

    def drafted(count: int, depth: int = DEPTH) -> list[int]:
        """The first drafts; which passes ran is in `sizes`."""
        sizes.clear()
        anchors = torch.arange(1, count + 1)
        at = torch.zeros(count, dtype=torch.int32)
        step = DraftStep(
            anchors,
            anchors,
            anchors,
            kept,
            None,
            plan,
            tuple(range(count)),
            anchors - 1,
            anchors,
            at.long(),
            depth,
            lambda *_: plan,
            in_place=True,
        )
        found = drafts.run(step, Blocks(anchors, at, at, anchors - 1))
        assert found is not None
        return [int(own[0]) for own in found.ids]

    assert drafted(6) == [10, 20, 30, 40, 50, 60]
    assert drafts.prepare(run_again)
    assert drafted(6) == [10, 20, 30, 40, 50, 60]
    assert sizes == [8]
    assert drafted(3) == [10, 20, 30]
    assert sizes == [8]  # instead of 4
    assert drafted(3, depth=1) == [10, 20, 30]
    assert sizes == [4]  # there is none of this depth
    assert drafts.has_pending
    while drafts.prepare(run_again):
        pass
    assert drafted(3) == [10, 20, 30]
    assert sizes == [4]
