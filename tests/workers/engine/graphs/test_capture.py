"""A capture beside memory that others need, and beside other ranks."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from workers.engine.graphs.capture import Hold, run_again, sparing


def _held(*, fits: bool) -> Hold:
    @contextmanager
    def hold(_num_bytes: int) -> Iterator[None]:
        if not fits:
            raise torch.OutOfMemoryError("this card is full")
        yield

    return hold


class Steps:
    """Counts how often a step ran."""

    def __init__(self) -> None:
        self.num_run = 0

    def __call__(self) -> Tensor:
        self.num_run += 1
        return torch.zeros(1)


@pytest.mark.parametrize(
    ("fits", "others_fit", "cause"),
    [(True, False, "another rank lacks memory"), (False, True, "this card is full")],
)
def test_no_rank_captures_what_one_has_no_room_for(
    *, fits: bool, others_fit: bool, cause: str
) -> None:
    """All ranks ask the others before the first sum of a step, of which there is none then."""
    asked: list[bool] = []

    def agreed(is_so: bool) -> bool:
        asked.append(is_so)
        return is_so and others_fit

    step = Steps()
    capture = sparing(run_again, 1, _held(fits=fits), agreed)
    with pytest.raises(torch.OutOfMemoryError, match=cause):
        capture(step)
    assert asked == [fits]
    assert step.num_run == 0


def test_a_capture_runs_its_step_and_replays_it_once() -> None:
    step = Steps()
    sparing(run_again, 1, _held(fits=True))(step)
    assert step.num_run == 2
