"""The table of a device, whose one worker is the test."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import cast

import trio

from tests.fakes.fixed_card import GIB, FixedCard
from tests.fakes.worker_process import BOUND_S
from workers.supervisor.card_memory import CardMemory
from workers.supervisor.turn_table import TurnTable, lines_of, opened_at
from workers.turns import MemberReport, MemberState, Order, decode_order, encode_line


class Worker:
    """Its connection: it has one request, and needs 60 GiB."""

    def __init__(self, stream: trio.SocketStream, lines: AsyncIterator[bytes]) -> None:
        self._stream = stream
        self._lines = lines

    async def say(self, state: MemberState, *, waits_s: float = 0.0, order: int = 0) -> None:
        report = MemberReport(
            "w", state, awake_bytes=60 * GIB, waiting=1, waited_s=1.0, oldest_ago_s=1.0,
            waits_s=waits_s, order=order,
        )  # fmt: skip
        await self._stream.send_all(encode_line(report))

    async def hear(self) -> Order:
        with trio.fail_after(BOUND_S):
            return decode_order(await anext(self._lines))


@asynccontextmanager
async def table(card: FixedCard, folder: Path) -> AsyncIterator[Worker]:
    one = TurnTable(cast("CardMemory", card), lambda _: None)
    address = folder / "table"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.serve, opened_at(address))
        stream = await trio.open_unix_socket(str(address))
        assert isinstance(stream, trio.SocketStream)
        async with stream, aclosing(lines_of(stream)) as lines:
            yield Worker(stream, lines)
        nursery.cancel_scope.cancel()


async def test_after_a_wake_that_failed_the_device_is_read_before_the_next_try(
    tmp_path: Path,
) -> None:
    """By its old reading the table would send the worker again and again; by the new one it says
    what others hold, and sends it once they are gone.
    """
    card = FixedCard(tmp_path)
    async with table(card, tmp_path) as worker:
        await worker.say("asleep")
        first = await worker.hear()
        assert first.do == "wake"
        card.others = 79 * GIB
        await worker.say("waking", order=first.number)
        await worker.say("asleep", order=first.number, waits_s=0.05)
        order = await worker.hear()
        while order.do is None and not order.why:  # a forecast
            order = await worker.hear()
        assert (order.do, "other processes hold 79.0 GiB" in order.why) == (None, True)
