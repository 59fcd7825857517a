"""Which connection a request gets, and what becomes of it."""

import httpcore
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.upstream.pool import ConnectionPool


class FakeConnection(httpcore.AsyncConnectionInterface):
    """Idle until it is told otherwise."""

    def __init__(self) -> None:
        self.idle, self.expired, self.closed = True, False, False

    def is_idle(self) -> bool:
        return self.idle

    def has_expired(self) -> bool:
        return self.expired

    async def aclose(self) -> None:
        # As a connection's own may: whoever closes must not be interrupted here.
        await trio.lowlevel.checkpoint()
        self.closed = True


def pool_of(num: int, *, max_idle: int = 8) -> ConnectionPool:
    return ConnectionPool(FakeConnection, max_connections=num, max_idle=max_idle)


async def lent(pool: ConnectionPool) -> FakeConnection:
    connection = await pool.lend(1.0)
    assert isinstance(connection, FakeConnection)
    return connection


async def test_the_newest_is_lent_again() -> None:
    """Those that nobody needs grow old, and are closed when another comes back."""
    pool = pool_of(4)
    first, second = await lent(pool), await lent(pool)
    await pool.take_back(first)
    await pool.take_back(second)
    assert (pool.num_lent, pool.num_idle) == (0, 2)
    assert await lent(pool) is second
    first.expired = True
    await pool.take_back(second)
    assert (first.closed, second.closed, pool.num_idle) == (True, False, 1)


async def test_one_that_has_ended_is_not_lent() -> None:
    """Nor are older ones that have; a new one is made then."""
    pool = pool_of(2)
    first, second = await lent(pool), await lent(pool)
    for connection in (first, second):
        await pool.take_back(connection)
        connection.expired = connection is second
    assert await lent(pool) is first
    first.expired = True
    await pool.take_back(first)
    third = await lent(pool)
    assert third is not first
    assert (first.closed, second.closed, pool.num_lent) == (True, True, 1)


async def test_one_that_cannot_serve_again_is_closed() -> None:
    """So is the oldest over the number that is kept."""
    pool = pool_of(3, max_idle=1)
    one, two, three = [await lent(pool) for _ in range(3)]
    one.idle = False
    for connection in (one, two, three):
        await pool.take_back(connection)
    assert (one.closed, two.closed, three.closed) == (True, True, False)
    assert (pool.num_lent, pool.num_idle) == (0, 1)


async def test_who_waits_too_long_gets_none(autojump_clock: MockClock) -> None:
    """A bound, an error of its own, and no slot lost by it."""
    pool = pool_of(1)
    only = await lent(pool)
    start = trio.current_time()
    with pytest.raises(httpcore.PoolTimeout):
        await pool.lend(3.0)
    assert trio.current_time() - start == 3.0
    await pool.take_back(only)
    assert await lent(pool) is only


async def test_the_first_who_waits_is_the_first_served() -> None:
    """In order, also past one who has left."""
    pool, served = pool_of(1), list[str]()
    only = await lent(pool)

    async def ask(name: str, scope: trio.CancelScope) -> None:
        with scope:
            connection = await lent(pool)
            served.append(name)
            await pool.take_back(connection)

    async with trio.open_nursery() as nursery:
        scopes = {name: trio.CancelScope() for name in "abc"}
        for name, scope in scopes.items():
            nursery.start_soon(ask, name, scope)
            await wait_all_tasks_blocked()
        scopes["a"].cancel()
        await wait_all_tasks_blocked()
        await pool.take_back(only)
    assert served == ["b", "c"]
    assert pool.num_lent == 0


async def test_cancelled_lenders_and_givers_lose_nothing() -> None:
    """Whoever is cancelled while old connections are closed has a connection, or gives it back."""
    pool = pool_of(2)
    one, two = await lent(pool), await lent(pool)
    await pool.take_back(one)
    one.expired = True
    with trio.CancelScope() as scope:
        scope.cancel()
        await pool.take_back(two)
    assert (pool.num_lent, pool.num_idle, one.closed) == (0, 1, True)
    two.expired = True
    with trio.CancelScope() as scope:
        scope.cancel()
        three = await lent(pool)
    assert (pool.num_lent, two.closed) == (1, True)
    await pool.take_back(three)


async def test_a_closed_pool_keeps_nothing() -> None:
    """Idle ones are closed at once, the others when they come back."""
    pool = pool_of(2)
    one, two = await lent(pool), await lent(pool)
    await pool.take_back(one)
    await pool.aclose()
    await pool.take_back(two)
    assert (one.closed, two.closed) == (True, True)
    assert repr(pool) == "<ConnectionPool lent=0 idle=0>"
