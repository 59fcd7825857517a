"""Text files that workers were asked for.

Owns who owes which, so that what was not asked for is not kept. Must not know sockets.
"""

from protocol.ids import WorkerId


class FilesAsked:
    """Pairs of a worker and a digest."""

    def __init__(self) -> None:
        self._asked: set[tuple[WorkerId, bytes]] = set()

    def ask(self, worker_id: WorkerId, digest: bytes) -> bool:
        """Note a question; False if it was asked before and is not answered yet."""
        if (worker_id, digest) in self._asked:
            return False
        self._asked.add((worker_id, digest))
        return True

    def answered(self, worker_id: WorkerId, digest: bytes) -> bool:
        """Whether those files were asked for; now they no longer are."""
        if (worker_id, digest) not in self._asked:
            return False
        self._asked.remove((worker_id, digest))
        return True

    def forget(self, worker_id: WorkerId) -> None:
        """What was asked of an engine that is gone is not answered any more."""
        self._asked = {asked for asked in self._asked if asked[0] != worker_id}
