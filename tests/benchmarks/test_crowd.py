"""A crowd on a simulated card: everybody gets an answer, and gaps are as promised."""

import random
from statistics import median

import pytest

from benchmarks.crowd import (
    OUTPUTS,
    Crowd,
    Engine,
    OwnEngine,
    PromptsFirst,
    agents,
    step_s,
    streams,
)

MAX_GAP_S = 0.08


def _driven(crowd: Crowd, engine: Engine) -> Crowd:
    crowd.drive(engine)
    return crowd


@pytest.mark.parametrize("engine", [OwnEngine(4096, MAX_GAP_S), PromptsFirst()])
def test_every_request_has_its_answer(engine: Engine) -> None:
    """Of streams and of agents; each has as many gaps as tokens behind its first."""
    for crowd in (streams(8, 0.1, random.Random(1)), agents(4, 3, 0.1, random.Random(2))):
        done = _driven(crowd, engine)
        count = sum(map(len, crowd.asks))
        assert len(done.first_s + done.later_s) == count
        assert len(done.gaps_s) == count * (OUTPUTS - 1)


def test_many_streams_have_the_gaps_of_decodes_in_the_middle() -> None:
    """And none above what is promised, once the engine knows what its steps take."""
    engine = OwnEngine(4096, MAX_GAP_S)
    _driven(streams(160, 3.0, random.Random(1)), engine)
    crowd = _driven(streams(160, 3.0, random.Random(2)), engine)
    assert median(crowd.gaps_s) <= 1.1 * step_s(160, [])
    assert max(crowd.gaps_s) <= 1.1 * MAX_GAP_S
