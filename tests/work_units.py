"""What `make test` gives to one of its processes at a time: a file, or the folder
`tests/e2e/shared_fleet`.

That folder's tests share a fleet, which each process that runs one of its files would start again:
8 s of both cores. The fleet ends with the folder: six processes that have nothing to do cost 4 % of
a core and 1 GB. Long folders begin early and short files come last, so that the processes end
together.
"""

from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

SHARED: Final = "tests/e2e/shared_fleet/"
LONG: Final = (
    SHARED,
    "tests/e2e/",
    "tests/chaos/",
    "tests/workers/engine/compile/",
    "tests/workers/supervisor/",
    "tests/workers/bridge/",
    "tests/training/",
    "tests/kernels/",
    "tests/benchmarks/",
    "tests/gateway/http/test_loop_stretches.py",
    "tests/gateway/test_disconnects.py",
    "tests/test_",
    "tests/architecture/",
    "tests/workers/engine/",
    "tests/workers/loop/",
    "tests/workers/scheduler/",
    "tests/herma/",
)


def sort_by_length(items: list[pytest.Item]) -> None:
    """Put long folders first; the rest stays in its order."""
    items.sort(key=lambda item: next((i for i, at in enumerate(LONG) if at in item.nodeid), 99))


class WorkUnits(LoadFileScheduling):
    """xdist's `loadfile` with the folder `SHARED` as one, in the order of collection."""

    def __init__(self, config: Any, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return SHARED if nodeid.startswith(SHARED) else super()._split_scope(nodeid)
