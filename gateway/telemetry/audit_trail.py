"""Acts of operators: a line in the audit file, and an event.

Owns that both are made of each act. The event leaves out the client's address and what a client
named, because events hold configured names and fixed phrases only. Must not know which acts there
are.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from gateway.telemetry.event_feed import EventFeed
from gateway.telemetry.fleet_events import AdminAct
from protocol.audit import Act, AuditFile

_log: Final = logging.getLogger(__name__)


@final
class AuditTrail:
    """`path` None: events alone, and an error in the log for each. `process` is which of several on
    one port this is.
    """

    def __init__(
        self,
        feed: EventFeed,
        path: Path | None,
        process: str | None = None,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._feed = feed
        name = "gateway" if process is None else f"gateway {process}"
        self._file = AuditFile(path, name, _log.error, unix_time)

    def note(self, act: Act) -> None:
        """Write it down, and publish it."""
        self._file.note(act)
        self._feed.publish(AdminAct(act.act, act.who, act.result))
