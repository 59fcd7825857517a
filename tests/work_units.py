"""What `make test` gives to one of its processes at a time: a file, or the folder `tests/e2e`.

The files of that folder share a fleet of three engines, which each process that runs one of them
would start again: 8 s of both cores and 5 GB. Owns nothing but that rule; the order is by name,
so that long folders (chaos, e2e) begin early and short files come last.
"""

from typing import Any, Final

from xdist.scheduler import LoadFileScheduling

FOLDER: Final = "tests/e2e/"


class WorkUnits(LoadFileScheduling):
    """xdist's `loadfile` with one folder whole, in the order of collection."""

    def __init__(self, config: Any, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return FOLDER if nodeid.startswith(FOLDER) else super()._split_scope(nodeid)
