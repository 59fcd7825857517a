"""Puts one worker's engine to sleep and wakes it, as the table of its device orders.

Owns the steps of both and their measurement. An engine sleeps by the end of its process; the next
turn starts another. Must not know who has the next turn, nor how a start is watched.
"""

from collections.abc import Callable
from typing import Final, final

import trio

from workers.supervisor.card_memory import CardUse
from workers.supervisor.engine_life import EngineLife
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.lifecycle import EngineState, Lifecycle, LifeEvent
from workers.supervisor.log import WorkerLog
from workers.supervisor.turn_taker import TurnTaker
from workers.turns import Change, bytes_in_words

TurnsOf = Callable[[Lifecycle], TurnTaker]
"""Makes a worker's seat, which looks at its lifecycle."""

RESTART: Final = "restart"
"""The way of every engine: its process ends, and another one starts in its next turn."""

SLACK: Final = 0.02
"""A wake needs so much less than was measured: figures of drivers are rounded."""


@final
class Sleeper:
    """The sleep of one worker's engines, one after another. `life` is the running one."""

    def __init__(self, turns: TurnTaker, lifecycle: Lifecycle, log: WorkerLog) -> None:
        self.turns = turns
        self.life: EngineLife | None = None
        self._lifecycle = lifecycle
        self._log = log
        self._relay: FrameRelay | None = None
        self._nursery: trio.Nursery | None = None
        self._turn = trio.Event()
        self._before: CardUse | None = None
        self._began_at = 0.0
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
        """Carry out an order. One that does not fit the state is left: the table is told of it."""
        state, life = self._lifecycle.state, self.life
        if change == "wake" and state is EngineState.ASLEEP:
            self._began_at = trio.current_time()
            self.turns.is_rising = True
            self._turn.set()
        elif change == "sleep" and state is EngineState.READY and life is not None:
            assert self._nursery is not None
            self._lifecycle.on(LifeEvent.SLEEP)
            self._nursery.start_soon(self._fall_asleep, life)
        else:
            self.turns.failed("")

    def tell(self) -> None:
        """Tell gateways where the worker is."""
        turns = self.turns
        if self._relay is not None and turns.is_on_demand:
            self._relay.resides(turns.shown, turns.due_s, turns.trouble)

    async def wait_turn(self) -> None:
        """Without a process: wait for the turn, and for room on the device."""
        while self._lifecycle.state is EngineState.ASLEEP:
            if not self.turns.is_rising:  # else the order came before this wait
                self._turn = trio.Event()
            self.turns.note()
            await self._turn.wait()
            has_room = await self._has_room()
            self.turns.is_rising = has_room
            if has_room:
                return
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
        if held is not None and self.life is life:
            facts: dict[str, int | float] = {"awake_bytes": held}
            if self._began_at:
                facts["wake_s"] = took_s
            reading = self._before or await self.turns.memory.read()
            if reading is not None:
                facts["total_bytes"] = reading.total_bytes
            await self.turns.measured(**facts)
        self._began_at, self._before = 0.0, None
        self.turns.is_measuring = False
        self.turns.note()

    async def has_slept(self) -> None:
        """The process has ended, and its memory is free."""
        facts: dict[str, int | float | str] = {"asleep_bytes": 0}
        if self._began_at:
            facts |= {"sleep_s": trio.current_time() - self._began_at, "way": RESTART}
        self._began_at = 0.0
        await self.turns.measured(**facts)

    async def _fall_asleep(self, life: EngineLife) -> None:
        await life.finish(float("inf"))
        if self.life is not life or self._lifecycle.state is not EngineState.DROWSY:
            return  # it has died, or is restarted
        self._lifecycle.on(LifeEvent.RESTED)
        self._log.info("falls asleep: its turn is over")
        self._began_at = trio.current_time()
        await life.leave()

    async def _has_room(self) -> bool:
        """Whether the memory that the engine took is free. What took it is not ours: the table has
        counted the workers of the device.
        """
        need = self.turns.record.awake_bytes
        reading = await self.turns.memory.read()
        self._before = reading
        if need is None or reading is None:
            return True
        free = reading.total_bytes - reading.used_bytes
        if free >= (1 - SLACK) * need:
            return True
        self.turns.failed(
            f"it does not wake: it needs {bytes_in_words(need)}, and {bytes_in_words(free)} of "
            f"{bytes_in_words(reading.total_bytes)} are free; tried again"
        )
        return False

    async def _held(self, life: EngineLife) -> int | None:
        """What the engine holds of the device: by its processes, else by what is in use now and was
        not before its start.
        """
        own = await self.turns.memory.held_by(life.process.pid)
        if own is not None or self._before is None or not self.turns.is_on_demand:
            return own
        after = await self.turns.memory.read()
        return None if after is None else max(0, after.used_bytes - self._before.used_bytes)

    def _changed(self) -> None:
        self.turns.is_rising = self.turns.is_rising and self._lifecycle.state is EngineState.ASLEEP
        self.turns.note()
        self.tell()
