"""Which graph serves a step, and which is captured next."""

import pytest

from workers.engine.capture_order import CaptureOrder, graph_sizes
from workers.engine.draws import Kind


@pytest.mark.parametrize("max_rows", [1, 2, 3, 64, 100, 256, 300, 1000])
def test_sizes_rise_to_the_batch(max_rows: int) -> None:
    """Every number of rows has a graph, and the last is the batch itself."""
    sizes = graph_sizes(max_rows)
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[0] == 1
    assert sizes[-1] == max_rows


def test_the_largest_serves_until_there_is_a_better_one() -> None:
    """The smallest captured graph that holds all rows serves; what was missed is wished."""
    order = CaptureOrder(64)
    assert order.serving(3, Kind.PLAIN) is None
    order.captured((64, Kind.PLAIN))
    assert order.serving(3, Kind.PLAIN) == 64
    order.captured((8, Kind.PLAIN))
    assert order.serving(3, Kind.PLAIN) == 8
    assert order.serving(9, Kind.PLAIN) == 64
    assert order.serving(3, Kind.FILTERED) is None


def test_wishes_go_first_and_end_when_granted() -> None:
    """A busy engine captures wishes only, an idle one everything that greedy steps may need."""
    order = CaptureOrder(16)
    assert order.next(wished_only=True) is None
    assert order.next(wished_only=False) == (16, Kind.PLAIN)
    order.serving(3, Kind.FILTERED)
    assert order.next(wished_only=False) == (4, Kind.FILTERED)
    order.captured((4, Kind.FILTERED))
    assert order.next(wished_only=True) is None
    captured = []
    while (graph := order.next(wished_only=False)) is not None:
        captured.append(graph)
        order.captured(graph)
    assert captured[:3] == [(16, Kind.PLAIN), (1, Kind.PLAIN), (8, Kind.PLAIN)]
    assert sorted(size for size, _ in captured) == list(order.sizes)
