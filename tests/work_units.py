"""What `make test` gives to one of its processes at a time: a file, or those files of `tests/e2e`
that share a fleet.

That fleet has three engines, which each process that runs one of these files would start again:
8 s of both cores and 5 GB. The folder's other files start what they need and are given out one by
one: the whole folder is a quarter of all tests, and a process that had it would end last. Long
folders begin early and short files come last, so that the processes end together.
"""

from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

FOLDER: Final = "tests/e2e/"
SHARED: Final = frozenset(
    f"{FOLDER}test_{name}.py"
    for name in (
        "client_pages",
        "conversations",
        "messages",
        "openai_client",
        "prompt_logprobs",
        "responses",
        "streams",
        "strict_tools",
        "structured_output",
        "tool_choice",
    )
)
"""The files whose tests take `fleet` or `client` of `tests/e2e/conftest.py`."""
LONG: Final = (
    FOLDER,
    "tests/chaos/",
    "tests/workers/engine/compile/",
    "tests/workers/supervisor/",
    "tests/workers/bridge/",
    "tests/training/",
    "tests/kernels/",
    "tests/benchmarks/",
    "tests/workers/engine/",
    "tests/workers/scheduler/",
    "tests/herma/",
)


def sort_by_length(items: list[pytest.Item]) -> None:
    """Put long folders first; the rest stays in its order."""
    items.sort(key=lambda item: next((i for i, at in enumerate(LONG) if at in item.nodeid), 99))


def refuse_unlisted(items: list[pytest.Item]) -> None:
    """Raise where a test shares the fleet and its file is not among `SHARED`: it would start the
    fleet again.
    """
    for item in items:
        if not isinstance(item, pytest.Function) or not item.nodeid.startswith(FOLDER):
            continue
        fleets = item._fixtureinfo.name2fixturedefs.get("fleet")
        file = item.nodeid.partition("::")[0]
        if fleets and fleets[-1].baseid == FOLDER.rstrip("/") and file not in SHARED:
            raise pytest.UsageError(f"{file} uses the shared fleet: name it in work_units.SHARED")


class WorkUnits(LoadFileScheduling):
    """xdist's `loadfile` with the files of `SHARED` as one, in the order of collection."""

    def __init__(self, config: Any, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return FOLDER if file in SHARED else file
