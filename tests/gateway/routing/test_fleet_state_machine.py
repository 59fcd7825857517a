"""Dispatch under any sequence of registrations, loads, requests, events, losses and time.

The model beside it is naive: what each ticket was last told, and what each engine holds.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from config import GatewayConfig, ModelConfig
from gateway.routing.effects import (
    Accept,
    AskSnapshot,
    Assign,
    Effects,
    Moved,
    Notice,
    Probe,
    Refuse,
    UseProvider,
)
from gateway.routing.fallback import ProbeResult
from gateway.routing.fleet_state import FULL_AT_MOST_S, FleetState
from gateway.routing.quarantine import PROBATION_STRIKES
from gateway.routing.queue_pick import eligible
from gateway.telemetry.fleet_events import FallbackOff, FallbackOn
from protocol.ids import BlockDigest, WorkerId
from protocol.messages import BlocksDropped, BlocksSnapshot, BlocksStored, EngineFacts, Fault
from tests.fakes.fleet import CLOUD, W1, W2, W3, chain, dispatch, facts, hello, load, request
from tests.fakes.prefix_holders import holds

IDS = (W1, W2, W3)
MAX_SEQS = 2
KV_TOKENS = 1200
MAX_QUEUE = 4
RESUME_WAIT_S = 20.0
PROMPTS = [
    chain(("shared", shared), (name, own)) for shared in (0, 3) for name in "ab" for own in (0, 4)
]
BLOCKS = sorted({digest for prompt in PROMPTS for digest in prompt})

worker_ids = st.sampled_from(IDS)
picks = st.sets(st.sampled_from(BLOCKS), max_size=6)
asked = st.fixed_dictionaries(
    {
        "digests": st.sampled_from(PROMPTS),
        "tail": st.integers(1, 1500),
        "key": st.sampled_from(["k1", "k2"]),
        "session": st.sampled_from([None, "s1", "s2"]),
        "auxiliary": st.booleans(),
        "cloud": st.booleans(),
        "resumed": st.booleans(),
        "excluded": st.frozensets(worker_ids, max_size=2),
    }
)


class _Engine:
    """What a live engine holds, and whether the gateway may know it."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.seq = 0
        self.held: set[BlockDigest] = set()
        self.known = False


class DispatchMachine(RuleBasedStateMachine):
    """Random fleets; the invariants are what turns rely on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.fleet: FleetState = dispatch(
            fallback=CLOUD, max_queue=MAX_QUEUE, resume_wait_s=RESUME_WAIT_S
        )
        self.num_tickets = 0
        self.waiting: dict[int, float] = {}
        self.running: dict[int, WorkerId] = {}
        self.auxiliary: set[int] = set()
        self.quarantine: set[int] = set()
        self.proven: set[int] = set()
        self.connected: dict[WorkerId, int] = {}
        self.engines: dict[WorkerId, _Engine] = {}
        self.full: dict[WorkerId, float] = {}
        self.given_up: set[WorkerId] = set()
        self.left_at: dict[WorkerId, float] = {}
        self.is_fallback_on = False
        self.probe: Probe | None = None

    # What the fleet says.

    def take(self, effects: Effects) -> None:
        """Every effect must fit what its ticket or worker was told before."""
        for effect in effects:
            match effect:
                case Assign():
                    del self.waiting[effect.ticket]
                    assert effect.worker_id in self.engines
                    assert effect.worker_id not in self.full
                    self.running[effect.ticket] = effect.worker_id
                case UseProvider() | Refuse():
                    del self.waiting[effect.ticket]
                case Probe():
                    assert self.is_fallback_on
                    assert effect.worker_id in self.engines
                    self.probe = effect
                case Moved():
                    for ticket in effect.tickets:
                        assert self.running.pop(ticket) == effect.worker_id
                case AskSnapshot():
                    self.engines[effect.worker_id].known = False
                case Notice(event=FallbackOn()):
                    assert not self.is_fallback_on
                    self.is_fallback_on = True
                case Notice(event=FallbackOff()):
                    assert self.is_fallback_on
                    self.is_fallback_on = False
                case _:
                    pass

    def register(self, worker_id: WorkerId, engine: EngineFacts | None, epoch: int) -> None:
        self.connected[worker_id] = epoch
        self.engines.pop(worker_id, None)
        self.full.pop(worker_id, None)
        self.given_up.discard(worker_id)
        self.left_at.pop(worker_id, None)
        if engine is not None:
            self.engines[worker_id] = _Engine(epoch)
        message = hello(f"w{worker_id[0]}", engine, epoch=epoch)
        effects = self.fleet.register(worker_id, message, self.now)
        assert effects[0] == Accept(worker_id)
        self.take(effects)

    # What happens to it.

    @rule(worker_id=worker_ids)
    def engine_starts(self, worker_id: WorkerId) -> None:
        """A worker comes, or its engine starts anew."""
        self.register(worker_id, None, self.connected.get(worker_id, 0) + 1)

    @rule(worker_id=worker_ids)
    def engine_ready(self, worker_id: WorkerId) -> None:
        """An engine has passed its health probe; or its worker was out of reach for a while."""
        engine = facts(max_seqs=MAX_SEQS, kv_tokens=KV_TOKENS)
        self.register(worker_id, engine, self.connected.get(worker_id, 1))

    @rule(worker_id=worker_ids, stale=st.booleans(), stops=st.booleans())
    def engine_faults(self, worker_id: WorkerId, stale: bool, stops: bool) -> None:
        """An engine dies; sometimes the news is of an earlier one."""
        epoch = self.connected.get(worker_id, 1) - stale
        if not stale:
            self.engines.pop(worker_id, None)
            self.full.pop(worker_id, None)
            self.given_up.discard(worker_id)
            if stops and worker_id in self.connected:
                self.given_up.add(worker_id)
        fault = Fault(f"w{worker_id[0]}", epoch, "killed", 137, is_final=stops)
        self.take(self.fleet.heard(worker_id, fault, self.now))

    @rule(worker_id=worker_ids)
    def worker_lost(self, worker_id: WorkerId) -> None:
        """A link breaks."""
        if self.connected.pop(worker_id, None) is not None and worker_id not in self.given_up:
            self.left_at[worker_id] = self.now
        self.given_up.discard(worker_id)
        self.engines.pop(worker_id, None)
        self.full.pop(worker_id, None)
        self.take(self.fleet.lost(worker_id, self.now))

    @rule(
        worker_id=worker_ids,
        running=st.integers(0, 3),
        rate=st.sampled_from([0.0, 5e3, 5e4]),
        places=st.integers(0, MAX_SEQS + 1),
    )
    def worker_loads(self, worker_id: WorkerId, running: int, rate: float, places: int) -> None:
        """An engine reports, and has more or fewer places than before."""
        epoch = self.connected.get(worker_id, 1)
        if worker_id in self.engines:
            self.full.pop(worker_id, None)
        report = load(running=running, rate=rate, epoch=epoch, places=places)
        self.take(self.fleet.heard(worker_id, report, self.now))

    @rule(worker_id=worker_ids, digests=picks, stores=st.booleans(), misses=st.booleans())
    def block_event(
        self, worker_id: WorkerId, digests: set[BlockDigest], stores: bool, misses: bool
    ) -> None:
        """An engine's blocks change; sometimes the event is lost."""
        engine = self.engines.get(worker_id)
        if engine is None:
            return
        engine.seq += 1
        (engine.held.update if stores else engine.held.difference_update)(digests)
        if not misses:
            kind = BlocksStored if stores else BlocksDropped
            event = kind(engine.seq, b"".join(digests))
            self.take(self.fleet.heard(worker_id, event, self.now))

    @rule(worker_id=worker_ids)
    def snapshot(self, worker_id: WorkerId) -> None:
        """An engine answers with all that it holds, and the index is exactly that."""
        engine = self.engines.get(worker_id)
        if engine is None:
            return
        message = BlocksSnapshot(engine.seq, b"".join(engine.held))
        self.take(self.fleet.heard(worker_id, message, self.now))
        engine.known = True
        index = self.fleet._index
        assert {block for block in BLOCKS if holds(index, worker_id, block)} == engine.held

    @rule(fields=asked, patience_s=st.sampled_from([None, 0.0, 5.0]), struck=st.booleans())
    def ask(self, fields: dict[str, Any], patience_s: float | None, struck: bool) -> None:
        """A turn asks."""
        self.num_tickets += 1
        deadline_at = None if patience_s is None else self.now + patience_s
        self.waiting[self.num_tickets] = self.now
        if fields["auxiliary"]:
            self.auxiliary.add(self.num_tickets)
        fingerprint = str(self.num_tickets).encode()
        if struck:
            self.quarantine.add(self.num_tickets)
            for epoch in range(PROBATION_STRIKES):
                self.fleet.strike((fields["key"], fingerprint), (W1, epoch), "r", "m", self.now)
        ask = request(self.num_tickets, deadline_at=deadline_at, fingerprint=fingerprint, **fields)
        self.take(self.fleet.tickets.ask(ask, self.now))

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data(), tokens=st.sampled_from([None, 0, 100, 3000]), well=st.booleans())
    def release(self, data: st.DataObject, tokens: int | None, well: bool) -> None:
        """A turn ends, whether it ran or waited; telling it twice changes nothing."""
        ticket = data.draw(st.sampled_from(sorted([*self.running, *self.waiting])))
        worker_id = self.running.pop(ticket, None)
        if worker_id is not None:
            self.full.pop(worker_id, None)
        self.waiting.pop(ticket, None)
        self.take(self.fleet.tickets.release(ticket, self.now, tokens, is_proven=well))
        assert self.fleet.tickets.release(ticket, self.now, tokens) == ()

    @precondition(lambda self: self.running.keys() - self.proven)
    @rule(data=st.data())
    def busy(self, data: st.DataObject) -> None:
        """A worker refuses for load, which none does after tokens."""
        ticket = data.draw(st.sampled_from(sorted(self.running.keys() - self.proven)))
        self.full[self.running.pop(ticket)] = self.now
        self.waiting[ticket] = self.now
        self.take(self.fleet.tickets.busy(ticket, self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def started(self, data: st.DataObject) -> None:
        """A first token comes. Where its prompt waited another may: a full worker is tried."""
        ticket = data.draw(st.sampled_from(sorted(self.running)))
        self.full.pop(self.running[ticket], None)
        self.take(self.fleet.tickets.started(ticket, self.now))

    @precondition(lambda self: self.probe is not None)
    @rule(result=st.sampled_from(["passed", "busy", "late", "failed"]))
    def probe_ends(self, result: ProbeResult) -> None:
        """What became of the last probe; it may be told twice, and long after."""
        assert self.probe is not None
        model, serial = self.probe.model, self.probe.serial
        self.take(self.fleet.probe_ended(model, serial, result, "w", "late", self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), proven=st.booleans())
    def judged(self, data: st.DataObject, proven: bool) -> None:
        """A worker gets a ticket on, or fails it."""
        ticket = data.draw(st.sampled_from(sorted(self.running)))
        if proven:
            self.quarantine.discard(ticket)
            self.proven.add(ticket)
            self.take(self.fleet.tickets.proven(ticket, self.now))
        else:
            self.take(self.fleet.tickets.failed(ticket, self.now, "it failed"))

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 6.0, RESUME_WAIT_S]))
    def time_passes(self, seconds: float) -> None:
        """The clock moves on and the dispatcher ticks."""
        self.now += seconds
        self.full = {w: at for w, at in self.full.items() if self.now - at < FULL_AT_MOST_S}
        self.take(self.fleet.tick(self.now))

    @rule(has_chain=st.booleans(), is_named=st.booleans())
    def reload(self, has_chain: bool, is_named: bool) -> None:
        """The file has changed: the model has a chain or none, or no table at all. One that nobody
        serves or waits for is unknown then; the next reload names it again.
        """
        gateway = GatewayConfig(max_queue=MAX_QUEUE, resume_wait_s=RESUME_WAIT_S, rejoin_wait_s=1e9)
        model = ModelConfig(name="m", fallback=CLOUD if has_chain else ())
        if is_named or not (self.waiting or self.connected):
            self.fleet.reconfigure(gateway, (model,), self.now)
        else:
            self.fleet.reconfigure(gateway, (ModelConfig(name="other"),), self.now)
        self.take(self.fleet.tick(self.now))

    # What must always hold.

    @invariant()
    def tickets_are_neither_lost_nor_doubled(self) -> None:
        """The fleet counts what its effects have told."""
        statistics = self.fleet.statistics()
        assert statistics.running == len(self.running)
        assert statistics.queued == len(self.waiting)
        assert not self.running.keys() & self.waiting.keys()

    @invariant()
    def requests_on_probation_run_one_at_a_time(self) -> None:
        """Otherwise one of them could be struck for the death that another caused."""
        assert len(self.quarantine & self.running.keys()) <= 1

    @invariant()
    def caps_hold(self) -> None:
        """No worker has more than its places, one auxiliary more at most, nor too much KV."""
        for worker in self.fleet.fleet:
            tickets = [t for t, where in self.running.items() if where == worker.worker_id]
            assert sorted(worker.reservations) == sorted(tickets)
            assert len(tickets) <= MAX_SEQS + 1
            if len(tickets) > MAX_SEQS:
                assert self.auxiliary & set(tickets)
            assert len(tickets) <= 1 or worker.kv_reserved_tokens <= KV_TOKENS
            assert worker.wait_s(self.now) >= 0.0
            if not tickets:
                assert worker.kv_reserved_tokens == 0

    @invariant()
    def nobody_waits_without_need(self) -> None:
        """While somebody waits no worker is empty; a queue without room for its first has cause."""
        model = self.fleet._models.by_name.get("m")
        assert model is not None
        ready = self.fleet.fleet.ready(model)
        assert model.shares._keys.num_active == len(self.running) + len(self.waiting)
        if self.waiting and ready:
            empty = [w for w in ready if not w.reservations and w.full_since is None]
            order = model.queue.in_order(model.shares)
            if self.quarantine & self.running.keys():
                order = [waiting for waiting in order if not waiting.is_on_probation]
            if not order:
                return
            first = order[0].request
            usable = eligible(ready, first, self.now)
            assert not [w for w in empty if w in usable]
            expected = model.expected_output(first.max_tokens)
            roomy = [w for w in usable if w.has_room(first, expected)]
            assert not [w for w in roomy if w.wait_s(self.now) == 0.0] or len(roomy) > 1

    @invariant()
    def nobody_waits_for_those_who_have_given_up(self) -> None:
        """Not even who has begun, unless somebody who has left may come back."""
        is_awaited = any(self.now - at < RESUME_WAIT_S for at in self.left_at.values())
        if self.connected and self.connected.keys() == self.given_up and not is_awaited:
            assert not self.waiting

    @invariant()
    def the_index_is_exact_or_empty(self) -> None:
        """What the index promises is what the engine holds after the last event that came."""
        for worker_id in IDS:
            part = self.fleet._index._parts.get(worker_id)
            assert (part is not None) == (worker_id in self.engines)
            if part is not None and not self.engines[worker_id].known:
                assert not part.num_blocks

    def teardown(self) -> None:
        """When all is released nothing is reserved and nobody is answered any more."""
        for ticket in [*self.waiting, *self.running]:
            self.waiting.pop(ticket, None)
            if (worker_id := self.running.pop(ticket, None)) is not None:
                self.full.pop(worker_id, None)
            effects = self.fleet.tickets.release(ticket, self.now)
            self.take(effects)
        for ticket in list(self.running):
            del self.running[ticket]
            self.take(self.fleet.tickets.release(ticket, self.now))
        statistics = self.fleet.statistics()
        assert statistics.running == statistics.queued == 0
        assert all(not worker.kv_reserved_tokens for worker in self.fleet.workers())


TestDispatchMachine = DispatchMachine.TestCase
TestDispatchMachine.settings = settings(stateful_step_count=40)
