"""Which tests a process of a run gets next."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.work_units import COMPUTING, SHARED, WAITING, WorkUnits

FILES = (
    [f"{SHARED}test_{name}.py" for name in "ab"]
    + [f"tests/e2e/test_{name}.py" for name in "abcdef"]
    + [f"tests/herma/test_{name}.py" for name in "ab"]
    + [f"tests/kernels/test_{name}.py" for name in "abcdefgh"]
    + [f"tests/config/test_{name}.py" for name in "abcdefghijkl"]
)
TESTS = [f"{path}::test_{number}[{each}]" for path in FILES for number in (1, 2) for each in "xy"]
LONGEST = sum([test.startswith(SHARED) for test in TESTS])


class Node:
    """A process of a run, which does what it is told when the test says so."""

    def __init__(self) -> None:
        self.todo: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="a process")

    def send_runtest_some(self, places: Sequence[int]) -> None:
        assert places
        self.todo += places

    def shutdown(self) -> None:
        self.shutting_down = True


def _begun(num_nodes: int) -> tuple[WorkUnits, list[Any]]:
    """A run whose processes have collected."""
    tx = [f"{num_nodes}*popen"]
    config: Any = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda _: tx)
    nodes: list[Any] = [Node() for _ in range(num_nodes)]
    units = WorkUnits(config)
    for node in nodes:
        units.add_node(node)
    for node in nodes:
        units.add_node_collection(node, TESTS)
    units.schedule()
    return units, nodes


def _run(num_nodes: int, each: Callable[[list[list[str]]], None]) -> list[list[str]]:
    """The tests of each process in their order; `each` is called with what all run before a test
    ends.
    """
    units, nodes = _begun(num_nodes)
    done: list[list[str]] = [[] for _ in nodes]
    while any(node.todo for node in nodes):
        each([[TESTS[place] for place in node.todo] for node in nodes])
        for index, node in enumerate(nodes):
            if node.todo:
                place = node.todo.pop(0)
                done[index].append(TESTS[place])
                units.mark_test_complete(node, place)
    assert all(node.shutting_down for node in nodes)
    return done


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 7])
def test_each_test_runs_once_and_a_file_in_one_process(num_nodes: int) -> None:
    done = _run(num_nodes, lambda _: None)
    assert sorted(test for tests in done for test in tests) == sorted(TESTS)
    for path in FILES:
        assert sum([any(test.startswith(path) for test in tests) for tests in done]) == 1


def test_the_shared_fleet_has_one_process() -> None:
    done = _run(4, lambda _: None)
    assert sum([any(test.startswith(SHARED) for test in tests) for tests in done]) == 1


@pytest.mark.parametrize(("num_nodes", "most"), [(2, 1), (3, 2), (4, 2)])
def test_half_of_the_processes_wait_and_half_compute(num_nodes: int, most: int) -> None:
    """Until one kind is over."""
    counts = []

    def count(todo: list[list[str]]) -> None:
        counts.append(sum([tests[0].startswith(WAITING) for tests in todo if tests]))

    done = _run(num_nodes, count)
    assert counts == sorted(counts, reverse=True)
    assert (max(counts), min(counts)) == (most, 0)
    num_waiting = sum([test.startswith(WAITING) for test in TESTS])
    assert counts.count(most) > num_waiting / most - LONGEST
    assert all(tests[0].startswith(WAITING) for tests in done[:most])
    assert not any(tests[0].startswith(WAITING) for tests in done[most:])


def test_long_folders_begin_early() -> None:
    """In a run they stand first."""
    done = _run(4, lambda _: None)
    paths = [FILES[0], FILES[2], *[path for path in FILES if "kernels" in path][:2]]
    assert [tests[0].partition("::")[0] for tests in done] == paths
    for tests in done:
        places = [TESTS.index(test) for test in tests]
        waiting = [place for place in places if TESTS[place].startswith(WAITING)]
        computing = [place for place in places if place not in waiting]
        assert (waiting, computing) == (sorted(waiting), sorted(computing))


def test_the_kinds_are_folders_of_this_tree(pytestconfig: pytest.Config) -> None:
    for at in (*WAITING, *COMPUTING):
        assert list(pytestconfig.rootpath.glob(f"{at}*")), at


def test_what_a_lost_process_had_is_run_by_another() -> None:
    units, nodes = _begun(2)
    lost, other = nodes
    units.mark_test_complete(lost, lost.todo.pop(0))
    had = [TESTS[place] for place in lost.todo]
    assert units.remove_node(lost) == had[0]
    done = []
    while other.todo:
        place = other.todo.pop(0)
        done.append(TESTS[place])
        units.mark_test_complete(other, place)
    assert sorted([TESTS[0], *done]) == sorted(TESTS)
