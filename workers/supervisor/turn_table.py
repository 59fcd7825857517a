"""Where the workers of one device agree on their turns: a socket in the runtime directory.

Owns the lock by which one supervisor becomes the one that decides, the connections, the reading of
the device, and the numbers of orders. The lock ends with its process: then another supervisor
decides, and all say again where they are, so nothing is kept. Must not know engines or requests;
`workers.turns` decides.
"""

import fcntl
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import msgspec
import trio

from housekeeping.process_files import runtime_dir
from protocol.errors import ConfigError, WireError
from workers.supervisor.card_memory import CardMemory, CardUse
from workers.turns import (
    Change,
    Member,
    Order,
    PauseWatch,
    SharedCard,
    TurnPlan,
    TurnPolicy,
    decode_report,
    encode_order,
)

MAX_LINE_BYTES: Final = 65_536
_BACKLOG: Final = 64
LOOK_S: Final = 5.0
"""How often the files of the table are looked for. A cleaner of temporary files may take them, and
the folder of a user is removed when the last session ends: workers that come could not find the
table then, and the lock would keep nobody from opening another.
"""
SETTLE_S: Final = 0.5
"""After a table has opened, its workers get this time to come before anything is decided: what one
holds that is not there yet would look like memory of other processes, or like none. So it is after
one with memory has left: it comes again, or its engine ends a little after it.
"""
READ_EVERY_S: Final = 60.0
READ_SHORT_S: Final = 5.0
"""The intervals at which the device is read; `READ_SHORT_S` while the memory for a wake is missing.
After a failed wake the device is read at the end of the worker's pause, because the reading before
the wake had allowed it.
"""
READ_WITHIN_S: Final = 1.0
TAKEN_WITHIN_S: Final = 10.0
"""A worker that does not read its full socket within the first time, or does not take an order
within the second, is stopped or hangs. It loses its seat, because all others wait for it. Its
process dials again once it runs on.
"""


@dataclass
class _Seat:
    """A connected worker: what it last said, and when; the `number` of the last order to it, when
    that was given, and the number of the last that it has taken.
    """

    stream: trio.SocketStream
    member: Member | None = None
    heard_at: float = 0.0
    number: int = 0
    ordered_at: float = 0.0
    do: Change | None = None
    due_s: float = 0.0
    why: str = ""
    taken: int = 0


@final
class TurnTable:
    """The table of one device. `serve` runs until cancelled, in the process that holds the lock."""

    def __init__(self, memory: CardMemory, log: Callable[[str], None]) -> None:
        self._memory = memory
        self._log = log
        self._policy = TurnPolicy()
        self._pauses = PauseWatch()
        self._seats: dict[int, _Seat] = {}
        self._numbers = 0
        self._changed = trio.Event()
        self._card = SharedCard()
        self._read_at = self._read_again_at = self._settles_at = float("-inf")

    async def serve(self, listener: trio.SocketListener, lock: Path, address: Path) -> None:
        """Decide for those who dial `address`, while the file `lock`, which this process has
        locked, is where it was. Makes the socket again if it is gone, with its folder.
        """
        ours = _file_of(lock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._decide_on)
            nursery.start_soon(trio.serve_listeners, self._sit, [listener])
            while _file_of(lock) in (ours, None):
                await trio.sleep(LOOK_S)
                if (again := _opened_again(address)) is not None:
                    nursery.start_soon(trio.serve_listeners, self._sit, [again])
            self._log("another worker may open a table of turns: the lock of this one was removed")
            nursery.cancel_scope.cancel()

    async def _sit(self, stream: trio.SocketStream) -> None:
        number = self._numbers = self._numbers + 1
        seat = self._seats[number] = _Seat(stream)
        try:
            async with stream:
                async for line in lines_of(stream):
                    self._hear(number, seat, line)
        except (trio.BrokenResourceError, trio.ClosedResourceError, WireError) as error:
            self._log(f"a worker has left the table of turns: {error}")
        finally:
            self._lose(number)

    def _lose(self, number: int) -> None:
        """The worker has no seat any more, if it had one."""
        if (seat := self._seats.pop(number, None)) is None:
            return
        self._pauses.forget(_seat_name(number))
        one = seat.member
        if one is not None and (one.held_bytes or one.state not in ("asleep", "away")):
            self._settles_at = self._read_again_at = trio.current_time() + SETTLE_S
        self._changed.set()

    async def _dismiss(self, number: int, why: str) -> None:
        """Remove the seat of a worker that does not listen. The memory that it holds counts as
        memory of other programs.
        """
        seat = self._seats[number]
        assert seat.member is not None
        self._log(f"{seat.member.name} has no turns until it comes again: {why}")
        self._lose(number)
        await trio.aclose_forcefully(seat.stream)

    def _pending(self) -> Iterator[tuple[int, float]]:
        """The seats whose last order is not taken yet, each with when it is late."""
        for number, seat in self._seats.items():
            if seat.taken < seat.number:
                yield number, seat.ordered_at + TAKEN_WITHIN_S

    async def _dismiss_late(self) -> None:
        now = trio.current_time()
        for number, late_at in tuple(self._pending()):
            if late_at <= now and number in self._seats:
                await self._dismiss(number, f"it took no order for {TAKEN_WITHIN_S:g} s")

    def _hear(self, number: int, seat: _Seat, line: bytes) -> None:
        """Raises `WireError`."""
        now = trio.current_time()
        one = seat.member = decode_report(line, now)
        name = _seat_name(number)
        self._pauses.see(name, one.state, has_work=one.has_work, uses=one.uses, now=now)
        seat.heard_at, seat.taken = now, one.order
        if one.state == "asleep" and one.must_wait_until > now:
            self._read_again_at = one.must_wait_until
        self._changed.set()

    async def _decide_on(self) -> None:
        self._settles_at = trio.current_time() + SETTLE_S
        is_news = False
        while True:
            if trio.current_time() < self._settles_at:
                await trio.sleep_until(self._settles_at)
                continue
            self._changed = trio.Event()
            await self._dismiss_late()
            is_put_off = await self._look_at_device(is_news=is_news)
            now = trio.current_time()
            if now < self._settles_at:
                continue  # a worker has left meanwhile
            plan = self._policy.decide(list(self._members(now)), self._card, now)
            for number, seat in tuple(self._seats.items()):
                if seat.member is not None:
                    await self._tell(number, seat, plan)
            until = [late_at for _, late_at in self._pending()]
            until += [now + (READ_SHORT_S if plan.why else READ_EVERY_S)]
            until += [plan.next_at] if plan.next_at is not None else []
            until += [now] if is_put_off else []
            with trio.move_on_at(max(now + 0.01, min(until))) as waited:
                await self._changed.wait()
            is_news = not waited.cancelled_caught

    def _members(self, now: float) -> Iterator[Member]:
        """The workers as they are now: waiting requests have waited since the worker's report too.
        A worker that has not taken its last order counts as if it had. Each is named after its
        seat, because workers of several files may have the same name.
        """
        for number, seat in self._seats.items():
            one = seat.member
            if one is None:
                continue
            waited_s, state = one.waited_s + one.waiting * (now - seat.heard_at), one.state
            if seat.taken < seat.number:
                state = "waking" if seat.do == "wake" else "falling asleep"
            name = _seat_name(number)
            yield msgspec.structs.replace(
                one, name=name, waited_s=waited_s, state=state, pauses=self._pauses.counts(name)
            )

    async def _tell(self, number: int, seat: _Seat, plan: TurnPlan) -> None:
        """Send the worker its order, or its forecast if that differs by a second."""
        name = _seat_name(number)
        due_s, why = plan.due_s.get(name, 0.0), plan.why.get(name, "")
        do: Change | None = None
        if name in plan.sleep:
            do = "sleep"
        elif name in plan.wake:
            do = "wake"
        if do is not None:
            seat.number, seat.do, seat.ordered_at = seat.number + 1, do, trio.current_time()
        elif abs(seat.due_s - due_s) < 1.0 and seat.why == why:
            return
        seat.due_s, seat.why = due_s, why
        with (
            trio.move_on_after(READ_WITHIN_S) as told,
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            await seat.stream.send_all(encode_order(Order(seat.number, do, due_s, why)))
        if told.cancelled_caught and number in self._seats:
            await self._dismiss(number, "it does not read what it is told")

    async def _look_at_device(self, *, is_news: bool) -> bool:
        """Read the device if it is time, unless its memory is changing: what the members do not
        hold is others'. Returns whether that is put off until `is_news` is decided on: a call of
        nvidia-smi takes a tenth of a second, on a busy host a whole one.
        """
        members = [seat.member for seat in self._seats.values() if seat.member is not None]
        is_short = bool(any(seat.why for seat in self._seats.values()))
        now = trio.current_time()
        every_s = READ_SHORT_S if is_short else READ_EVERY_S
        is_needed = self._read_at < self._read_again_at <= now
        if not members or not (is_needed or now >= self._read_at + every_s):
            return False
        if any(one.state in ("waking", "falling asleep") for one in members):
            return False
        if any(self._pending()):
            return False
        if is_news and not is_needed and not is_short and now < self._read_at + 2 * every_s:
            return True
        reading = await self._memory.read()
        self._read_at = trio.current_time()
        self._card = card_of(reading, members, self._card)
        return False


def _seat_name(number: int) -> str:
    return f"seat {number}"


def card_of(reading: CardUse | None, members: list[Member], before: SharedCard) -> SharedCard:
    """The device after a reading. What members hold without having been measured cannot be told
    from what others hold.
    """
    if reading is None:
        return SharedCard()
    awake = [one for one in members if one.state == "awake"]
    if any(one.awake_bytes is None for one in awake):
        return SharedCard(reading.total_bytes, before.other_bytes)
    own = sum(one.awake_bytes or 0 for one in awake)
    own += sum(one.asleep_bytes for one in members if one.state == "asleep")
    return SharedCard(reading.total_bytes, max(0, reading.used_bytes - own))


async def lines_of(stream: trio.SocketStream) -> AsyncIterator[bytes]:
    """The lines of the stream. Raises `WireError` for one that is too long."""
    pending = b""
    async for data in stream:
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            yield line
        if len(pending) > MAX_LINE_BYTES:
            raise WireError(f"a line of over {MAX_LINE_BYTES} bytes")


def opened_at(address: Path) -> trio.SocketListener:
    """Listen at a Unix socket, of this user only. The process that listened there before has
    ended. Raises `OSError`.
    """
    address.unlink(missing_ok=True)
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        plain.bind(str(address))
        address.chmod(0o600)
        plain.listen(_BACKLOG)
    except OSError:
        plain.close()
        raise
    return trio.SocketListener(trio.socket.from_stdlib_socket(plain))


def _opened_again(address: Path) -> trio.SocketListener | None:
    """A listener in place of one whose file is gone; None if it is there, or has no place now."""
    try:
        if address.is_socket():
            return None
        runtime_dir()
        return opened_at(address)
    except (OSError, ConfigError):
        return None


def _file_of(path: Path) -> tuple[int, int] | None:
    """Which file is there; None if none is."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def lock_of(path: Path) -> Iterator[bool]:
    """Try for the lock of the table; yields whether this process has it, for the block."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            found = os.fstat(file)  # it may have been removed since it was opened
            yield (found.st_dev, found.st_ino) == _file_of(path)
    finally:
        os.close(file)
