"""Refused requests: a count for each reason, and at most one log line a minute for each.

Owns the reasons and how often a reason is logged. Must not know keys or routes; no line shows what
a client sent as its key.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, Literal, final, get_args

from starlette.types import Scope

Reason = Literal["no key", "unknown key", "no keys here", "not an admin", "foreign page"]

TOLD_EVERY_S: Final = 60.0
"""A reason is logged once in this time: a stranger's tries must not fill the log."""

_log = logging.getLogger(__name__)


@final
class RefusedAccess:
    """Counts what is refused before it is read. `now` is seconds of any monotonic clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.counts: dict[Reason, int] = dict.fromkeys(get_args(Reason), 0)
        self._now = now
        self._told: dict[Reason, tuple[float, int]] = {}

    def note(self, reason: Reason, scope: Scope, why: str) -> None:
        """Count a request, and log it unless one of this reason was logged a moment ago."""
        self.counts[reason] += 1
        now, count = self._now(), self.counts[reason]
        told_at, told = self._told.get(reason, (float("-inf"), 0))
        if now - told_at < TOLD_EVERY_S:
            return
        self._told[reason] = now, count
        client = scope.get("client")
        more = f" ({count - told - 1} more since the last such line)" if count - told > 1 else ""
        _log.warning("refused a client at %s: %s%s", client[0] if client else "?", why, more)
