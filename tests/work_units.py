"""What `make test` gives to one of its processes at a time: a file, or the folder
`tests/e2e/shared_fleet`.

That folder's tests share a fleet, which each process that runs one of its files would start again:
8 s of both cores. The fleet ends with the folder: six processes that have nothing to do cost 4 % of
a core and 1 GB.

Files that start processes wait for them most of their time; all others compute. Half of the
processes of a run, rounded up, take the former and the rest the latter, as long as there are both:
so the cores have work while a test waits, and few fleets run at once. Long folders begin early and
short files come last, so that the processes end together.
"""

from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

SHARED: Final = "tests/e2e/shared_fleet/"
WAITING: Final = (
    SHARED,
    "tests/e2e/",
    "tests/chaos/",
    "tests/workers/supervisor/",
    "tests/workers/bridge/",
    "tests/gateway/test_disconnects.py",
    "tests/benchmarks/gateway/",
    "tests/benchmarks/agents/",
    "tests/benchmarks/http/",
    "tests/herma/",
)
COMPUTING: Final = (
    "tests/workers/engine/compile/",
    "tests/workers/engine/",
    "tests/training/",
    "tests/kernels/",
    "tests/benchmarks/",
    "tests/gateway/http/test_loop_stretches.py",
    "tests/test_",
    "tests/architecture/",
    "tests/workers/loop/",
    "tests/workers/scheduler/",
)
_LONG: Final = (*WAITING, *COMPUTING)


def sort_by_length(items: list[pytest.Item]) -> None:
    """Put long folders first; the rest stays in its order."""
    items.sort(key=lambda item: next((i for i, at in enumerate(_LONG) if at in item.nodeid), 99))


class WorkUnits(LoadFileScheduling):
    """xdist's `loadfile` with the folder `SHARED` as one, in the order of collection, but that
    some processes take those that wait.
    """

    def __init__(self, config: Any, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._places: dict[Any, dict[str, int]] = {}

    def _split_scope(self, nodeid: str) -> str:
        return SHARED if nodeid.startswith(SHARED) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """As xdist's own, which takes the first of the queue and looks for each test in a list."""
        scope = self._next_scope(node)
        unit = self.workqueue.pop(scope)
        self.assigned_work[node][scope] = unit
        if node not in self._places:
            collected = self.registered_collections[node]
            self._places[node] = {nodeid: place for place, nodeid in enumerate(collected)}
        places = self._places[node]
        node.send_runtest_some([places[nodeid] for nodeid, is_done in unit.items() if not is_done])

    def _next_scope(self, node: Any) -> str:
        """The first of this node's kind, or of the other kind."""
        others = [units for each, units in self.assigned_work.items() if each is not node]
        num_waiting = sum([any(map(_waits, units)) for units in others])
        may_wait = num_waiting < (len(self.assigned_work) + 1) // 2
        first = next(iter(self.workqueue))
        return next((scope for scope in self.workqueue if _waits(scope) == may_wait), first)


def _waits(scope: str) -> bool:
    return scope.startswith(WAITING)
