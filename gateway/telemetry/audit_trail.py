"""The audit trail: each act of an operator becomes a line in the audit file and an event.

Owns the difference between the two. The event leaves out the client's address and any name that a
client chose, because events hold only configured names and fixed phrases. Must not know which acts
there are.
"""

import logging
import time
from pathlib import Path
from typing import Final, final

from gateway.telemetry.event_feed import EventFeed
from gateway.telemetry.fleet_events import AdminAct
from housekeeping.audit import Act, AuditFile

_log: Final = logging.getLogger(__name__)


@final
class AuditTrail:
    """With `path` None an act becomes an event and an error in the log. `process` is the index of
    this process if several share the port.
    """

    def __init__(self, feed: EventFeed, path: Path | None, process: str | None = None) -> None:
        self._feed = feed
        name = "gateway" if process is None else f"gateway {process}"
        self._file = AuditFile(path, name, _log.error, time.time)

    def note(self, act: Act) -> None:
        """Write the act to the file and publish it."""
        self._file.note(act)
        self._feed.publish(AdminAct(act.act, act.who, act.result))
