"""A request that ends while it waits for the ledger leaves nothing reserved or held.

Its client may leave, or a shutdown may break its wait off, before the disk has its claim or while
it is written.
"""

import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from config import (
    Config,
    ConversationLimitsConfig,
    FallbackConfig,
    LedgerConfig,
    PriceConfig,
    ProviderConfig,
)
from gateway.api import ApiError, ChatRequest, stopping
from gateway.runtime import break_off
from gateway.spending import Spending
from gateway.store import LedgerStore
from gateway.telemetry import Limited
from tests.fakes.running_gateway import wait_until
from tests.fakes.worker import PATIENCE_S

LIMITS = ConversationLimitsConfig(money=1.0)
LIMITED = Limited("k", "talk", LIMITS)
TARGET = FallbackConfig(provider="p", model="m")
REQUEST = ChatRequest("m", (), {"messages": [], "max_tokens": 10}, max_tokens=10)
OTHER = Limited("k", "another", LIMITS)


class SteppedLedger(LedgerStore):
    """The real ledger, each write of which waits for `gate`."""

    gate = threading.Semaphore(0)
    num_asked = 0

    def write(self, *parts: Any) -> frozenset[int]:
        SteppedLedger.num_asked += 1
        assert self.gate.acquire(timeout=PATIENCE_S)
        return super().write(*parts)


@pytest.fixture(autouse=True)
def _stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SteppedLedger, "gate", threading.Semaphore(0))
    monkeypatch.setattr(SteppedLedger, "num_asked", 0)
    monkeypatch.setattr("gateway.spending.spending.LedgerStore", SteppedLedger)


@asynccontextmanager
async def open_spending(path: Path) -> AsyncIterator[Spending]:
    table = ProviderConfig(base_url="http://p/v1", price=PriceConfig(input=1.0, output=1.0))
    config = Config(providers={"p": table}, ledger=LedgerConfig(path=str(path)))
    async with trio.open_nursery() as nursery:
        spending = Spending(config, os.environ, lambda _: None)
        await nursery.start(spending.run)
        yield spending
        SteppedLedger.gate.release(100)
        nursery.cancel_scope.cancel()


def left_in(path: Path) -> list[int]:
    """How many reservations and holds the file has."""
    with closing(sqlite3.connect(path)) as db:
        tables = ("reservations", "conversation_holds")
        return [db.execute(f"SELECT count(*) FROM {one}").fetchone()[0] for one in tables]


async def bill_of_a_limited(spending: Spending) -> object:
    return await spending.open_bill_of(LIMITED, "k", "m", TARGET, REQUEST)


async def hold_of_a_turn(spending: Spending) -> object:
    return await spending.hold(LIMITED, tokens=5, turns=1)


ASKS: dict[str, tuple[Callable[[Spending], Awaitable[object]], int]] = {
    "a reservation": (bill_of_a_limited, 1),
    "the hold behind a reservation": (bill_of_a_limited, 2),
    "a turn's hold": (hold_of_a_turn, 1),
}
"""What asks, and its write at which it is cut off."""


async def hold_another(spending: Spending) -> None:
    number = await spending.hold(OTHER, tokens=1)
    assert isinstance(number, int)
    spending.release(number)


@pytest.mark.parametrize("by", ["its client", "a shutdown"])
@pytest.mark.parametrize(
    ("what", "is_written"),
    [*((one, True) for one in ASKS), ("a reservation", False), ("a turn's hold", False)],
)
async def test_a_wait_that_is_cut_off_leaves_nothing(
    tmp_path: Path, what: str, is_written: bool, by: str
) -> None:
    path = tmp_path / "l.sqlite"
    ask, last_write = ASKS[what]
    scope, tasks, ended = trio.CancelScope(), list[trio.lowlevel.Task](), trio.Event()

    async with open_spending(path) as spending, trio.open_nursery() as nursery:

        async def ask_until_cut() -> None:
            tasks.append(trio.lowlevel.current_task())
            with scope:
                try:
                    await ask(spending)
                except ApiError as error:
                    assert (by, error.status) == ("a shutdown", 503)
            ended.set()

        if not is_written:
            nursery.start_soon(hold_another, spending)
            await wait_until(lambda: SteppedLedger.num_asked == 1)
        nursery.start_soon(ask_until_cut)
        if is_written:
            for number in range(1, last_write):
                await wait_until(lambda number=number: SteppedLedger.num_asked == number)
                SteppedLedger.gate.release()
            await wait_until(lambda: SteppedLedger.num_asked == last_write)
        else:
            await wait_all_tasks_blocked()
        if by == "its client":
            scope.cancel()
        else:
            break_off(tasks[0], stopping(has_begun=False))
        await ended.wait()
        SteppedLedger.gate.release(100)
        await hold_another(spending)  # what came before is written with it
        await wait_until(lambda: left_in(path) == [0, 0])
        assert spending.figures().reserved.get("p", 0) == 0
