"""Whether a worker is held: kept from gateways while its version changes.

Owns the version on trial, and the lease of the hold, which ends by itself if the command that asked
for it is gone. Times are arguments, in seconds. Must not know engines or gateways.
"""

from typing import Final, final

from protocol.errors import ConfigError

CURRENT: Final = ""
"""The version that is current at the next start of an engine."""


@final
class WorkerHold:
    """The hold of one worker. With `lease_s` it begins held: the process that this one has replaced
    was held.
    """

    def __init__(self, now: float, lease_s: float | None = None) -> None:
        self.is_on = lease_s is not None
        self.version = CURRENT
        self.until = now + (lease_s or 0.0)
        self._lease_s = lease_s or 0.0

    def begin(self, now: float, lease_s: float) -> bool:
        """Hold for `lease_s` from now. Returns whether the worker was not held before."""
        is_news, self.is_on = not self.is_on, True
        self._lease_s = lease_s
        self.renew(now)
        return is_news

    def renew(self, now: float) -> None:
        """Renew the lease: the command that holds the worker is alive."""
        self.until = now + self._lease_s

    def check(self, what: str) -> None:
        """Raise `ConfigError` unless the worker is held."""
        if not self.is_on:
            raise ConfigError(f"only a worker that is held can {what}; its lease may have ended")

    def is_over(self, now: float) -> bool:
        """Whether the lease has run out."""
        return self.is_on and now >= self.until

    def end(self) -> None:
        """End the hold. Later engines start in the current version."""
        self.is_on = False
        self.version = CURRENT
