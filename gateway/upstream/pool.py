"""The connections to one provider.

Owns how many there are and which of them are kept alive. Each serves one request at a time, so a
slot is with whoever holds a connection, and nowhere else: httpcore's own pool loses slots when
requests are cancelled, and looks at every connection for every other at each request. Must not know
requests.
"""

from collections.abc import Callable

import httpcore
import trio


class ConnectionPool:
    """Makes connections with `make`, at most `max_connections`, of which `max_idle` are kept."""

    def __init__(
        self,
        make: Callable[[], httpcore.AsyncConnectionInterface],
        *,
        max_connections: int,
        max_idle: int,
    ) -> None:
        self._make = make
        self._max_idle = max_idle
        self._free_slots = trio.Semaphore(max_connections, max_value=max_connections)
        # In the order in which they became idle. As long as there is one none is made, so those
        # that are lent and these together are never more than `max_connections`.
        self._idle: list[httpcore.AsyncConnectionInterface] = []
        self._is_closed = False
        self._max_connections = max_connections

    def __repr__(self) -> str:
        return f"<ConnectionPool lent={self.num_lent} idle={self.num_idle}>"

    @property
    def num_lent(self) -> int:
        """Connections that serve a request now, or are made for one."""
        return self._max_connections - self._free_slots.value

    @property
    def num_idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    async def lend(self, timeout_s: float) -> httpcore.AsyncConnectionInterface:
        """A connection that lives, as far as one can know, or a new one, which is not connected.
        It must be taken back. Raises `httpcore.PoolTimeout` if none is free in time.
        """
        try:
            self._free_slots.acquire_nowait()
        except trio.WouldBlock:
            await self._wait_for_slot(timeout_s)
        with trio.CancelScope(shield=True):
            while self._idle:
                connection = self._idle.pop()
                if not connection.has_expired():
                    return connection
                await connection.aclose()
        return self._make()

    async def take_back(self, connection: httpcore.AsyncConnectionInterface) -> None:
        """Keep it if it can serve again, else close it. Its slot is free then, come what may."""
        with trio.CancelScope(shield=True):
            try:
                while self._idle and self._idle[0].has_expired():
                    await self._idle.pop(0).aclose()
                if connection.is_idle() and not self._is_closed:
                    self._idle.append(connection)
                    if len(self._idle) > self._max_idle:
                        await self._idle.pop(0).aclose()
                else:
                    await connection.aclose()
            finally:
                self._free_slots.release()

    async def _wait_for_slot(self, timeout_s: float) -> None:
        try:
            with trio.fail_after(timeout_s):
                await self._free_slots.acquire()
        except trio.TooSlowError as error:
            raise httpcore.PoolTimeout(f"no connection was free in {timeout_s:g} s") from error

    async def aclose(self) -> None:
        """Close those that are idle, and the others once they are."""
        self._is_closed = True
        await self.drop_idle()

    async def drop_idle(self) -> None:
        """Close those that are idle."""
        while self._idle:
            await self._idle.pop().aclose()
