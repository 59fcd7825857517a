"""Puts one worker's engine to sleep and wakes it, as the table of its device orders.

Owns the steps of both and their measurement. An engine that can do it by its API, or by the
driver's checkpoint, sleeps without an end, until that has failed once; any other sleeps by the end
of its process, and the next turn starts another. Must not know who has the next turn, nor how a
start is watched.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar, final

import trio

from housekeeping.sizes import bytes_text
from workers.ipc import CHECKPOINT, NATIVE_SLEEP, SleepEngine, Slept, WakeEngine, Woken
from workers.supervisor.card_memory import (
    CardUse,
    host_reading,
    resident_bytes,
    weights_bytes,
)
from workers.supervisor.engine_life import EngineLife
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.lifecycle import SERVING, EngineState, Lifecycle, LifeEvent
from workers.supervisor.log import WorkerLog
from workers.supervisor.seat_states import SeatEvent, SeatState, TrialEvent
from workers.supervisor.turn_taker import TurnTaker
from workers.turns import Change

TurnsOf = Callable[[Lifecycle], TurnTaker]
"""Makes a worker's seat, which looks at its lifecycle."""

T = TypeVar("T")
U = TypeVar("U")

RESTART: Final = "restart"
"""The way of every engine: its process ends, and another one starts in its next turn."""

MAX_LEFT: Final = 0.5
"""An engine that holds more than this share of its memory does not sleep, whatever it says. vLLM
and SGLang keep 1 to 3 GiB of context, graphs and buffers.
"""
FREED_WITHIN_S: Final = 5.0
"""Some engines answer before their memory is free (THUDM/slime#579)."""
_LOOK_AGAIN_S: Final = 0.1

SLACK: Final = 0.02
"""The share by which a wake may need less than was measured, because drivers round their
figures.
"""


@final
class Sleeper:
    """The sleep of one worker's engines, one after another. `life` is the running one. `has_ended`:
    its process was asked to end, because the worker sleeps.
    """

    _nursery: trio.Nursery  # set when `run` begins, before any order

    def __init__(self, turns: TurnTaker, lifecycle: Lifecycle, log: WorkerLog) -> None:
        self.turns = turns
        self.life: EngineLife | None = None
        self._lifecycle = lifecycle
        self._log = log
        self._relay: FrameRelay | None = None
        self._turn = trio.Event()
        self._before: CardUse | None = None
        self._began_at = 0.0
        self._sees_own = False
        self.has_ended = False
        turns.on_order = self.take
        turns.on_news = self.tell
        lifecycle.on_change = self._changed

    def join(self, relay: FrameRelay) -> None:
        """Say that the worker takes turns before a gateway can register it: otherwise it would
        hear of no demand, and never wake.
        """
        self._relay = relay
        self.tell()

    async def run(self) -> None:
        """Take part in the turns of the device until cancelled, after `join`."""
        await trio.to_thread.run_sync(self.turns.load)
        self.turns.note()
        self.tell()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self.turns.run()
            await trio.sleep_forever()

    def take(self, change: Change) -> None:
        """Carry out an order. One that does not fit the state is left: the table of turns gets the
        measurement.
        """
        state, life = self._lifecycle.state, self.life
        if change == "wake" and state is EngineState.ASLEEP:
            self._began_at = trio.current_time()
            self.turns.sits(SeatEvent.RISE)
            self._turn.set()
        elif change == "wake" and state is EngineState.DORMANT and life is not None:
            self._began_at = trio.current_time()
            self.turns.sits(SeatEvent.RISE)
            self._nursery.start_soon(self._wake, life)
        elif change == "sleep" and state is EngineState.READY and life is not None:
            self._lifecycle.on(LifeEvent.SLEEP)
            self._nursery.start_soon(self._fall_asleep, life)
        else:
            self.turns.failed("")

    def tell(self) -> None:
        """Tell gateways the residency of the worker. A worker that leaves has none: it sends a
        farewell.
        """
        turns, is_leaving = self.turns, self._lifecycle.state is EngineState.LEAVING
        if self._relay is not None and turns.is_on_demand and not is_leaving:
            self._relay.resides(turns.shown, turns.due_s, turns.trouble)

    async def wait_turn(self) -> None:
        """Without a process: wait for the turn, and for room on the device."""
        while self._lifecycle.state is EngineState.ASLEEP:
            # If RISING, the order came before this wait.
            if self.turns.seat is not SeatState.RISING:
                self._turn = trio.Event()
            self.turns.note()
            await self._turn.wait()
            if await self._has_room():
                return
            self.turns.sits(SeatEvent.LACK_ROOM)
            self.turns.note()

    async def before_start(self) -> None:
        """Read the device before a process starts. One that is always resident starts at once."""
        if self.turns.is_on_demand and self._before is None:
            self._before = await self.turns.memory.read()

    async def after_start(self, life: EngineLife) -> None:
        """Measure what the new engine holds."""
        now = trio.current_time()
        took_s = now - (self._began_at or now)
        held = await self._held(life)
        if self.life is not life:
            return  # the engine has died; the next one is measured
        # An engine that ends or falls asleep may have been read without its memory.
        if self._lifecycle.state in SERVING:
            facts: dict[str, int | float] = {} if held is None else {"awake_bytes": held}
            if self._began_at:
                facts["start_s"] = took_s
                if self.turns.record.way in ("", RESTART):
                    facts["wake_s"] = took_s
            reading = self._before or await self.turns.memory.read()
            if reading is not None:
                facts["total_bytes"] = reading.total_bytes
            await self.turns.measured(**facts)
            if self.life is not life:
                return
        self._began_at, self._before = 0.0, None
        self.turns.sits(SeatEvent.MEASURED)
        await self._find_ways(life)
        self.turns.note()

    async def has_slept(self) -> None:
        """The process has ended, and its memory is free."""
        facts: dict[str, int | float | str | None] = {"asleep_bytes": 0}
        if self._began_at and self.has_ended and self.turns.record.way in ("", RESTART):
            facts |= {"sleep_s": trio.current_time() - self._began_at, "way": RESTART}
        self._began_at, self.has_ended = 0.0, False
        await self.turns.measured(**facts)

    async def end(self, life: EngineLife) -> None:
        """End the process of an engine that sleeps, or is to."""
        self.has_ended = not life.ended.is_set()
        await life.leave()

    async def _find_ways(self, life: EngineLife) -> None:
        """Note what the new process says about its sleep. A trial shows whether that holds."""
        self.turns.cannot = {way: why for way, why in _ways(life).items() if why}
        way = self._way_of(life)
        if way is None or way == self.turns.record.way:
            self.turns.tries(TrialEvent.LACK)
            return
        lacks = await self._host_lacks(life, way)
        self.turns.tries(TrialEvent.LACK if lacks else TrialEvent.FIND)
        if lacks:
            self.turns.cannot[way] = f"{lacks}; looked at again when it falls asleep"

    def _way_of(self, life: EngineLife | None) -> str | None:
        """The way by which this process can sleep without an end; None if there is none."""
        refused = self.turns.record.refusals
        ways = {} if life is None else _ways(life)
        return next((way for way, why in ways.items() if not why and way not in refused), None)

    async def _fall_asleep(self, life: EngineLife) -> None:
        await life.finish(float("inf"))
        if self.life is not life or self._lifecycle.state is not EngineState.DROWSY:
            return  # the engine has died, or is restarted
        self._lifecycle.on(LifeEvent.RESTED)
        self._log.info("falls asleep: its turn is over")
        self._began_at = trio.current_time()
        way = self._way_of(life)
        if way is None or not await self._moves_out(life, way):
            await self.end(life)

    async def _moves_out(self, life: EngineLife, way: str) -> bool:
        """Whether the engine sleeps without an end."""
        self.turns.tries(TrialEvent.SLEEP)
        memory, record = self.turns.memory, self.turns.record
        # A call of nvidia-smi can take as long as a native sleep, so only needed calls are made,
        # side by side.
        before, lacks = await _both(
            _nothing if way == NATIVE_SLEEP and self._sees_own else memory.read,
            partial(self._host_lacks, life, way),
        )
        if lacks:
            self.turns.say(f"it does not sleep by {way}: {lacks}; its process ends instead")
            return False
        in_host = await trio.to_thread.run_sync(resident_bytes, life.process.pid)
        said = await life.move(SleepEngine(way))
        why = said.why
        host_bytes, kept = (said.host_bytes, said.note) if isinstance(said, Slept) else (None, "")
        if life.ended.is_set():
            why = life.process.killed_for or "its process has ended"
        left = None if why else await self._left(life, before)
        awake = record.awake_bytes
        if not why and left is not None and awake is not None and left > MAX_LEFT * awake:
            why = f"it says so and holds {bytes_text(left)} of {bytes_text(awake)}"
        if self.life is not life or self._lifecycle.state is not EngineState.FALLING_ASLEEP:
            return True  # the worker leaves
        if why:
            await self._refuse(way, why)
            if not life.ended.is_set():  # the end of a process is reported elsewhere
                self.turns.say(f"it does not sleep by {way}: {why}; its process ends instead")
            return False
        if host_bytes is None:
            now_in_host = await trio.to_thread.run_sync(resident_bytes, life.process.pid)
            host_bytes = max(0, now_in_host - in_host)
        facts: dict[str, int | float | str | None] = {
            "way": way,
            "asleep_bytes": left or 0,
            "sleep_s": trio.current_time() - self._began_at,
            "host_bytes": host_bytes,
        }
        if record.way != way:
            facts["wake_s"] = None
        if life.ended.is_set():
            return False
        self._began_at, self.turns.kept = 0.0, kept
        self.turns.cannot.pop(way, None)
        self._lifecycle.on(LifeEvent.MOVED_OUT)
        assert self._relay is not None
        self._relay.engine_restarts()  # ends the epoch: no earlier work goes on, and none comes
        await self.turns.measured(**facts)
        return True

    async def _wake(self, life: EngineLife) -> None:
        """Let the process take its memory back. One that cannot is killed, and another starts."""
        way = self._way_of(life)
        # A native engine tries at once: if memory lacks, it reports the lack and stays asleep.
        has_room = way == NATIVE_SLEEP or await self._has_room()
        if (
            not has_room
            or self.life is not life
            or self._lifecycle.state is not EngineState.DORMANT
        ):
            self.turns.sits(SeatEvent.LACK_ROOM)
            self.turns.note()
            return
        self._lifecycle.on(LifeEvent.WAKE)
        assert self._relay is not None
        said = await life.move(WakeEngine(self._relay.epoch))
        why = said.why
        if self._lifecycle.state in (EngineState.LEAVING, EngineState.REPLACING):
            return
        if isinstance(said, Woken) and said.is_asleep:
            self.turns.failed("")  # told before the table sees it asleep and gives another order
            self._lifecycle.on(LifeEvent.MOVED_OUT)
            if await self._has_room():  # otherwise `_has_room` has said what is missing
                self.turns.failed(f"it does not wake: {why}; tried again")
            return
        if why:
            if way is not None and not await self._is_taken(life):
                await self._refuse(way, f"it did not wake: {life.process.killed_for or why}")
            if not life.ended.is_set():
                life.process.kill(f"the engine did not wake: {why}")
            return
        took_s, self._began_at, self._before = trio.current_time() - self._began_at, 0.0, None
        self._lifecycle.on(LifeEvent.PROVEN)
        life.serve_again()
        await self.turns.measured(wake_s=took_s)

    async def _refuse(self, way: str, why: str) -> None:
        """Sleep by the end of the process from now on, because `way` did not work as the engine
        said.
        """
        refusals = {**self.turns.record.refusals, way: why}
        start_s = self.turns.record.start_s
        await self.turns.measured(way=RESTART, wake_s=start_s, host_bytes=0, refusals=refusals)

    async def _host_lacks(self, life: EngineLife, way: str) -> str:
        """What the host's memory lacks for the engine's, "" if it has room: for what an earlier
        sleep took, else for the model's weights. A checkpoint takes all that is on the card now.
        """
        turns = self.turns
        if way == NATIVE_SLEEP:
            return ""  # a native sleep keeps what has room, and reads the rest again
        if not turns.memory.is_card:
            return "its device is the host's own memory"
        need = turns.record.host_bytes if turns.record.way == way else 0
        if way == CHECKPOINT:
            held = await turns.memory.held_by(life.process.pid)
            need = max(need, held or turns.record.awake_bytes or 0)
        elif not need:
            need = await trio.to_thread.run_sync(weights_bytes, life.model)
        host = await trio.to_thread.run_sync(host_reading)
        if host is None or host.total_bytes - host.used_bytes >= need:
            return ""
        free = bytes_text(host.total_bytes - host.used_bytes)
        return f"it needs {bytes_text(need)} of the host's memory, and {free} are free"

    async def _left(self, life: EngineLife, before: CardUse | None) -> int | None:
        """What a sleeping engine still holds of the device, once it falls no more below what counts
        as asleep; None if the driver does not report it.
        """
        awake, left = self.turns.record.awake_bytes, None
        with trio.move_on_after(FREED_WITHIN_S):
            while not life.ended.is_set():
                memory = self.turns.memory
                held, look = partial(memory.held_by, life.process.pid), memory.read
                left, after = await _both(held, _nothing if before is None else look)
                if left is None and before is not None and awake is not None:
                    freed = before.used_bytes - (before if after is None else after).used_bytes
                    left = max(0, awake - max(0, freed))
                if left is None or awake is None or left <= MAX_LEFT * awake:
                    break
                await trio.sleep(_LOOK_AGAIN_S)
        return left

    async def _has_room(self) -> bool:
        """Whether the memory that the engine took is free. What took it is not ours: the table has
        counted the workers of the device.
        """
        need = self.turns.record.awake_bytes
        if need is not None and self._lifecycle.state is EngineState.DORMANT:
            need -= self.turns.record.asleep_bytes
        reading = await self.turns.memory.read()
        self._before = reading
        if need is None or reading is None:
            return True
        free = reading.total_bytes - reading.used_bytes
        if free >= (1 - SLACK) * need:
            return True
        self.turns.failed(
            f"it does not wake: it needs {bytes_text(need)}, and {bytes_text(free)} of "
            f"{bytes_text(reading.total_bytes)} are free; tried again"
        )
        return False

    async def _is_taken(self, life: EngineLife) -> bool:
        """Whether other processes hold memory that the engine needs. If they do, a failed wake says
        nothing about the engine's way to sleep.
        """
        need, own = self.turns.record.awake_bytes, await self.turns.memory.held_by(life.process.pid)
        reading = await self.turns.memory.read()
        if need is None or own is None or reading is None:
            return False
        return reading.total_bytes - reading.used_bytes + own < (1 - SLACK) * need

    async def _held(self, life: EngineLife) -> int | None:
        """The memory of the device that the engine holds: by its processes, else the memory in use
        now less that before its start.
        """
        before = self._before
        own = await self.turns.memory.held_by(life.process.pid)
        self._sees_own = own is not None
        if own is not None or before is None or not self.turns.is_on_demand:
            return own
        after = await self.turns.memory.read()
        return None if after is None else max(0, after.used_bytes - before.used_bytes)

    def _changed(self) -> None:
        if self._lifecycle.state not in (EngineState.ASLEEP, EngineState.DORMANT):
            self.turns.sits(SeatEvent.BEGIN)
        self.turns.note()
        self.tell()


async def _both(
    first: Callable[[], Awaitable[T]], second: Callable[[], Awaitable[U]]
) -> tuple[T, U]:
    """The results of both functions, called at the same time."""
    found: list[T] = []

    async def call() -> None:
        found.append(await first())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        other = await second()
    return found[0], other


async def _nothing() -> None:
    """A reading that is not needed."""


def _ways(life: EngineLife) -> dict[str, str]:
    """The ways by which this process might sleep without an end, the best first, each with why it
    cannot, as far as its start has found.
    """
    ready = life.loaded
    if ready is None:
        return {}
    first = {ready.sleep_way: ready.sleep_refusal} if ready.sleep_way else {}
    return first | dict(ready.more_ways)
