"""Workers of one device with their real seats, tables and sleepers, in virtual time.

Owns the device, the engines and the requests, which are made up, and the faults: supervisors and
engines that die, connections that drop, tables that answer late, memory that others take. The lock,
the socket and the messages are real. Each start checks that the device holds no more than it has.
"""

import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

import msgspec
import trio

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.messages import Wanted
from workers.ipc import SleepEngine, Slept, WakeEngine, Woken
from workers.supervisor.card_memory import CardMemory, CardUse
from workers.supervisor.engine_life import EngineLife
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.lifecycle import EngineState, Lifecycle, LifeEvent
from workers.supervisor.log import WorkerLog
from workers.supervisor.seat_states import SeatEvent
from workers.supervisor.sleeper import Sleeper
from workers.supervisor.turn_taker import AGAIN_S, TurnTaker
from workers.turns import TurnRecord

GIB = 2**30
_PIDS = count(1)


@dataclass
class Model:
    """A worker and its model. `way` is how its engine sleeps without an end, "" if it cannot. The
    next `num_failures` starts fail by an outside cause.
    """

    name: str
    awake: int
    asleep: int = 0
    start_s: float = 3.0
    wake_s: float = 0.6
    end_s: float = 0.3
    service_s: float = 1.0
    places: int = 4
    way: str = ""
    idle_s: float | None = None
    num_failures: int = 0
    is_always: bool = False


class Device:
    """80 GiB, and who holds how much of them."""

    key = "device"
    is_card = True
    can_read = True

    def __init__(self, chance: random.Random) -> None:
        self.total = 80 * GIB
        self.others = 0
        self.held: dict[int, int] = {}
        self.orphans: set[int] = set()
        self.read_s = 0.0
        self._chance = chance

    def hold(self, pid: int, held: int) -> None:
        self.held[pid] = held
        # What others take is not the table's to prevent, nor what engines of dead supervisors keep.
        ours = sum(held for one, held in self.held.items() if one not in self.orphans)
        assert ours <= self.total, "the device holds more than it has"

    @property
    def used(self) -> int:
        return sum(self.held.values()) + self.others

    async def read(self) -> CardUse:
        await trio.sleep(self.read_s * self._chance.random())
        used = self.used
        await trio.sleep(self.read_s * self._chance.random())
        return CardUse(self.total, used)

    async def held_by(self, pid: int) -> int | None:
        await trio.sleep(self.read_s * self._chance.random())
        return self.held.get(pid)


class _Process:
    """An engine's process, as far as a sleeper sees it."""

    def __init__(self) -> None:
        self.pid = 10_000_000 + next(_PIDS)  # no process of the host
        self.killed_for: str | None = None
        self.ended = trio.Event()

    def kill(self, why: str) -> None:
        self.killed_for = why
        self.ended.set()


@dataclass
class _Loaded:
    sleep_way: str
    sleep_refusal: str = ""
    more_ways: tuple[tuple[str, str], ...] = ()


class _Life:
    """An engine's life, as far as a sleeper sees it."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self.process = _Process()
        self.loaded: _Loaded | None = None
        self.model = "m"

    @property
    def ended(self) -> trio.Event:
        return self.process.ended

    async def finish(self, deadline_s: float) -> None:
        with trio.move_on_after(deadline_s):
            while self._worker.running and not self.ended.is_set():  # noqa: ASYNC110
                await trio.sleep(0.1)

    async def leave(self) -> None:
        await trio.sleep(self._worker.model.end_s)
        self.ended.set()

    async def move(self, message: SleepEngine | WakeEngine) -> Slept | Woken:
        model, device = self._worker.model, self._worker.world.device
        with trio.move_on_after(model.wake_s):
            await self.ended.wait()
        if self.ended.is_set():
            return Slept("its process has ended")
        if isinstance(message, SleepEngine):
            device.hold(self.process.pid, model.asleep)
            return Slept("", 0)
        if device.used - model.asleep + model.awake > device.total:
            return Woken("others have taken the memory", is_asleep=True)
        device.hold(self.process.pid, model.awake)
        return Woken()

    def serve_again(self) -> None:
        self._worker.engine_ready()


class Relay:
    """What gateways are told, of which these requests need nothing: they look at the state."""

    def __init__(self) -> None:
        self.epoch = 1

    def engine_restarts(self) -> None:
        self.epoch += 1

    def resides(self, state: str, due_s: float, trouble: str) -> None:
        """Nothing."""


@dataclass
class Worker:
    """A worker over the lives of its supervisors. `queue` has when each waiting request came."""

    world: "World"
    model: Model
    queue: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    record: TurnRecord | None = None
    turns: TurnTaker | None = None
    sleeper: Sleeper | None = None
    lifecycle: Lifecycle | None = None
    life: _Life | None = None
    relay: FrameRelay | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_removed: bool = False
    wake: trio.Event = field(default_factory=trio.Event)

    @property
    def is_stopped(self) -> bool:
        return self.lifecycle is not None and self.lifecycle.state is EngineState.STOPPED

    async def live(self) -> None:
        """One supervisor after another, as the process above them starts them."""
        while not self.is_removed:
            with trio.CancelScope() as self.scope:
                await self._supervise()
            if self.turns is not None:
                self.record = self.turns.record  # written after each measurement
            self.turns = self.sleeper = self.lifecycle = self.relay = None
            self._orphan()
            await trio.sleep(self.world.chance.choice((0.05, 0.3, 1.0, 4.0)))

    def _orphan(self) -> None:
        """The requests wait again; the engine ends a little later."""
        self.queue += self.running
        self.running.clear()
        life, self.life = self.life, None
        if life is not None:
            self.world.device.orphans.add(life.process.pid)
            self.world.nursery.start_soon(self.world.forget, life.process.pid)

    async def _supervise(self) -> None:
        world = self.world
        config = WorkerConfig(
            name=self.model.name, model="m", serves=self.model.name, gateways=(), max_seqs=1,
            token_budget=256,
            device="cuda:0", residency="always" if self.model.is_always else "on-demand",
            idle_s=self.model.idle_s,
        )  # fmt: skip
        self.lifecycle = lifecycle = Lifecycle(begins_asleep=not self.model.is_always)
        log = WorkerLog(self.model.name, world.lines)
        self.turns = TurnTaker(config, lifecycle, cast("CardMemory", world.device), log, None, "f")
        if self.record is not None:
            self.turns.record = msgspec.structs.replace(self.record)
        self.relay = relay = self.new_relay(config, log, lifecycle)
        self.sleeper = sleeper = Sleeper(self.turns, lifecycle, log)
        sleeper.join(relay)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeper.run)
            nursery.start_soon(self.serve)
            while lifecycle.state is not EngineState.LEAVING:
                self.wake = trio.Event()
                if lifecycle.state is EngineState.ASLEEP:
                    await sleeper.wait_turn()
                await self._one_life(nursery, relay)
            nursery.cancel_scope.cancel()

    async def _one_life(self, nursery: trio.Nursery, relay: FrameRelay) -> None:
        """Like `EngineSupervisor._one_life`."""
        lifecycle, sleeper, turns = self.lifecycle, self.sleeper, self.turns
        assert lifecycle is not None
        assert sleeper is not None
        assert turns is not None
        if not await self._may_start(lifecycle, sleeper):
            return
        self.life = life = _Life(self)
        sleeper.life = cast("EngineLife", life)
        await self._begin(life)
        if self.model.num_failures:
            self.model.num_failures -= 1
            life.ended.set()
        if not life.ended.is_set() and lifecycle.state is EngineState.STARTING:
            life.loaded = _Loaded(self.model.way)
            lifecycle.on(LifeEvent.LOADED)
            turns.sits(SeatEvent.PROVEN)
            lifecycle.on(LifeEvent.PROVEN)
            nursery.start_soon(sleeper.after_start, cast("EngineLife", life))
            lifecycle.policy.ready(trio.current_time())
            self.engine_ready()
        await life.ended.wait()
        lifecycle.on(LifeEvent.EXITED)
        self.queue += self.running
        self.running.clear()
        await trio.sleep(0.1)
        self.world.device.held.pop(life.process.pid, None)
        self.life = sleeper.life = None
        match lifecycle.state:
            case EngineState.LEAVING:
                return
            case EngineState.REPLACING:
                lifecycle.on(LifeEvent.RETRY)
            case EngineState.FALLING_ASLEEP:
                is_wanted = sleeper.has_ended
                await sleeper.has_slept()
                lifecycle.on(LifeEvent.SLEPT)
                relay.engine_restarts()
                if not is_wanted:
                    turns.failed("its engine died asleep")
            case _:
                delay_s = lifecycle.delay_after_death(
                    trio.current_time(), is_permanent=False, is_outside=True, is_rank=False
                )
                self.engine_gone(is_final=delay_s is None)
                if delay_s is None:
                    lifecycle.on(LifeEvent.GIVE_UP)
                    await self.wake.wait()
                    return
                lifecycle.on(LifeEvent.RETRY)
                relay.engine_restarts()
                if delay_s >= AGAIN_S and turns.is_on_demand:
                    turns.failed("", delay_s)
                    lifecycle.on(LifeEvent.SLEEP)
                with trio.move_on_after(delay_s):
                    await self.wake.wait()

    async def _may_start(self, lifecycle: Lifecycle, sleeper: Sleeper) -> bool:
        """Whether no end has come, and neither end nor restart while the device was read."""
        if lifecycle.on(LifeEvent.START) is EngineState.LEAVING:
            return False
        await sleeper.before_start()
        is_due = lifecycle.state is EngineState.STARTING
        if lifecycle.state is EngineState.REPLACING:
            lifecycle.on(LifeEvent.RETRY)
        return is_due

    async def _begin(self, life: _Life) -> None:
        """An engine that takes turns has its memory at once, and must find it."""
        device, model = self.world.device, self.model
        if not model.is_always:
            device.hold(life.process.pid, model.awake)
        with trio.move_on_after(model.start_s):
            await life.ended.wait()
        if model.is_always and device.used + model.awake > device.total:
            life.ended.set()
        elif model.is_always and not life.ended.is_set():
            device.hold(life.process.pid, model.awake)

    def new_relay(
        self,
        config: WorkerConfig,  # noqa: ARG002 (of a real relay)
        log: WorkerLog,  # noqa: ARG002
        lifecycle: Lifecycle,  # noqa: ARG002
    ) -> FrameRelay:
        """What stands between the engine and gateways."""
        return cast("FrameRelay", Relay())

    def engine_ready(self) -> None:
        """Gateways hear that the engine serves."""

    def engine_gone(self, *, is_final: bool) -> None:
        """Gateways hear that the engine has died."""

    async def serve(self) -> None:
        """What gateways do: send what waits to an engine that serves, and report the demand."""
        await trio.sleep(self.world.chance.choice((0.01, 0.2, 1.0)))
        told: tuple[int, int] | None = None
        while True:
            assert self.lifecycle is not None
            if self.lifecycle.state is EngineState.READY:
                while self.queue and len(self.running) < self.model.places:
                    self.running.append(self.queue.pop(0))
                    self.world.nursery.start_soon(self._run, self.running[-1], self.life)
            if told != (len(self.queue), len(self.running)):
                told = len(self.queue), len(self.running)
                self._tell()
            await trio.sleep(0.2)

    def _tell(self) -> None:
        now = trio.current_time()
        came = [*self.queue, *self.running]
        waited_s = sum(now - one for one in self.queue)
        assert self.turns is not None
        oldest_s = now - min(came) if came else 0.0
        self.turns.wanted(1, Wanted(len(self.queue), len(self.running), waited_s, oldest_s))

    async def _run(self, came: float, life: _Life | None) -> None:
        await trio.sleep(self.model.service_s)
        if self.life is life and came in self.running:
            self.running.remove(came)
            self.world.served += 1

    # Faults, and what operators do.

    def ask(self, number: int) -> None:
        self.queue += [trio.current_time()] * number

    def kill_supervisor(self) -> None:
        self.scope.cancel()

    def kill_engine(self) -> None:
        if self.life is not None:
            self.life.process.kill("a test")

    def drop(self) -> None:
        """The connection to the table is lost."""
        if self.turns is not None and (stream := self.turns._stream) is not None:
            stream.socket.close()

    def wish(self, change: str) -> None:
        if self.turns is not None and self.turns.is_on_demand:
            self.turns.wish(cast("Any", change))

    def restart(self, *, force: bool) -> None:
        """Like `EngineSupervisor.restart`."""
        if self.lifecycle is None or self.sleeper is None:
            return
        before = self.lifecycle.state
        try:
            state = self.lifecycle.on(LifeEvent.RESTART_NOW if force else LifeEvent.RESTART)
        except ConfigError:
            return
        life = self.life
        if before is EngineState.DORMANT:
            assert life is not None
            self.world.nursery.start_soon(self.sleeper.end, cast("EngineLife", life))
        elif before is EngineState.STOPPED:
            if not self.model.is_always:
                self.lifecycle.on(LifeEvent.SLEEP)
            self._epoch_ends()
            self.wake.set()
        elif before is EngineState.WAITING or state is EngineState.ENDING:
            self.wake.set()
        elif state is EngineState.DRAINING and life is not None:
            self.world.nursery.start_soon(self._drain_and_replace, life)
        elif before is EngineState.STARTING and life is None:
            self._epoch_ends()
        elif state is EngineState.REPLACING and before is not state and life is not None:
            self._epoch_ends()
            self.world.nursery.start_soon(life.leave)

    async def _drain_and_replace(self, life: _Life) -> None:
        await life.finish(5.0)
        state = None if self.lifecycle is None else self.lifecycle.state
        if self.lifecycle is not None and self.life is life and state is EngineState.DRAINING:
            self.lifecycle.on(LifeEvent.DRAINED)
            self._epoch_ends()
            await life.leave()

    def _epoch_ends(self) -> None:
        if self.relay is not None:
            self.relay.engine_restarts()

    async def remove(self) -> None:
        """The worker drains and ends, and its model is gone."""
        self.is_removed = True
        self.queue.clear()
        if self.lifecycle is not None:
            self.lifecycle.on(LifeEvent.LEAVE)
            if (life := self.life) is not None:
                self.world.device.orphans.add(life.process.pid)
                await life.finish(1.0)
                await life.leave()
        self.queue.clear()
        self.scope.cancel()


class World:
    """`run` carries a schedule out: pairs of a pause and of what happens after it."""

    def __init__(self, models: list[Model], chance: random.Random) -> None:
        self.chance = chance
        self.device = Device(chance)
        self.lines = io.StringIO()
        self.served = 0
        self.last = ""
        self.nursery: trio.Nursery
        self.workers = {one.name: self.new_worker(one) for one in models}

    async def forget(self, pid: int) -> None:
        """The engine of a dead supervisor sees that, and ends."""
        await trio.sleep(self.chance.choice((0.05, 0.5, 2.0)))
        self.device.held.pop(pid, None)

    def new_worker(self, model: Model) -> Worker:
        return Worker(self, model)

    def begin(self) -> None:
        """Start what runs beside the workers."""

    async def finish(self) -> None:
        """What follows once all was served, within the same time."""

    def add(self, model: Model) -> None:
        if model.name not in self.workers:
            self.workers[model.name] = worker = self.new_worker(model)
            self.nursery.start_soon(worker.live)

    def reboot(self) -> None:
        """All processes end at once, and all workers come again."""
        self.device.held.clear()
        for one in self.workers.values():
            one.life = None
            one.queue += one.running
            one.running.clear()
            one.kill_supervisor()

    async def take(self, held: int, time_s: float) -> None:
        """Other processes have memory for a time."""
        self.device.others += held
        await trio.sleep(time_s)
        self.device.others -= held

    async def run(
        self, schedule: list[tuple[float, Callable[["World"], None]]], within_s: float
    ) -> float:
        """Returns how long it took after the schedule until all was served. Raises
        `trio.TooSlowError` if it was not `within_s`.
        """
        async with trio.open_nursery() as self.nursery:
            self.begin()
            for worker in self.workers.values():
                self.nursery.start_soon(worker.live)
            for pause_s, act in schedule:
                await trio.sleep(pause_s)
                act(self)
            began = trio.current_time()
            try:
                with trio.fail_after(within_s):
                    while self.has_work:  # noqa: ASYNC110 (clocks jump)
                        await trio.sleep(0.5)
                    await self.finish()
            finally:
                self.last = self.shown()
            took_s = trio.current_time() - began
            self.nursery.cancel_scope.cancel()
        return took_s

    @property
    def has_work(self) -> bool:
        """Whether a request waits for what can come. A stopped worker's requests are refused."""
        return any(
            (one.queue or one.running) and not one.is_removed and not one.is_stopped
            for one in self.workers.values()
        )

    def shown(self) -> str:
        """Where each worker is, for a failure."""
        return "; ".join(
            f"{name}: {None if one.lifecycle is None else one.lifecycle.state.name} "
            f"queue={len(one.queue)} running={len(one.running)} "
            f"report={None if one.turns is None else one.turns.line()}"
            for name, one in self.workers.items()
        )
