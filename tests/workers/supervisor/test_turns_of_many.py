"""Workers of one device through any order of requests and faults, in virtual time."""

from collections.abc import Callable, Iterator
from random import Random
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.fakes.turning_workers import GIB, Model, Worker, World
from workers.ipc import NATIVE_SLEEP
from workers.supervisor import sleeper, turn_table, turn_taker

DIAL_S = 0.4
SERVED_WITHIN_S = 1000.0
"""Bursts of four workers whose times are not measured yet wait for each other's patience."""

_ACTS: dict[str, Callable[[Worker], None]] = {
    "ask": lambda one: one.ask(1),
    "burst": lambda one: one.ask(6),
    "its supervisor dies": Worker.kill_supervisor,
    "its engine dies": Worker.kill_engine,
    "its connection drops": Worker.drop,
    "an operator puts it to sleep": lambda one: one.wish("sleep"),
    "an operator wakes it": lambda one: one.wish("wake"),
    "it restarts": lambda one: one.restart(force=False),
    "it restarts at once": lambda one: one.restart(force=True),
    "it is removed": lambda one: one.world.nursery.start_soon(one.remove),
    "others take memory": lambda one: one.world.nursery.start_soon(one.world.take, 40 * GIB, 6.0),
    "the host starts again": lambda one: one.world.reboot(),
    "it is added": lambda _: None,
}


@pytest.fixture(autouse=True)
def _in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No thread runs beside the clock. The pauses of dials are longer, to save time."""

    async def inline(call: Callable[..., object], *args: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        return call(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    monkeypatch.setattr(sleeper, "resident_bytes", lambda _: 0)
    monkeypatch.setattr(turn_taker, "_DIAL_AGAIN_S", DIAL_S)
    monkeypatch.setattr(turn_table, "SETTLE_S", 5 * DIAL_S)
    with TemporaryDirectory(prefix="turns-") as folder:
        monkeypatch.setenv("HERMA_RUNTIME_DIR", folder)
        yield


@st.composite
def models(draw: st.DrawFn) -> list[Model]:
    """All of them fit alone beside what the others hold asleep. The last two may be always
    resident.
    """
    found = []
    sizes = draw(st.sampled_from(((20, 40, 60, 70), (20, 40, 50))))
    for name in "abcd":
        is_always = name in "cd" and 70 not in sizes and draw(st.booleans())
        way = draw(st.sampled_from(("", NATIVE_SLEEP)))
        found.append(
            Model(
                name,
                (12 if is_always else draw(st.sampled_from(sizes))) * GIB,
                draw(st.sampled_from((0, 1, 3))) * GIB if way else 0,
                start_s=draw(st.sampled_from((0.5, 3.0, 10.0))),
                end_s=draw(st.sampled_from((0.1, 1.0))),
                service_s=draw(st.sampled_from((0.2, 2.0, 8.0))),
                way=way,
                num_failures=draw(st.sampled_from((0, 0, 0, 1, 3))),
                idle_s=draw(st.sampled_from((None, 1.0, 20.0))),
                is_always=is_always,
            )
        )
    return found


_PAUSES = st.sampled_from((0.0, 0.1, 0.5, 0.6, 1.0, 3.0, 6.0, 20.0))
_SCHEDULES = st.lists(
    st.tuples(_PAUSES, st.sampled_from("abcd"), st.sampled_from(tuple(_ACTS))), max_size=30
)


@given(models(), _SCHEDULES, st.sampled_from((0.0, 0.2, 2.0)), st.integers(0, 99))
@settings(max_examples=100, derandomize=True, database=None)
def test_all_work_is_served_in_bounded_time(
    drawn: list[Model], schedule: list[tuple[float, str, str]], read_s: float, seed: int
) -> None:
    """The fourth worker comes by a reload. The device never holds more than it has (asserted by
    the fake); supervisors, engines, connections and memory may go at any time.
    """
    *first, late = drawn
    world = World(first, Random(seed))
    world.device.read_s = read_s

    def act(name: str, what: str) -> Callable[[World], None]:
        def do(_: World) -> None:
            if what == "it is added":
                world.add(late)
            elif (one := world.workers.get(name)) is not None and not one.is_removed:
                _ACTS[what](one)

        return do

    steps = [(pause_s, act(name, what)) for pause_s, name, what in schedule]
    clock = MockClock(autojump_threshold=0)
    trio.run(world.run, steps, SERVED_WITHIN_S, clock=clock)
