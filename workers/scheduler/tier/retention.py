"""Which entry of the host tier goes when room is needed.

Owns the seam between the pool and a policy, and the default policy. The pool offers only entries
that may go: nothing is copied from or to them, and no longer prefix on the host needs them. Must
not know pages.
"""

from typing import Protocol, final

from workers.scheduler.tier.entry import Entry


class Retention(Protocol):
    """Ranks entries. The pool asks for a rank when an entry is stored or used, and again before it
    evicts: a rank may rise meanwhile, and the entry is then kept for its new rank.
    """

    def rank(self, entry: Entry, now: int) -> float:
        """The entry of the lowest rank is evicted first. `now` counts uses, in place of time."""

    def is_worth_storing(self, entry: Entry, now: int) -> bool:
        """Whether a block of the card is worth a place on the host. `entry` has no pages yet."""


@final
class LeastRecentlyUsed:
    """Evicts the entry whose last use is longest ago, and stores everything."""

    def rank(self, entry: Entry, now: int) -> float:
        """See `Retention`."""
        del now
        return float(entry.used_at)

    def is_worth_storing(self, entry: Entry, now: int) -> bool:
        """See `Retention`."""
        del entry, now
        return True
