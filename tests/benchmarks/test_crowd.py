"""A crowd on a simulated card: everybody gets an answer, and gaps are as promised."""

import random
from statistics import median

import pytest

from benchmarks.crowd import OF_8B, OUTPUTS, Crowd, Engine, OwnEngine, PromptsFirst, agents, streams

MAX_GAP_S = 0.08


def _driven(crowd: Crowd, engine: Engine) -> Crowd:
    crowd.drive(engine)
    return crowd


@pytest.mark.parametrize("bits", sorted(OF_8B))
@pytest.mark.parametrize("is_own", [True, False])
def test_every_request_has_its_answer(bits: int, is_own: bool) -> None:
    """Each request of streams and of agents has an answer, and as many gaps as tokens behind its
    first.
    """
    times = OF_8B[bits]
    engine = OwnEngine(4096, MAX_GAP_S, times) if is_own else PromptsFirst(times)
    for crowd in (streams(8, 0.1, random.Random(1)), agents(4, 3, 0.1, random.Random(2))):
        done = _driven(crowd, engine)
        count = sum(map(len, crowd.asks))
        assert len(done.first_s + done.later_s) == count
        assert len(done.gaps_s) == count * (OUTPUTS - 1)


@pytest.mark.parametrize(("bits", "count"), [(16, 160), (8, 240)])
def test_many_streams_have_the_gaps_of_decodes_in_the_middle(bits: int, count: int) -> None:
    """The median gap is that of decodes, and no gap is above the promised one, once the engine
    knows what its steps take.
    """
    engine = OwnEngine(4096, MAX_GAP_S, OF_8B[bits])
    _driven(streams(count, 3.0, random.Random(1)), engine)
    crowd = _driven(streams(count, 3.0, random.Random(2)), engine)
    assert median(crowd.gaps_s) <= 1.1 * OF_8B[bits].step(count, [])
    assert max(crowd.gaps_s) <= 1.1 * MAX_GAP_S
