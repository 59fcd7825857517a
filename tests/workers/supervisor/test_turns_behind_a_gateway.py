"""Workers of one device and their gateway through any order of requests and faults, in virtual
time.
"""

from collections.abc import Callable
from random import Random
from typing import cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.fakes.turning_fleet import LinkedWorker, LinkedWorld
from tests.fakes.turning_workers import GIB, Model, Worker, World
from tests.workers.supervisor.test_turns_of_many import (
    _ACTS,
    _PAUSES,
    SERVED_WITHIN_S,
    _in_virtual_time,  # noqa: F401 (a fixture)
    models,
)
from workers.ipc import NATIVE_SLEEP


def _fleet_act(do: Callable[[LinkedWorker], None]) -> Callable[[Worker], None]:
    return lambda one: do(cast("LinkedWorker", one))


ACTS: dict[str, Callable[[Worker], None]] = {
    **_ACTS,
    "its link is lost": _fleet_act(LinkedWorker.cut),
    "its clients leave": _fleet_act(lambda one: one.gateway.leave(one.model.name)),
    "the gateway starts again": _fleet_act(lambda one: one.gateway.restart()),
}
_NAMES = st.sets(st.sampled_from("abcd"))
_SCHEDULES = st.lists(
    st.tuples(_PAUSES, st.sampled_from("abcd"), st.sampled_from(tuple(ACTS))), max_size=30
)


@given(models(), _SCHEDULES, st.sampled_from((0.0, 0.2, 2.0)), st.integers(0, 99), _NAMES, _NAMES)
@settings(max_examples=60, derandomize=True, database=None)
def test_no_model_is_left_to_its_provider(
    drawn: list[Model],
    schedule: list[tuple[float, str, str]],
    read_s: float,
    seed: int,
    cloud: set[str],
    diverts: set[str],
) -> None:
    """A provider answers for a model that only sleeps if the file says so. Whatever happens, the
    worker answers again once it can.
    """
    *first, late = drawn
    world = LinkedWorld(first, Random(seed), cloud, diverts)
    world.device.read_s = read_s

    def act(name: str, what: str) -> Callable[[World], None]:
        def do(_: World) -> None:
            if what == "it is added":
                world.add(late)
            elif (one := world.workers.get(name)) is not None and not one.is_removed:
                ACTS[what](one)

        return do

    steps = [(pause_s, act(name, what)) for pause_s, name, what in schedule]
    trio.run(world.run, steps, 3 * SERVED_WITHIN_S, clock=MockClock(autojump_threshold=0))
    assert world.gateway.wrong == []


@pytest.mark.parametrize("way", ["", NATIVE_SLEEP])
def test_a_model_comes_back_once_its_memory_does(way: str) -> None:
    """Its provider answers while others have the memory that its wake needs."""
    first = [Model(name, 60 * GIB, 1 * GIB if way else 0, way=way) for name in "ab"]
    world = LinkedWorld(first, Random(0), {"a"}, set())

    def act(name: str, what: str) -> Callable[[World], None]:
        return lambda _: ACTS[what](world.workers[name])

    steps = [(1.0, act("a", "ask")), (60.0, act("b", "ask"))]
    steps += [(60.0, act("b", "others take memory"))]
    steps += [(0.5, act("a", "ask"))] * 8
    trio.run(world.run, steps, SERVED_WITHIN_S, clock=MockClock(autojump_threshold=0))
    assert world.gateway.wrong == []
    assert world.gateway.by["provider"]
