"""A ledger whose disk was full when the gateway started: it is opened once there is room.

Owns when opening is tried: at each write and each read. Until it succeeds they fail, like those of
a ledger whose disk becomes full later. So a host that starts with a full disk serves with its own
workers, and sends no request that a limit has to count. Must not know limits or prices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from gateway.store.ledger import LedgerError, LedgerStore
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.store.balances import Balance, BalanceKey
    from gateway.store.conversation_sums import SumReached


@final
class LateLedger:
    """A `LedgerStore` that `open_store` makes once the disk has room."""

    def __init__(self, open_store: Callable[[], LedgerStore]) -> None:
        self._open_store = open_store
        self._store: LedgerStore | None = None

    @property
    def reached(self) -> dict[int, SumReached]:
        """See `LedgerStore`."""
        return {} if self._store is None else self._store.reached

    @property
    def trouble(self) -> str:
        """See `LedgerStore`."""
        return "" if self._store is None else self._store.trouble

    def write(self, *parts: Any) -> frozenset[int]:  # noqa: ANN401 (those of LedgerStore)
        """See `LedgerStore`."""
        return self._opened().write(*parts)

    def look(self, places: Iterable[BalanceKey]) -> dict[BalanceKey, Balance]:
        """See `LedgerStore`."""
        return self._opened().look(places)

    def close(self) -> None:
        """See `LedgerStore`."""
        if self._store is not None:
            self._store.close()

    def _opened(self) -> LedgerStore:
        if self._store is None:
            try:
                self._store = self._open_store()
            except ConfigError as error:
                raise LedgerError(str(error), getattr(error, "cause", "")) from error
        return self._store
