"""Which graph serves a step, and which is captured next."""

import pytest

from workers.engine.graphs.buckets import GraphBucket
from workers.engine.graphs.capture_order import CaptureOrder, Decode, Graph, graph_sizes
from workers.engine.step.draws import DrawKind

SMALL, WIDE, LARGE = GraphBucket(8, 24, 4), GraphBucket(8, 56, 4), GraphBucket(64, 64, 8)


@pytest.mark.parametrize("max_rows", [1, 2, 3, 64, 100, 256, 300, 1000])
def test_sizes_rise_to_the_batch(max_rows: int) -> None:
    """Every number of rows has a graph, and the last is the batch itself."""
    sizes = graph_sizes(max_rows)
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[0] == 1
    assert sizes[-1] == max_rows


def test_the_largest_serves_until_there_is_a_better_one() -> None:
    """The smallest captured graph that holds all rows serves; a missed one becomes pending."""
    order = CaptureOrder(64)
    assert order.decode(3, DrawKind.PLAIN) is None
    order.captured(Decode(64, DrawKind.PLAIN))
    assert order.decode(3, DrawKind.PLAIN) == Decode(64, DrawKind.PLAIN)
    order.captured(Decode(8, DrawKind.PLAIN))
    assert order.decode(3, DrawKind.PLAIN) == Decode(8, DrawKind.PLAIN)
    assert order.decode(9, DrawKind.PLAIN) == Decode(64, DrawKind.PLAIN)
    assert order.decode(3, DrawKind.FILTERED) is None


def test_the_smallest_bucket_that_holds_a_step_serves_it() -> None:
    """Decodes, segment rows and segments must fit; a step that no bucket holds requests nothing."""
    order = CaptureOrder(64, (LARGE, SMALL, WIDE))
    assert order.mixed(GraphBucket(1, 10, 1)) is None
    assert order.next(pending_only=True) == SMALL
    order.captured(LARGE)
    assert order.mixed(GraphBucket(1, 10, 1)) == LARGE
    order.captured(SMALL)
    assert order.next(pending_only=True) is None
    assert order.mixed(GraphBucket(8, 24, 4)) == SMALL
    assert order.mixed(GraphBucket(9, 24, 4)) == LARGE
    assert order.mixed(GraphBucket(8, 24, 5)) == LARGE
    assert order.next(pending_only=True) is None
    assert order.mixed(GraphBucket(8, 25, 4)) == LARGE
    assert order.next(pending_only=True) == WIDE
    order.captured(WIDE)
    assert order.mixed(GraphBucket(8, 65, 1)) is None
    assert not order.has_pending_captures


def test_a_graph_that_holds_few_steps_is_captured_for_one_of_them() -> None:
    """A graph that serves few steps is captured for one of them only, because its memory is lost to
    the others.
    """
    small = GraphBucket(0, 64, 8, verifies=True)
    large = GraphBucket(0, 512, 8, verifies=True, least_sampled=480)
    order = CaptureOrder(0, (small, large))
    order.captured(small)
    assert order.next(pending_only=False) is None
    assert order.mixed(GraphBucket(0, 512, 8, True, 470)) is None
    assert order.next(pending_only=False) is None
    assert order.mixed(GraphBucket(0, 512, 8, True, 480)) is None
    assert order.next(pending_only=True) == large
    order.captured(large)
    assert order.mixed(GraphBucket(0, 500, 8, True, 500)) == large


def test_pending_graphs_go_first_and_end_when_captured() -> None:
    """A busy engine captures pending graphs only, an idle one everything that greedy steps may
    need.
    """
    order = CaptureOrder(16, (WIDE, SMALL))
    assert order.next(pending_only=True) is None
    assert order.next(pending_only=False) == Decode(16, DrawKind.PLAIN)
    order.decode(3, DrawKind.FILTERED)
    assert order.next(pending_only=False) == Decode(4, DrawKind.FILTERED)
    order.captured(Decode(4, DrawKind.FILTERED))
    assert order.next(pending_only=True) is None
    captured: list[Graph] = []
    while (graph := order.next(pending_only=False)) is not None:
        captured.append(graph)
        order.captured(graph)
    assert captured[:3] == [
        Decode(16, DrawKind.PLAIN),
        Decode(1, DrawKind.PLAIN),
        Decode(8, DrawKind.PLAIN),
    ]
    assert sorted(graph.num_rows for graph in captured[:-2]) == list(order.sizes)
    assert captured[-2:] == [WIDE, SMALL]


def test_graphs_that_share_come_last_and_serve_for_no_others() -> None:
    """A step whose rows share nothing needs two launches less in each layer."""
    order = CaptureOrder(40, (SMALL,), shares=True)
    captured: list[Graph] = []
    while (graph := order.next(pending_only=False)) is not None:
        captured.append(graph)
        order.captured(graph)
    sharing = captured[captured.index(SMALL) + 1 :]
    assert sharing == [Decode(size, DrawKind.PLAIN, shares=True) for size in (40, 32, 16, 8, 4)]
    assert order.decode(7, DrawKind.PLAIN) == Decode(8, DrawKind.PLAIN)
    assert order.decode(7, DrawKind.PLAIN, shares=True) == Decode(8, DrawKind.PLAIN, shares=True)
    assert order.decode(9, DrawKind.FILTERED, shares=True) is None
    assert order.next(pending_only=True) == Decode(16, DrawKind.FILTERED, shares=True)


def test_short_contexts_have_graphs_that_no_step_misses() -> None:
    """Graphs for short contexts are captured after those for any context, which serve meanwhile,
    for each kind of draw that steps have. One row is also served by a graph of many rows.
    """
    few, some = 256, 512
    order = CaptureOrder(8, short={1: (few, some), 2: (few, some), 8: (few,)})
    general = Decode(1, DrawKind.PLAIN)
    shorter, short = (general._replace(longest=longest) for longest in (few, some))
    assert order.decode(1, DrawKind.PLAIN, longest=few) is None
    assert order.next(pending_only=True) == general
    order.captured(general)
    assert order.decode(1, DrawKind.PLAIN, longest=few) == general
    assert order.next(pending_only=True) is None
    order.captured(short)
    assert order.decode(1, DrawKind.PLAIN, longest=few) == short
    order.captured(shorter)
    assert order.decode(1, DrawKind.PLAIN, longest=few) == shorter
    assert order.decode(1, DrawKind.PLAIN, longest=few + 1) == short
    assert order.decode(1, DrawKind.PLAIN, longest=some + 1) == general
    assert order.decode(1, DrawKind.PLAIN) == general
    order.captured(Decode(8, DrawKind.PLAIN))
    assert order.decode(3, DrawKind.PLAIN, longest=1) == Decode(8, DrawKind.PLAIN)
    order.captured(Decode(2, DrawKind.FILTERED))
    captured: list[Graph] = []
    while (graph := order.next(pending_only=False)) is not None:
        captured.append(graph)
        order.captured(graph)
    for kind in (DrawKind.PLAIN, DrawKind.FILTERED):
        assert captured.count(Decode(2, kind, longest=few)) == 1
        assert captured.count(Decode(2, kind, longest=some)) == 1
    assert captured.count(Decode(8, DrawKind.PLAIN, longest=few)) == 1
    assert Decode(8, DrawKind.PLAIN, longest=some) not in captured
    assert Decode(4, DrawKind.PLAIN, longest=few) not in captured
    assert not any(graph in captured for graph in (general, shorter, short))
