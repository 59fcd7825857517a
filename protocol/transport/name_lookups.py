"""Looks up host names, for all connections of a process.

Owns the threads of lookups: a few for each name, apart from trio's own. A lookup cannot be
cancelled, and while a resolver does not answer it takes up to half a minute: lookups of one
provider whose name is not found would occupy all of trio's forty threads, and connections to
others, files and reloads would wait for a thread. Must not know what is connected.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import trio
import trio.abc
from outcome import Error

if TYPE_CHECKING:
    from outcome import Outcome

MAX_AT_ONCE: Final = 4
AGAIN_S: Final = 1.0
"""After this time without an answer a new request asks anew: the resolver may be back."""

Addresses = list[Any]
"""The addresses, in the form that `socket.getaddrinfo` returns."""

Query = tuple[Any, ...]
"""The arguments of `socket.getaddrinfo`."""


@final
class _Name:
    """The lookups of one query that are under way, which end together: by the first address, or by
    the last failure.
    """

    def __init__(self) -> None:
        self.num_running = 0
        self.begun_at = 0.0
        self.over = trio.Event()
        self.found: Addresses = []
        self.failure: BaseException | None = None


@final
class NameLookups(trio.abc.HostnameResolver):
    """trio's resolver for host names after `use_name_lookups`. Requests for one name that come at
    the same time share a lookup. `look_up` is `socket.getaddrinfo`.
    """

    def __init__(
        self,
        look_up: Callable[..., Addresses] = socket.getaddrinfo,
        current_time: Callable[[], float] = trio.current_time,
    ) -> None:
        self._look_up = look_up
        self._current_time = current_time
        self._names: dict[Query, _Name] = {}

    def __repr__(self) -> str:
        num_running = sum(name.num_running for name in self._names.values())
        return f"<NameLookups of {len(self._names)} names in {num_running} threads>"

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002 (named by trio)
        proto: int = 0,
        flags: int = 0,
    ) -> Addresses:
        """The addresses of `host`. Raises `OSError`."""
        query = host, port, family, type, proto, flags
        name = self._names.get(query)
        if name is None:
            name = self._names[query] = _Name()
        now = self._current_time()
        is_late = name.num_running > 0 and now - name.begun_at >= AGAIN_S
        if name.num_running == 0 or (is_late and name.num_running < MAX_AT_ONCE):
            self._begin(query, name, now)
        await name.over.wait()
        if name.failure is not None:
            raise _again(name.failure)
        return name.found

    async def getnameinfo(
        self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int
    ) -> tuple[str, str]:
        """The name of an address, which nothing here asks for."""
        return await trio.to_thread.run_sync(socket.getnameinfo, sockaddr, flags)

    def _begin(self, query: Query, name: _Name, now: float) -> None:
        token = trio.lowlevel.current_trio_token()

        def tell(result: Outcome[Addresses]) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._end, query, name, result)

        try:
            trio.lowlevel.start_thread_soon(partial(self._look_up, *query), tell, "name lookup")
        except RuntimeError as error:  # the system cannot start a thread now
            if not name.num_running:
                del self._names[query]
                raise OSError(f"no thread for a name lookup: {error}") from error
            return  # running lookups may find the address
        name.num_running += 1
        name.begun_at = now

    def _end(self, query: Query, name: _Name, result: Outcome[Addresses]) -> None:
        """A lookup is over."""
        name.num_running -= 1
        if name.over.is_set():
            return
        # Any failure: one that is raised here would end the whole run of trio.
        if isinstance(result, Error):
            if name.num_running:
                return  # a later lookup may find the address
            name.failure = result.error
        else:
            name.found = result.unwrap()
        # Requests from now on ask anew.
        del self._names[query]
        name.over.set()


def _again(error: BaseException) -> OSError:
    """`error` for one of several requests that raise it. A name that cannot be written as one, as
    with a label of 64 letters, is an unknown one.
    """
    if isinstance(error, OSError):
        return type(error)(*error.args)
    return socket.gaierror(socket.EAI_NONAME, str(error))


def use_name_lookups() -> None:
    """Look up host names by `NameLookups` in this run of trio."""
    trio.socket.set_custom_hostname_resolver(NameLookups())
