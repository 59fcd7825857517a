"""What the first rank does about others: it compares what they sampled."""

from typing import NoReturn

import pytest

from config import WorkerConfig
from workers.engine.parallel.leader import CHECKED_STEPS, Followers, TokenDigest
from workers.engine.parallel.processes import RankProcesses
from workers.scheduler.plan import Sampled, StepResult


class PartedError(Exception):
    """In place of the end of the process."""


def _part(cause: str) -> NoReturn:
    raise PartedError(cause)


@pytest.fixture
def followers() -> Followers:
    """None: the comparison needs no process."""
    return Followers(RankProcesses(WorkerConfig("w", "m", "m", (), 1)), _part)


def _digest(*ids: int) -> int:
    digest = TokenDigest()
    for number, each in enumerate(ids):
        is_due = digest.add(StepResult(number, (Sampled(7, (each,)),)))
    assert is_due == (len(ids) % CHECKED_STEPS == 0)
    return digest.value


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_part_at_other_tokens_whoever_says_so_first(followers: Followers, first: int) -> None:
    ids = range(CHECKED_STEPS)
    followers.compare(first, CHECKED_STEPS, _digest(*ids))
    followers.compare(1 - first, CHECKED_STEPS, _digest(*ids))
    followers.compare(first, 2 * CHECKED_STEPS, _digest(*ids, *ids))
    with pytest.raises(PartedError, match="other tokens than another within 200 steps"):
        followers.compare(1 - first, 2 * CHECKED_STEPS, _digest(*ids, *ids[:-1], 5))
    assert not followers.folder.exists()


def test_old_digests_are_forgotten(followers: Followers) -> None:
    for steps in range(CHECKED_STEPS, 40 * CHECKED_STEPS, CHECKED_STEPS):
        followers.compare(0, steps, steps)
    followers.compare(1, CHECKED_STEPS, 5)  # nothing is left to hold it against
