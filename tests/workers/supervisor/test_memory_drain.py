"""Is the memory of a dead engine free? Recorded readings in virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.supervisor.gpu_memory import (
    GIVE_UP_S,
    SETTLED_S,
    DrainCheck,
    MemoryReading,
    Verdict,
    parse_pids,
    parse_used,
)
from workers.supervisor.nvidia_smi import selected_cards, selected_gpus

GIB = 2**30
ENGINE = 4242
BEFORE = MemoryReading(1 * GIB)


def verdict_after(
    readings: list[tuple[float, MemoryReading]], before: MemoryReading | None = BEFORE
) -> tuple[Verdict, float]:
    """The first verdict that is not `wait`, and when."""
    check = DrainCheck(before, frozenset((ENGINE,)), 0.0)
    for now, reading in readings:
        if (verdict := check.verdict(reading, now)) != "wait":
            return verdict, now
    return "wait", readings[-1][0]


def every(period_s: float, until_s: float, *used: float) -> list[tuple[float, MemoryReading]]:
    """Readings of `used` GiB; the last one lasts."""
    times = [period_s * i for i in range(round(until_s / period_s) + 1)]
    last = len(used) - 1
    return [(at, MemoryReading(int(used[min(i, last)] * GIB))) for i, at in enumerate(times)]


def test_memory_that_is_back_at_once_is_not_waited_for() -> None:
    """What other programs took meanwhile is within the slack."""
    assert verdict_after(every(0.2, 1.0, 1.4)) == ("drained", 0.0)


def test_memory_that_falls_slowly_is_waited_for() -> None:
    """Memory that falls slowly is waited for, as long as the driver gives some back."""
    falling = every(0.5, 10.0, 130, 120, 90, 60, 30, 10, 1.2)
    assert verdict_after(falling) == ("drained", 3.0)


def test_others_memory_is_not_waited_for() -> None:
    """A neighbour that has started since holds 40 GiB: what no longer falls is not ours."""
    assert verdict_after(every(0.2, 60.0, 100, 70, 41)) == ("drained", pytest.approx(0.4 + 2.0))


def test_a_listed_process_of_ours_is_waited_for_within_a_bound() -> None:
    """A listed process of ours is waited for within a bound: its memory does not fall, and after 30
    s the start is tried anyway.
    """
    stuck = [(0.5 * i, MemoryReading(100 * GIB, frozenset((ENGINE, 7)))) for i in range(100)]
    assert verdict_after(stuck) == ("give up", GIVE_UP_S)
    foreign = [(at, MemoryReading(100 * GIB, frozenset((7,)))) for at, _ in stuck]
    assert verdict_after(foreign) == ("drained", SETTLED_S)


def test_without_a_reading_from_before_it_must_settle() -> None:
    """Two seconds without a fall."""
    assert verdict_after(every(0.5, 60.0, 9, 5, 3), before=None) == ("drained", 3.0)


@given(
    st.none() | st.integers(0, 200),
    st.lists(st.tuples(st.floats(0.01, 5.0), st.integers(0, 200), st.booleans()), min_size=1),
)
def test_it_always_ends(before: int | None, steps: list[tuple[float, int, bool]]) -> None:
    """Any readings give a verdict within 30 s, and never `drained` while our processes are listed
    with more memory than before.
    """
    start = None if before is None else MemoryReading(before * GIB)
    check = DrainCheck(start, frozenset((ENGINE,)), 0.0)
    now = 0.0
    for wait_s, used, is_listed in steps:
        now += wait_s
        pids = frozenset((ENGINE,)) if is_listed else frozenset[int]()
        verdict = check.verdict(MemoryReading(used * GIB, pids), now)
        if now >= GIVE_UP_S:
            assert verdict != "wait"
        if is_listed and (before is None or used > before):
            assert verdict != "drained"


def test_tables_of_nvidia_smi_are_read() -> None:
    """A number of MiB per GPU, a process id per line, words where there is none."""
    assert parse_used("1234\n") == 1234 * 2**20
    assert parse_used("4\n 6\n") == 10 * 2**20
    assert parse_used("[N/A]\n") is None  # a GPU that shares the host's memory
    assert parse_used("") is None
    assert parse_pids("4242\n7\n") == {4242, 7}
    assert parse_pids("No running processes found\n") == frozenset()


@pytest.mark.parametrize(
    ("device", "visible", "chosen"),
    [
        ("auto", None, "0"),
        ("cuda:3", None, "3"),
        ("cuda:1", "4,5", "5"),
        ("cuda", "GPU-1b2c", "GPU-1b2c"),
        ("cuda:1", "MIG-1,MIG-2", None),
        ("cuda:2", "0", None),
    ],
)
def test_only_the_workers_gpu_is_asked_for(
    device: str, visible: str | None, chosen: str | None
) -> None:
    """Only the worker's GPU is asked for, by its index among the visible ones; all are asked for
    where the index is unknown.
    """
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert selected_gpus(device, environ) == chosen


@pytest.mark.parametrize(
    ("devices", "visible", "chosen"),
    [
        (("cuda:2", "cuda:3"), None, "2,3"),
        (("cuda:0", "cuda:1"), "4,GPU-1b2c", "4,GPU-1b2c"),
        (("cuda:0", "cuda:1"), "4", None),
    ],
)
def test_all_cards_of_several_ranks_are_asked_for(
    devices: tuple[str, ...], visible: str | None, chosen: str | None
) -> None:
    """nvidia-smi takes a list; all cards where one of them cannot be said."""
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert selected_cards(devices, environ) == chosen
