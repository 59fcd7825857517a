"""One worker's seat at the table of its device: what it reports, and the orders that it gets.

Owns the demand that gateways report, the measurements and their record, an operator's wish, and the
connection to the table, which this process opens itself if no other has. Must not know how an
engine sleeps (`engine_supervisor.py`), nor who has the next turn (`turn_table.py`).
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn, final

import msgspec
import trio

from config import WorkerConfig
from housekeeping.process_files import make_scratch, remove, runtime_dir
from housekeeping.sizes import bytes_text
from protocol.addresses import IPC_PREFIX, too_long
from protocol.errors import ConfigError, WireError
from protocol.messages import ResidencyState, Wanted
from workers.ipc import NATIVE_SLEEP
from workers.supervisor.card_memory import CardMemory
from workers.supervisor.lifecycle import EngineState, Lifecycle
from workers.supervisor.log import WorkerLog
from workers.supervisor.seat_states import (
    SEATS,
    TRIALS,
    SeatEvent,
    SeatState,
    SleepTrial,
    TrialEvent,
)
from workers.supervisor.turn_table import TurnTable, lines_of, lock_of, opened_at
from workers.turns import (
    Change,
    Member,
    MemberState,
    TurnRecord,
    decode_order,
    encode_report,
    engine_id,
    read_record,
    write_record,
)

AGAIN_S: Final = 5.0
"""The pause after a change that failed."""
TRIAL_IDLE_S: Final = 5.0
"""After this time without work, once, the sleep without an end is tried: the engine falls asleep,
and wakes if its place is free. So a sleep or wake that does not work is found while no request
waits.
"""
_DIAL_AGAIN_S: Final = 0.1
_USED_EVERY_S: Final = 0.05
"""The table hears of work that no gateway has told of yet so often at most."""

_SEEN: Final[dict[EngineState, MemberState]] = {
    EngineState.WAITING: "waking",
    EngineState.STARTING: "waking",
    EngineState.PROBING: "waking",
    EngineState.READY: "awake",
    EngineState.YIELDING: "awake",
    EngineState.HELD: "awake",
    EngineState.DRAINING: "awake",
    # The memory is held until the process has ended, and another process follows.
    EngineState.REPLACING: "waking",
    EngineState.ENDING: "waking",
    EngineState.LINGERING: "waking",
    EngineState.STOPPED: "away",
    EngineState.DROWSY: "falling asleep",
    EngineState.FALLING_ASLEEP: "falling asleep",
    EngineState.ASLEEP: "asleep",
    EngineState.DORMANT: "asleep",
    EngineState.WAKING: "waking",
    EngineState.LEAVING: "awake",
}
_SHOWN: Final[dict[MemberState, ResidencyState]] = {
    "awake": "awake",
    "waking": "waking",
    "falling asleep": "falling asleep",
    "asleep": "asleep",
    "away": "waking",
}

_FULFILLED: Final[dict[Change, tuple[MemberState, ...]]] = {
    "wake": ("awake", "away"),
    "sleep": ("asleep", "away"),
}
"""The states in which a wish is fulfilled. A worker that is `away` has no engine to change, and the
wish was not about a later engine.
"""


@final
class TurnTaker:
    """`seat` and `trial` are states, which `sits` and `tries` alone change. `cannot` says why this
    process cannot sleep by a way, found at its start; `kept` what it kept in its last sleep.
    `on_order` gets orders of the table; `on_news` is called when gateways should be told again
    where the worker is (`shown`, `due_s`, `trouble`).
    """

    def __init__(
        self,
        config: WorkerConfig,
        lifecycle: Lifecycle,
        memory: CardMemory,
        log: WorkerLog,
        record: Path | None,
        file: str,
    ) -> None:
        """`record` is where the measurements are kept, None if there is no such place."""
        self._config = config
        self._lifecycle = lifecycle
        self.memory = memory
        self._log = log
        self._path = record
        self.on_order: Callable[[Change], None] = _ignore_order
        self.on_news: Callable[[], None] = _ignore
        now = trio.current_time()
        self.record = TurnRecord(
            config.name, file, memory.key, engine_id(config), residency=config.residency
        )
        self._demand: dict[int, tuple[Wanted, float]] = {}
        self.seat = SeatState.SETTLED
        self.trial = SleepTrial.NEEDLESS
        self.cannot: dict[str, str] = {}
        self.kept = ""
        self._writing = trio.Lock()
        self._stream: trio.SocketStream | None = None
        self._at_table = trio.CancelScope()
        self._changed = trio.Event()
        self._state = self._see()
        self._since = self._idle_since = now
        self._order_number = self._uses = 0
        self._wish: Change | None = None
        self._waits_until = float("-inf")
        self._trouble = ""
        self._why = ""
        self.due_s = 0.0

    @property
    def is_on_demand(self) -> bool:
        return self._config.residency == "on-demand"

    @property
    def shown(self) -> ResidencyState:
        """The worker's residency for gateways: awake as soon as it serves."""
        return _SHOWN[_SEEN[self._lifecycle.state]]

    @property
    def trouble(self) -> str:
        """Why its last change failed, or why it does not wake; "" if all is well."""
        return self._trouble or self._why

    def load(self) -> None:
        """Read the record of earlier starts, if its engine had the same keys. Blocks."""
        found = read_record(self._path) if self._path is not None else None
        if found is not None and found.engine == self.record.engine:
            self.record = msgspec.structs.replace(
                found, residency=self._config.residency, device=self.memory.key
            )

    def retune(self, config: WorkerConfig) -> None:
        """Use the `idle_s` of `config` from now on."""
        self._config = config
        self.note()

    def reconfigure(self, config: WorkerConfig) -> bool:
        """The next engine has this configuration. With other keys nothing is known of it, and it
        may be on another device, at whose table the worker sits down then. Returns whether an
        engine's keys differ.
        """
        self._config = config
        if engine_id(config) == self.record.engine:
            return False
        memory = CardMemory(config, os.environ)
        has_moved = memory.key != self.memory.key
        self.memory = memory
        self.record = TurnRecord(
            config.name, self.record.file, memory.key, engine_id(config), residency=config.residency
        )
        if has_moved:
            self._at_table.cancel()
        return True

    # What the worker learns.

    def wanted(self, link: int, wanted: Wanted) -> None:
        """A gateway says how much work it has."""
        had_work = self._has_work
        self._demand[link] = wanted, trio.current_time()
        self._note_work(had_work)

    def used(self) -> None:
        """Work was sent to the engine. That gateways say so comes later, and not at all for what is
        soon done.
        """
        self._uses += 1
        now = trio.current_time()
        if not self._has_work and now >= self._idle_since + _USED_EVERY_S:
            self._idle_since = now
            self.note()

    def gone(self, link: int) -> None:
        """A gateway is gone, and its demand with it."""
        had_work = self._has_work
        if self._demand.pop(link, None) is not None:
            self._note_work(had_work)

    def wish(self, change: Change) -> None:
        """An operator asks for a change. Raises `ConfigError` if the worker takes no turns."""
        if not self.is_on_demand:
            raise ConfigError(
                f'{self._config.serves} is always resident: set residency = "on-demand" in its '
                "[[models]] table"
            )
        self._wish = change
        self.tries(TrialEvent.WISH)
        self._waits_until = float("-inf")
        self.note()

    def failed(self, why: str, again_s: float = AGAIN_S) -> None:
        """A change has failed, or cannot begin; the next try comes after a pause. `why` is "" if an
        order came too late, or if the death of an engine says it.
        """
        self._waits_until = trio.current_time() + again_s
        if why and why != self._trouble:
            self._log.warning(why)
        self._trouble = why or self._trouble
        self.note()
        self.on_news()

    def say(self, why: str) -> None:
        """Say what went wrong with a change after which the worker needs no pause."""
        self._log.warning(why)
        self._trouble = why
        self.note()
        self.on_news()

    def sits(self, event: SeatEvent) -> None:
        """Take an event of the seat. Raises `ImpossibleEventError` for what cannot happen."""
        self.seat = SEATS[self.seat, event]

    def tries(self, event: TrialEvent) -> None:
        """Take an event of the trial. What an operator puts to sleep is not woken for a look."""
        if event is TrialEvent.SLEEP and self._wish == "sleep":
            event = TrialEvent.WISH
        self.trial = TRIALS[self.trial, event]

    def succeeded(self) -> None:
        """The last change went well."""
        self._trouble = ""

    async def measured(self, **facts: int | float | str | dict[str, str] | None) -> None:
        """Keep these measurements, fields of `TurnRecord`."""
        self.record = msgspec.structs.replace(self.record, **facts)
        self.note()
        if self._path is None:
            return
        async with self._writing:
            if self._path is None:
                return
            try:
                await trio.to_thread.run_sync(write_record, self._path, self.record)
            except ConfigError as error:
                self._log.warning(
                    f"what its sleep takes is measured again after a restart: {error}"
                )
                self._path = None

    def note(self) -> None:
        """Report to the table that something has changed."""
        now = trio.current_time()
        state = self._see()
        if state != self._state:
            self._state, self._since = state, now
            if state == "awake":
                self._idle_since = now
                self.succeeded()
        if self._wish is not None and state in _FULFILLED[self._wish]:
            self._wish = None
        self._changed.set()

    def line(self) -> str:
        """A line for people: the memory that it holds, since when it sleeps, and what keeps it from
        waking.
        """
        now, record = trio.current_time(), self.record
        parts = []
        if self._state == "asleep":
            parts.append(f"asleep for {now - self._since:.0f} s")
        # The forecast of a worker that is awake is that of its last wake.
        if self.due_s and self._state != "awake":
            parts.append(f"awake in about {self.due_s:.0f} s")
        if record.awake_bytes is not None:
            parts.append(f"takes {bytes_text(record.awake_bytes)} of {record.device} awake")
        if record.asleep_bytes:
            parts.append(f"{bytes_text(record.asleep_bytes)} asleep")
        if record.host_bytes:
            parts.append(f"{bytes_text(record.host_bytes)} of the host then")
        if record.wake_s is not None:
            parts.append(f"wakes in {record.wake_s:.1f} s")
        if record.sleep_s is not None:
            parts.append(f"falls asleep in {record.sleep_s:.1f} s")
        if record.way:
            kept = f" ({self.kept})" if self.kept and record.way == NATIVE_SLEEP else ""
            parts.append(f"by {record.way}{kept}")
        refusals = {**record.refusals, **self.cannot}
        parts += [f"not by {way}: {why}" for way, why in refusals.items()]
        if self.trouble:
            parts.append(self.trouble)
        return "; ".join(parts)

    # The connection.

    async def run(self) -> None:
        """Keep the seat until cancelled. Where no other worker can come the worker is alone at a
        table of its own: it wakes by what the device has free.
        """
        try:
            folder = runtime_dir()
            why = too_long(f"{IPC_PREFIX}{folder / self._file_name('sock')}")
        except ConfigError as error:
            why = str(error)
        if why is None:
            await self._sit_in(folder)
        self._log.warning(f"it agrees with no other worker of its device on turns: {why}")
        folder = make_scratch("turns")
        try:
            await self._sit_in(folder)
        finally:
            remove(folder)

    async def _sit_in(self, folder: Path) -> NoReturn:
        """Keep the seat at the tables in this folder."""
        while True:
            with trio.CancelScope() as self._at_table:  # until the worker moves to another device
                await self._sit(folder)

    def _file_name(self, ending: str) -> str:
        return f"turns-{self.memory.key}.{ending}"

    async def _sit(self, folder: Path) -> None:
        """Keep the seat at the table of one device."""
        lock, address = (folder / self._file_name(ending) for ending in ("lock", "sock"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._host, lock, address)
            nursery.start_soon(self._speak)
            while True:
                await self._listen(address)
                await trio.sleep(_DIAL_AGAIN_S)

    async def _host(self, lock: Path, address: Path) -> None:
        """Open the table if no other worker has it open, or once the worker that has it is gone."""
        said = ""
        while True:
            pause_s = _DIAL_AGAIN_S
            try:
                with lock_of(lock) as is_ours:
                    if is_ours:
                        listener = opened_at(address)
                        table = TurnTable(self.memory, self._log.info)
                        await table.serve(listener, lock, address)
            except OSError as error:
                pause_s, why = AGAIN_S, f"the table of turns cannot open: {error}"
                if why != said:
                    self._log.warning(why)
                said = why
                with suppress(ConfigError):
                    runtime_dir()  # which may have been removed
            await trio.sleep(pause_s)

    async def _listen(self, address: Path) -> None:
        try:
            stream = await trio.open_unix_socket(str(address))
        except OSError:
            return  # no process has opened the table yet
        assert isinstance(stream, trio.SocketStream)
        self._stream, self._order_number = stream, 0
        self._changed.set()
        try:
            async with stream:
                async for line in lines_of(stream):
                    self._take(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # its process has ended; another one opens the table
        except WireError as error:
            self._log.warning(f"the table of turns speaks another language: {error}")
        finally:
            self._stream = None

    def _take(self, line: bytes) -> None:
        order = decode_order(line)
        is_news = abs(order.due_s - self.due_s) >= 1.0 or order.why != self._why
        self.due_s, self._why = order.due_s, order.why
        if order.do is not None:
            self._order_number = order.number
            if self.is_on_demand:
                self.on_order(order.do)
            self.note()
        if is_news:
            self.on_news()

    async def _speak(self) -> None:
        """Report each change. Many changes at once make one report."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            if self._stream is not None:
                try:
                    now = trio.current_time()
                    await self._stream.send_all(encode_report(self.report(now), now))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    # The reader sees the lost connection too, and dials again.
                    await trio.sleep(_DIAL_AGAIN_S)

    def report(self, now: float) -> Member:
        """The report to the table of turns at `now`."""
        record = self.record
        demands = [(one, at) for one, at in self._demand.values()]
        oldest = [at - one.oldest_s for one, at in demands if one.waiting or one.running]
        return Member(
            self._config.name,
            self._state,
            # A held worker is not put to sleep, nor one that leaves.
            is_always=not self.is_on_demand or self._is_kept,
            awake_bytes=record.awake_bytes,
            asleep_bytes=record.asleep_bytes,
            wake_s=self._next_wake_s,
            sleep_s=record.sleep_s,
            waiting=sum(one.waiting for one, _ in demands),
            running=sum(one.running for one, _ in demands),
            waited_s=sum(one.waited_s + one.waiting * (now - at) for one, at in demands),
            oldest_at=min(oldest, default=None),
            since=self._since,
            idle_since=self._idle_since,
            idle_s=self._idle_s,
            wish=self._wish,
            must_wait_until=max(now, self._waits_until),
            wants_look=self.is_on_demand and self._wants_look,
            order=self._order_number,
            uses=self._uses,
        )

    @property
    def _next_wake_s(self) -> float | None:
        """Without a process the next wake is a start, however the worker sleeps."""
        is_gone = self._lifecycle.state is EngineState.ASLEEP and self.record.start_s is not None
        return self.record.start_s if is_gone else self.record.wake_s

    @property
    def _idle_s(self) -> float | None:
        """The idle time in seconds after which it sleeps although no other worker waits; None: it
        does not.
        """
        if self.trial is not SleepTrial.DUE:
            return self._config.idle_s
        return min(TRIAL_IDLE_S, self._config.idle_s or TRIAL_IDLE_S)

    @property
    def _wants_look(self) -> bool:
        """Whether it should wake without a request: it has never started, or whether it wakes from
        its first sleep without an end.
        """
        is_new = self.record.awake_bytes is None and self.record.start_s is None
        is_dormant = self._lifecycle.state is EngineState.DORMANT
        return is_new or (is_dormant and self.trial is SleepTrial.BEGUN)

    @property
    def _is_kept(self) -> bool:
        return self._lifecycle.hold.is_on or self._lifecycle.state is EngineState.LEAVING

    @property
    def _has_work(self) -> bool:
        return any(one.waiting or one.running for one, _ in self._demand.values())

    def _note_work(self, had_work: bool) -> None:
        if had_work and not self._has_work:
            self._idle_since = trio.current_time()
        self.note()

    def _see(self) -> MemberState:
        state = _SEEN[self._lifecycle.state]
        is_rising = state == "asleep" and self.seat is SeatState.RISING
        is_measuring = state == "awake" and self.seat is SeatState.MEASURING
        return "waking" if is_rising or is_measuring else state


def _ignore() -> None:
    """Do nothing: the listener before one is set."""


def _ignore_order(_order: Change) -> None:
    """Do nothing: the receiver of orders before one is set."""
