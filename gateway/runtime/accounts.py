"""Accounts of requests, which no client waits for: many are written one behind the other.

Owns the calls that write them, in their order, until they are made. Must not know what they do.

What runs once for a request finds the processor's caches full of other code. Written together,
accounts take half of the time. `gateway/link/submissions.py` calls `write` at the end of a loop
cycle in which a request has ended, after the cycle's messages are sent and before the next ones are
read, and several times a second for requests that have only begun.
"""

import logging
from collections.abc import Callable
from typing import Final, final

import outcome

MOST: Final = 16
"""With this many waiting accounts, they are written even if no request ends."""

Account = Callable[[], object]

_log = logging.getLogger(__name__)


@final
class Accounts:
    """Until `start` and after `stop` each account is written at once. `is_due`: call `write` at the
    end of this cycle of the loop.
    """

    def __init__(self) -> None:
        self.is_due = False
        self._waiting: list[Account] = []
        self._is_running = False

    def start(self) -> None:
        """Let accounts wait for the next call of `write`."""
        self._is_running = True

    def stop(self) -> None:
        """Write the accounts that wait; write each later one at once."""
        self._is_running = False
        self.write()

    def begin(self, account: Account) -> None:
        """A request begins: `account` is written before that of its end."""
        self._waiting.append(account)
        if not self._is_running:
            self.write()
        elif len(self._waiting) >= MOST:
            self.is_due = True

    def end(self, account: Account) -> None:
        """A request has ended: `account` is written at the end of this cycle of the loop."""
        self._waiting.append(account)
        if self._is_running:
            self.is_due = True
        else:
            self.write()

    def write(self) -> None:
        """Write all that wait. One that fails is logged, and stops no other."""
        self.is_due = False
        while self._waiting:
            due, self._waiting = self._waiting, []
            for account in due:
                result = outcome.capture(account)
                if isinstance(result, outcome.Error):
                    _log.error("an account failed; the others are written", exc_info=result.error)
