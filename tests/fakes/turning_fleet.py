"""The workers of one device and their gateway, in virtual time.

Owns a real `FleetState` before the real seats, sleepers and relays of `turning_workers.py`: it
hears what they say in their order, places the requests, and tells them the demand. Requests may go
to a provider. Each one that does is judged: a model that only sleeps is no reason.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

import trio

from config import ModelConfig, WorkerConfig
from gateway.routing.effects import Assign, Demand, Effects, Moved, Probe, Refuse, UseProvider
from gateway.routing.fleet_state import FleetState
from protocol.ids import WorkerId
from protocol.messages import Fault, FromWorker, Progress, Register, Residency, Wanted
from tests.fakes.fleet import CLOUD, facts, request
from tests.fakes.turning_workers import Model, Worker, World
from workers.model_dir import NO_FILES
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.identity import worker_identity
from workers.supervisor.lifecycle import EngineState, Lifecycle
from workers.supervisor.log import WorkerLog
from workers.supervisor.turn_taker import TurnTaker

RESUME_WAIT_S = 120.0
REJOIN_WAIT_S = 15.0
_IDS = count(1)
_TROUBLES = (EngineState.ENDING, EngineState.LINGERING, EngineState.STOPPED)


@dataclass
class LinkedWorker(Worker):
    """A worker whose relay has a link to the gateway. `queue` stays empty: requests wait there."""

    worker_id: WorkerId | None = None
    tickets: set[int] = field(default_factory=set)
    _link: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def gateway(self) -> "Gateway":
        return cast("LinkedWorld", self.world).gateway

    def new_relay(self, config: WorkerConfig, log: WorkerLog, lifecycle: Lifecycle) -> FrameRelay:
        relay = FrameRelay(
            worker_identity(config, "test"),
            log,
            lifecycle,
            on_work=lambda: None,
            on_drain=lambda _: None,
            on_distrust=lambda _: None,
            on_siblings=lambda _: None,
        )
        relay.broadcast = self._say  # type: ignore[method-assign]
        return relay

    def _say(self, message: FromWorker) -> None:
        if self.worker_id is not None:
            self.gateway.hear(self, message)

    def engine_ready(self) -> None:
        if self.relay is not None:
            self.relay.engine_ready(facts(max_seqs=self.model.places), NO_FILES)

    def engine_gone(self, *, is_final: bool) -> None:
        if self.relay is not None:
            self.relay.engine_gone("it died", 1, (), is_final=is_final, kind="error")

    async def serve(self) -> None:
        """Dial the gateway again and again, and stay linked until the link or the supervisor
        ends.
        """
        assert self.turns is not None
        while True:
            await trio.sleep(self.world.chance.choice((0.01, 0.2, 1.0)))
            with trio.CancelScope() as self._link:
                await self._stay(self.turns)

    async def _stay(self, turns: TurnTaker) -> None:
        assert self.relay is not None
        self.worker_id = WorkerId(next(_IDS).to_bytes(16, "little"))
        try:
            for message in self.relay.greeting():
                self.gateway.hear(self, message)
            await trio.sleep_forever()
        finally:
            worker_id, self.worker_id = self.worker_id, None
            self.tickets.clear()
            self.running.clear()
            turns.gone(1)
            self.gateway.lost(worker_id)

    def cut(self) -> None:
        """The link to the gateway is lost."""
        self._link.cancel()

    def ask(self, number: int) -> None:
        for _ in range(number):
            self.gateway.ask(self.model.name)


@dataclass
class Gateway:
    """`by` counts the answers: by workers, by the provider, and refusals. `wrong` is what must not
    be.
    """

    world: "LinkedWorld"
    fleet: FleetState
    by: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    open: dict[int, str] = field(default_factory=dict)

    def hear(self, worker: LinkedWorker, message: FromWorker) -> None:
        now = trio.current_time()
        assert worker.worker_id is not None
        if isinstance(message, Register):
            worker.tickets.clear()
            self.act(self.fleet.register(worker.worker_id, message, now))
        elif isinstance(message, Residency | Progress | Fault):
            self.act(self.fleet.heard(worker.worker_id, message, now))
        self.act(self.fleet.demands(now))

    def lost(self, worker_id: WorkerId) -> None:
        self.act(self.fleet.lost(worker_id, trio.current_time()))

    def ask(self, model: str, *, cloud: bool = True) -> None:
        ticket = next(_IDS)
        self.open[ticket] = model
        asked = request(ticket, model=model, cloud=cloud)
        self.act(self.fleet.tickets.ask(asked, trio.current_time()))

    async def tick(self) -> None:
        while True:
            await trio.sleep(0.1)
            self.act(self.fleet.tick(trio.current_time()))

    def act(self, effects: Effects) -> None:
        """Do what the dispatcher and turns would do."""
        for effect in effects:
            match effect:
                case Assign():
                    self._place(effect)
                case UseProvider(ticket=ticket, reason=reason):
                    self._judge(self.open.pop(ticket), reason)
                case Refuse(ticket=ticket, error=error):
                    self.by[f"refused: {error.message}"] += 1
                    del self.open[ticket]
                case Moved(tickets=tickets):
                    for ticket in tickets:
                        self.world.nursery.start_soon(self._again, self.open.pop(ticket))
                case Probe():
                    self.world.nursery.start_soon(self._probe, effect)
                case Demand():
                    self._tell(effect)
        if effects:
            self.act(self.fleet.demands(trio.current_time()))

    def _place(self, assign: Assign) -> None:
        worker = self.world.linked(assign.worker_id)
        state = None if worker is None or worker.lifecycle is None else worker.lifecycle.state
        if worker is not None and state is EngineState.READY:
            worker.tickets.add(assign.ticket)
            worker.running.append(assign.ticket)
            self.world.nursery.start_soon(self._run, worker, assign.ticket)
        else:
            self.world.nursery.start_soon(self._refused, assign.ticket)

    def leave(self, model: str) -> None:
        """All clients of the model leave."""
        for ticket, name in tuple(self.open.items()):
            if name == model and ticket in self.open:
                self.end(ticket)
                self.act(self.fleet.tickets.release(ticket, trio.current_time()))

    def end(self, ticket: int) -> None:
        """The request is over, wherever it is."""
        self.open.pop(ticket, None)
        for one in self.world.workers.values():
            assert isinstance(one, LinkedWorker)
            if ticket in one.tickets:
                one.tickets.discard(ticket)
                one.running.remove(ticket)

    def restart(self) -> None:
        """Another process takes the place of the gateway; its clients see their connections end."""
        for ticket in tuple(self.open):
            self.end(ticket)
        self.fleet = self.world.new_fleet()
        self.fleet.start(trio.current_time())
        for one in self.world.workers.values():
            assert isinstance(one, LinkedWorker)
            one.cut()

    def _tell(self, demand: Demand) -> None:
        worker = self.world.linked(demand.worker_id)
        if worker is not None and worker.turns is not None:
            numbers = demand.waiting, demand.running, demand.waited_s, demand.oldest_s
            worker.turns.wanted(1, Wanted(*numbers))

    async def _refused(self, ticket: int) -> None:
        """The worker has refused it meanwhile."""
        await trio.sleep(0.01)
        self.act(self.fleet.tickets.busy(ticket, trio.current_time(), "not_ready"))

    async def _again(self, model: str) -> None:
        await trio.sleep(0.0)
        self.ask(model)

    async def _run(self, worker: LinkedWorker, ticket: int) -> None:
        life = worker.life
        await trio.sleep(worker.model.service_s)
        if ticket not in worker.tickets or worker.life is not life:
            return
        worker.tickets.discard(ticket)
        worker.running.remove(ticket)
        del self.open[ticket]
        self.by["worker"] += 1
        now = trio.current_time()
        self.act(self.fleet.tickets.release(ticket, now, 10, is_proven=True))

    async def _probe(self, probe: Probe) -> None:
        await trio.sleep(0.05)
        worker = self.world.linked(probe.worker_id)
        state = None if worker is None or worker.lifecycle is None else worker.lifecycle.state
        result: Any = "passed" if state is EngineState.READY else "failed"
        now = trio.current_time()
        if probe.is_of_trust:
            self.act(self.fleet.trust_probe_ended(probe, result, "", now))
        else:
            ended = self.fleet.probe_ended(probe.model, probe.serial, result, "", "", now)
            self.act(ended)

    def _judge(self, model: str, reason: str) -> None:
        self.by["provider"] += 1
        worker = self.world.workers[model]
        assert isinstance(worker, LinkedWorker)
        if not reason.startswith("no worker of") or not reason.endswith("is ready"):
            return
        state = None if worker.lifecycle is None else worker.lifecycle.state
        is_known = worker.worker_id is not None and self.fleet.fleet.get(worker.worker_id)
        is_faulty = not is_known or state is None or state in _TROUBLES
        turns = worker.turns
        is_troubled = turns is not None and bool(turns.trouble)
        if not (is_faulty or is_troubled or worker.is_removed or worker.model.is_always):
            self.wrong.append(f"{trio.current_time():.2f}: {model} to a provider, {state}")


class LinkedWorld(World):
    """A `World` with a gateway. `cloud` are the models with a provider, `diverts` those of them
    whose requests go there while they sleep.
    """

    def __init__(
        self, models: list[Model], chance: random.Random, cloud: set[str], diverts: set[str]
    ) -> None:
        super().__init__(models, chance)
        self._configs = tuple(
            ModelConfig(
                name=name,
                residency="on-demand",
                fallback=CLOUD if name in cloud else (),
                while_waking="cloud" if name in diverts & cloud else "wait",
            )
            for name in "abcd"
        )
        self.gateway = Gateway(self, self.new_fleet())

    def new_fleet(self) -> FleetState:
        return FleetState(
            self._configs, max_queue=None, resume_wait_s=RESUME_WAIT_S, rejoin_s=REJOIN_WAIT_S
        )

    def new_worker(self, model: Model) -> Worker:
        return LinkedWorker(self, model)

    def begin(self) -> None:
        self.gateway.fleet.start(trio.current_time())
        self.nursery.start_soon(self.gateway.tick)

    def linked(self, worker_id: WorkerId) -> LinkedWorker | None:
        for one in self.workers.values():
            assert isinstance(one, LinkedWorker)
            if one.worker_id == worker_id:
                return one
        return None

    @property
    def has_work(self) -> bool:
        return bool(self.gateway.open)

    async def finish(self) -> None:
        """Each model whose worker can serve is served by it in the end, and no provider answers
        for it any more.
        """
        for one in self.workers.values():
            while not (one.is_removed or one.is_stopped):
                before = self.gateway.by["worker"]
                one.ask(1)
                while self.has_work:  # noqa: ASYNC110 (clocks jump)
                    await trio.sleep(0.5)
                if self.gateway.by["worker"] > before:
                    break
                await trio.sleep(5.0)
        await trio.sleep(2.0)
        on = [model.name for model in self.gateway.fleet.models() if model.is_fallback_on]
        ready = [model.name for model in self.gateway.fleet.models() if model.ready_workers]
        if wrong := set(on) & set(ready):
            self.gateway.wrong.append(f"a fallback has not ended: {wrong}")
