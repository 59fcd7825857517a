"""The copies of an engine without a device, for tests of its loop."""

import queue

from workers.scheduler.tier import HostTier, TierPool, TierRoom, Transfer, Transferred


class PageCopies:
    """Copies to a host whose pages open when the test says so, over when they have begun."""

    def __init__(self) -> None:
        self.tier = HostTier(TierRoom(8, page_bytes=4096), TierPool(8))
        self.opened: queue.SimpleQueue[range] = queue.SimpleQueue()
        self.begun: queue.SimpleQueue[Transfer] = queue.SimpleQueue()
        self._done: list[Transferred] = []

    def begin(self, transfer: Transfer) -> None:
        self.begun.put(transfer)
        sums = tuple([(0,) * len(copy.pages) for copy in transfer.copies])
        self._done.append(Transferred(transfer.number, sums))

    def take_done(self) -> list[Transferred]:
        done, self._done = self._done, []
        return done

    def take_opened(self) -> list[range]:
        return [] if self.opened.empty() else [self.opened.get()]
