"""The table of a device, whose workers are the test."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from protocol.errors import WireError
from tests.fakes.fixed_card import GIB, FixedCard
from tests.fakes.worker_process import BOUND_S
from workers.supervisor import turn_table
from workers.supervisor.card_memory import CardMemory, CardUse
from workers.supervisor.turn_table import (
    MAX_LINE_BYTES,
    TurnTable,
    _Seat,
    card_of,
    lines_of,
    opened_at,
)
from workers.turns import (
    Member,
    MemberState,
    Order,
    SharedCard,
    decode_order,
    decode_report,
    encode_report,
    policy,
)
from workers.turns.pauses import with_pause


class Worker:
    """A connection. Unless told otherwise it has one request, and needs 60 GiB."""

    def __init__(self, stream: trio.SocketStream, lines: AsyncIterator[bytes]) -> None:
        self.stream = stream
        self._lines = lines

    async def say(self, state: MemberState, *, pause_s: float = 0.02, **facts: Any) -> None:
        """Report, and let the table think about it. Times are from now; `waits_s` is its pause."""
        said = {"awake_bytes": 60 * GIB, "waiting": 1, "waited_s": 1.0, "oldest_at": -1.0}
        wait = {"must_wait_until": facts.pop("waits_s", 0.0)}
        member = Member(**{"name": "w", "state": state, **said, **wait, **facts})
        await self.stream.send_all(encode_report(member, 0.0))
        await trio.testing.wait_all_tasks_blocked(pause_s)

    async def hear(self) -> Order:
        with trio.fail_after(BOUND_S):
            return decode_order(await anext(self._lines))

    async def news(self) -> list[Order]:
        """The orders up to the first that says why it does not wake, without mere forecasts."""
        told = [await self.hear()]
        while not told[-1].why:
            told.append(await self.hear())
        return [one for one in told if one.do is not None or one.why]


@asynccontextmanager
async def seated(address: Path) -> AsyncIterator[Worker]:
    stream = await trio.open_unix_socket(str(address))
    assert isinstance(stream, trio.SocketStream)
    lines = cast("AsyncGenerator[bytes, None]", lines_of(stream))
    async with stream, aclosing(lines):
        yield Worker(stream, lines)


@asynccontextmanager
async def opened(card: FixedCard, folder: Path) -> AsyncIterator[Path]:
    """The address of a table."""
    one = TurnTable(cast("CardMemory", card), lambda _: None)
    async with trio.open_nursery() as nursery:
        address = folder / "table"
        nursery.start_soon(one.serve, opened_at(address), folder / "lock", address)
        yield folder / "table"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def table(card: FixedCard, folder: Path) -> AsyncIterator[Worker]:
    async with opened(card, folder) as address, seated(address) as worker:
        yield worker


async def test_after_a_wake_that_failed_the_device_is_read_before_the_next_try(
    tmp_path: Path,
) -> None:
    """After a failed wake the device is read before the next try. By the old reading the table
    would wake the worker again and again; by the new one it reports what others hold, and wakes the
    worker once that is gone.
    """
    card = FixedCard(tmp_path)
    async with table(card, tmp_path) as worker:
        await worker.say("asleep")
        first = await worker.hear()
        assert first.do == "wake"
        card.others = 79 * GIB
        await worker.say("waking", order=first.number)
        await worker.say("asleep", order=first.number, waits_s=0.05)
        (order,) = await worker.news()
        assert (order.do, "other processes hold 79.00 GiB" in order.why) == (None, True)


async def test_news_are_decided_on_before_a_reading_that_is_only_due(tmp_path: Path) -> None:
    """The driver may be slow to answer. It is asked right behind the decision."""
    card = FixedCard(tmp_path)
    one = TurnTable(cast("CardMemory", card), lambda _: None)
    asked = trio.Event()

    async def slow() -> CardUse:
        asked.set()
        await trio.sleep_forever()
        raise AssertionError

    async with trio.open_nursery() as nursery:
        address = tmp_path / "table"
        nursery.start_soon(one.serve, opened_at(address), tmp_path / "lock", address)
        async with seated(tmp_path / "table") as worker:
            await worker.say("asleep", waiting=0, oldest_at=None)
            with trio.fail_after(BOUND_S):
                while one._read_at < 0.0:  # noqa: ASYNC110 (the table tells nobody)
                    await trio.sleep(0.01)
            one._read_at -= 1.5 * turn_table.READ_EVERY_S
            card.read = slow  # type: ignore[method-assign]
            await worker.say("asleep")
            order = await worker.hear()
            assert order.do == "wake"
            await worker.say("waking", order=order.number)
            assert not asked.is_set(), "its memory is changing"
            await worker.say("awake", order=order.number)
            with trio.fail_after(BOUND_S):
                await asked.wait()
        nursery.cancel_scope.cancel()


async def test_the_policy_is_told_the_pauses_that_the_table_has_seen(
    tmp_path: Path, autojump_clock: object
) -> None:
    """The policy gets the pauses that the table has seen, each seat's own, because two workers may
    have one name. They are forgotten with the seat.
    """
    one = TurnTable(cast("CardMemory", FixedCard(tmp_path)), lambda _: None)
    seats = [_Seat(cast("trio.SocketStream", None)) for _ in range(2)]
    one._seats = dict(enumerate(seats))

    def hear(number: int, running: int) -> None:
        said = encode_report(Member("w", "awake", running=running, must_wait_until=0.0), 0.0)
        one._hear(number, seats[number], said.rstrip())

    def pauses() -> list[tuple[float, ...]]:
        return [member.pauses for member in one._members(trio.current_time())]

    for pause_s in (3.0, 0.5):
        hear(0, 1)
        hear(1, 1)
        hear(0, 0)
        await trio.sleep(pause_s)
    hear(0, 1)
    assert pauses() == [with_pause(with_pause((), 3.0), 0.5), ()]
    one._lose(0)
    one._seats[0] = seats[0]
    assert pauses() == [(), ()]


async def test_workers_of_two_files_may_have_the_same_name(tmp_path: Path) -> None:
    """The order to one of them reached both: one that served fell asleep for itself."""
    async with opened(FixedCard(tmp_path), tmp_path) as address, seated(address) as first:
        await first.say("awake", running=0, waiting=0, since=-900.0, idle_since=-900.0)
        async with seated(address) as second:
            await second.say("asleep", waited_s=900.0, oldest_at=-900.0, since=-900.0)
            told = await first.hear()
            assert (told.do, told.number) == ("sleep", 1)
            await first.say("asleep", order=1, waiting=0)
            orders = [await second.hear()]
            while orders[-1].do is None:
                orders.append(await second.hear())
            assert orders[-1].do == "wake"
            with trio.move_on_after(0.2) as waited:
                await first.hear()
            assert waited.cancelled_caught


async def test_an_order_that_was_not_taken_yet_is_not_given_again(tmp_path: Path) -> None:
    """The worker may report something else before."""
    card = FixedCard(tmp_path)
    async with table(card, tmp_path) as worker:
        await worker.say("asleep")
        assert (await worker.hear()).do == "wake"
        await worker.say("asleep", waiting=2)
        card.others = 79 * GIB
        await worker.say("asleep", order=1, waits_s=0.05)
        assert [one.do for one in await worker.news()] == [None]


async def test_an_order_that_was_not_taken_yet_counts_as_the_change_that_it_asks_for(
    tmp_path: Path,
) -> None:
    """The forecast stays that of a wake, whatever the worker says meanwhile."""
    async with table(FixedCard(tmp_path), tmp_path) as worker:
        await worker.say("asleep")
        first = await worker.hear()
        assert (first.do, first.due_s) == ("wake", policy.PRIOR_WAKE_S)
        await worker.say("asleep", waiting=2)
        with trio.move_on_after(0.2) as waited:
            await worker.hear()
        assert waited.cancelled_caught


async def test_while_memory_is_missing_the_device_is_read_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker says anything when another process gives its memory back."""
    monkeypatch.setattr(turn_table, "READ_EVERY_S", 10 * BOUND_S)
    monkeypatch.setattr(turn_table, "READ_SHORT_S", 0.05)
    card = FixedCard(tmp_path)
    card.others = 79 * GIB
    async with table(card, tmp_path) as worker:
        await worker.say("asleep")
        await worker.news()
        card.others = 0
        while (order := await worker.hear()).do is None:
            pass
        assert order.do == "wake"


async def test_the_place_of_a_worker_that_left_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place of a worker that left is free at once, and not with the next reading or try."""
    for module, name in ((turn_table, "READ_SHORT_S"), (policy, "RETRY_S")):
        monkeypatch.setattr(module, name, 10 * BOUND_S)
    card = FixedCard(tmp_path)
    async with opened(card, tmp_path) as address, seated(address) as worker:
        async with seated(address) as other:
            await other.say("away", is_always=True, waiting=0)
            await worker.say("asleep")
            (order,) = await worker.news()
            assert "always resident models hold 60.00 GiB" in order.why
        while (order := await worker.hear()).do is None:
            pass
        assert order.do == "wake"


async def test_after_a_worker_with_memory_has_left_nothing_is_decided_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a worker with memory has left, nothing is decided at once: it may connect again, or its
    supervisor has died and its engine ends a little later, and another worker would wake beside it.
    Memory that is held after that counts as other processes'.
    """
    card = FixedCard(tmp_path)
    async with opened(card, tmp_path) as address, seated(address) as worker:
        async with seated(address) as other:
            await other.say("awake", waiting=0)
            await worker.say("asleep", waiting=0, waited_s=0.0, oldest_at=None)
            await trio.sleep(2 * turn_table.SETTLE_S)
            card.others = 60 * GIB
            monkeypatch.setattr(turn_table, "SETTLE_S", 1.0)
        left_at = trio.current_time()
        await worker.say("asleep")
        (order,) = await worker.news()
        assert trio.current_time() - left_at >= 0.9
        assert (order.do, "other processes hold 60.00 GiB" in order.why) == (None, True)


async def test_nothing_is_decided_at_once_after_one_has_left_during_a_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading was of a device with that worker: what it holds is neither its own any more nor
    others'.
    """
    is_reading, is_due = trio.Event(), trio.Event()

    class SlowCard(FixedCard):
        async def read(self) -> CardUse:
            is_reading.set()
            await is_due.wait()
            return await super().read()

    card = SlowCard(tmp_path)
    async with opened(card, tmp_path) as address, seated(address) as worker:
        async with seated(address) as other:
            await other.say("awake", waiting=0)
            await worker.say("asleep")
            with trio.fail_after(BOUND_S):
                await is_reading.wait()
            monkeypatch.setattr(turn_table, "SETTLE_S", 1.0)
            card.others = 60 * GIB
        left_at = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        is_due.set()
        (order,) = await worker.news()
        assert trio.current_time() - left_at >= 0.9
        assert (order.do, "other processes hold 60.00 GiB" in order.why) == (None, True)


async def test_a_wait_of_which_nothing_new_is_said_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone request has no other news than its age: once it has waited for as long as the change
    costs the one at work, that is put to sleep, long before all patience is at an end.
    """
    monkeypatch.setattr(policy, "MIN_PATIENCE_S", 10 * BOUND_S)
    times = {"wake_s": 0.2, "sleep_s": 0.1}
    came = {"running": 1, "waiting": 0, "waited_s": 0.0, "since": -99.0}
    async with (
        opened(FixedCard(tmp_path), tmp_path) as address,
        seated(address) as worker,
        seated(address) as other,
    ):
        await other.say("awake", name="other", oldest_at=0.0, **came, **times)
        await worker.say("asleep", waited_s=0.0, oldest_at=-0.2, since=-9.0, **times)
        assert (await other.hear()).do == "sleep"


async def test_a_worker_that_does_not_read_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose process is stopped does not read and keeps no other waiting: messages fill its
    socket, and the supervisor that decides must not wait there.
    """
    monkeypatch.setattr(turn_table, "READ_WITHIN_S", 0.2)
    card = FixedCard(tmp_path)
    async with (
        opened(card, tmp_path) as address,
        seated(address) as worker,
        seated(address) as stopped,
    ):
        with suppress(trio.BrokenResourceError):
            for number in range(2000):
                needs = (90 + number % 2) * GIB
                await stopped.say("asleep", pause_s=0.0, name="s" * 200, awake_bytes=needs)
        await worker.say("asleep")
        assert (await worker.hear()).do == "wake"


async def test_a_worker_that_takes_no_order_loses_its_seat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose process is stopped takes no order and loses its seat: a change that never
    begins would keep all others waiting.
    """
    monkeypatch.setattr(turn_table, "TAKEN_WITHIN_S", 0.2)
    card = FixedCard(tmp_path)
    async with (
        opened(card, tmp_path) as address,
        seated(address) as worker,
        seated(address) as stopped,
    ):
        await stopped.say("asleep", name="stopped")
        assert (await stopped.hear()).do == "wake"
        await worker.say("asleep")
        while (order := await worker.hear()).do is None:
            pass
        assert order.do == "wake"
        with trio.fail_after(BOUND_S):  # it would dial again
            assert await stopped.stream.receive_some() == b""


async def test_the_device_is_not_read_while_its_memory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_table, "SETTLE_S", 0.0)
    reads: list[float] = []

    class CountedCard(FixedCard):
        async def read(self) -> CardUse:
            reads.append(trio.current_time())
            return await super().read()

    async with table(CountedCard(tmp_path), tmp_path) as worker:
        await trio.sleep(0.01)
        for state in ("waking", "falling asleep"):
            await worker.say(state)
            assert not reads
        await worker.say("awake")
        with trio.fail_after(BOUND_S):
            while not reads:  # noqa: ASYNC110 (a reading tells nobody)
                await trio.sleep(0.01)


async def test_nothing_is_decided_before_the_workers_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before has died with its table. A worker with work comes first, and what the one
    holds that is awake is not taken for other processes' memory.
    """
    monkeypatch.setattr(turn_table, "SETTLE_S", 10 * BOUND_S)
    reads: list[float] = []

    class CountedCard(FixedCard):
        async def read(self) -> CardUse:
            reads.append(trio.current_time())
            return await super().read()

    async with table(CountedCard(tmp_path), tmp_path) as worker:
        await worker.say("asleep")
        await worker.say("asleep", waiting=2, wants_look=True)
        assert not reads
        with trio.move_on_after(0.1) as waited:
            await worker.hear()
        assert waited.cancelled_caught


async def test_a_first_look_begins_once_the_table_has_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first look begins once the table has settled, without another event: other workers have had
    the time to come.
    """
    monkeypatch.setattr(turn_table, "READ_EVERY_S", 10 * BOUND_S)
    async with table(FixedCard(tmp_path), tmp_path) as worker:
        await worker.say("asleep", waiting=0, waited_s=0.0, oldest_at=None, wants_look=True)
        assert (await worker.hear()).do == "wake"


def test_what_no_worker_holds_is_others() -> None:
    """Memory that no worker holds, by what each holds awake or asleep, is other processes'. Beside
    a worker that was not measured it is unknown.
    """
    used = CardUse(80, 70)
    asleep = Member("a", "asleep", awake_bytes=60, asleep_bytes=5)
    awake = Member("b", "awake", awake_bytes=40)
    before = SharedCard(80, 7)
    assert card_of(used, [asleep, awake], before) == SharedCard(80, 25)
    assert card_of(used, [asleep, Member("c", "awake")], before) == before
    assert card_of(CardUse(80, 30), [awake], before) == SharedCard(80, 0)
    assert card_of(None, [awake], before) == SharedCard()


def test_a_report_is_the_member_on_another_clock() -> None:
    """All of it: what is lost here is decided as if it were not so."""
    member = Member(
        "w", "asleep", is_always=True, awake_bytes=60, asleep_bytes=5, wake_s=2.0, sleep_s=1.0,
        waiting=3, running=4, waited_s=9.0, oldest_at=994.0, since=993.0, idle_since=992.0,
        idle_s=30.0, wish="sleep", must_wait_until=1005.0, wants_look=True, order=7,
    )  # fmt: skip
    assert decode_report(encode_report(member, 1000.0), 100.0) == msgspec.structs.replace(
        member, oldest_at=94.0, since=93.0, idle_since=92.0, must_wait_until=105.0
    )
    plain = Member("w", "awake", must_wait_until=1000.0)
    assert decode_report(encode_report(plain, 1000.0), 100.0).oldest_at is None


async def test_the_socket_is_this_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        listener = opened_at(tmp_path / "table")
    finally:
        os.umask(before)
    async with listener:
        assert (tmp_path / "table").stat().st_mode & 0o777 == 0o600


async def test_a_line_without_an_end_is_refused() -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        yield b"first\n"
        for _ in range(4):
            yield b"x" * (MAX_LINE_BYTES // 2)

    async with aclosing(endless()) as stream:
        lines = lines_of(cast("trio.SocketStream", stream))
        assert await anext(lines) == b"first"
        with pytest.raises(WireError, match=f"a line of over {MAX_LINE_BYTES} bytes"):
            await anext(lines)
