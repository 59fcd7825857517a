"""Where conversations live: they stick, and a shared prefix does not collapse onto one worker.

The simulated engines prefill at a fixed rate, one prompt after the other, and report the blocks
when they are computed.
"""

from dataclasses import dataclass, field

import pytest

from gateway.routing.effects import Assign, Effects
from gateway.routing.fleet_state import FleetState
from protocol.ids import BlockDigest, WorkerId
from tests.fakes.fleet import BLOCK, W1, W2, chain, dispatch, facts, load, placed, request, stored

SHARED = ("system and tools", 375)  # 12,000 tokens


@dataclass
class _Engine:
    """What a worker did: its blocks, its prefilled tokens and when it is free."""

    seq: int = 0
    held: set[BlockDigest] = field(default_factory=set)
    prefilled: int = 0
    turns: int = 0
    free_at: float = 0.0


class _Fleet:
    """Two workers that prefill at `rate` tokens per second. `homes`: where each ticket went."""

    def __init__(self, rate: float, *, measured: bool) -> None:
        self.rate = rate
        self.now = 0.0
        self.engines = {W1: _Engine(), W2: _Engine()}
        self.dispatch: FleetState = dispatch((W1, facts(max_seqs=16)), (W2, facts(max_seqs=16)))
        if measured:
            for worker_id in self.engines:
                self.dispatch.heard(worker_id, load(rate=rate), 0.0)
        self.homes: dict[int, WorkerId] = {}
        self._prompts: dict[int, tuple[BlockDigest, ...]] = {}
        self._computing: list[tuple[float, int, tuple[BlockDigest, ...]]] = []

    def ask(self, digests: tuple[BlockDigest, ...], session: str | None) -> int:
        """A turn begins; it may have to wait until a worker has time for its prefill."""
        ticket = len(self._prompts) + 1
        self._prompts[ticket] = digests
        asked = request(ticket, digests, session=session, max_tokens=400)
        self._submit(self.dispatch.tickets.ask(asked, self.now))
        return ticket

    def pass_time(self, seconds: float) -> None:
        """Let that much time pass; engines report what they finish, in order."""
        until = self.now + seconds
        while self._computing and min(self._computing)[0] <= until:
            done = min(self._computing)
            self._computing.remove(done)
            self.now, ticket, fresh = done
            worker_id = self.homes[ticket]
            engine = self.engines[worker_id]
            engine.seq += 1
            self._submit(self.dispatch.heard(worker_id, stored(engine.seq, fresh), self.now))
            self._submit(self.dispatch.tickets.started(ticket, self.now))
        self.now = until
        self._submit(self.dispatch.tick(self.now))

    def finish(self, ticket: int) -> None:
        """The turn's answer is complete."""
        self._submit(self.dispatch.tickets.release(ticket, self.now, output_tokens=200))

    def _submit(self, effects: Effects) -> None:
        for ticket, worker_id in placed(effects).items():
            engine, digests = self.engines[worker_id], self._prompts[ticket]
            fresh = tuple(digest for digest in digests if digest not in engine.held)
            tokens = len(fresh) * BLOCK
            engine.prefilled += tokens
            engine.turns += 1
            engine.held.update(fresh)
            engine.free_at = max(self.now, engine.free_at) + tokens / self.rate
            self.homes[ticket] = worker_id
            self._computing.append((engine.free_at, ticket, fresh))


@pytest.mark.parametrize("gap_s", [0.0, 0.05, 0.5, 2.0, 5.0])
@pytest.mark.parametrize(
    ("rate", "measured"), [(2000.0, False), (10_000.0, True), (40_000.0, True)]
)
@pytest.mark.parametrize("named", [True, False])
def test_a_shared_prefix_does_not_collapse(
    gap_s: float, rate: float, measured: bool, named: bool
) -> None:
    """Sixteen new sessions with one 12k prefix: no worker gets more than 60 % of them when they
    come at once or close together, nor two thirds when they come one by one.
    """
    most = 0.6 if gap_s < 5.0 else 2 / 3
    fleet = _Fleet(rate, measured=measured)
    for number in range(16):
        session = f"s{number}" if named else None
        fleet.ask(chain(SHARED, (f"agent {number}", 6)), session)
        fleet.pass_time(gap_s)
    fleet.pass_time(200.0)
    assert len(fleet.homes) == 16
    assert max(engine.turns for engine in fleet.engines.values()) <= most * 16
    assert max(engine.prefilled for engine in fleet.engines.values()) <= most * sum(
        engine.prefilled for engine in fleet.engines.values()
    )


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("num_agents", [2, 6, 12])
def test_conversations_stay_where_they_began(num_agents: int, named: bool) -> None:
    """Over eight turns, all agents at work at once, every conversation keeps its worker."""
    fleet = _Fleet(10_000.0, measured=True)
    homes: dict[int, set[WorkerId]] = {agent: set() for agent in range(num_agents)}
    for turn in range(1, 9):
        tickets = []
        for agent in range(num_agents):
            prompt = chain(SHARED, (f"agent {agent}", 30 * turn))
            tickets.append(fleet.ask(prompt, f"s{agent}" if named else None))
            fleet.pass_time(0.1)
        fleet.pass_time(5.0)
        for agent, ticket in enumerate(tickets):
            homes[agent].add(fleet.homes[ticket])
            fleet.finish(ticket)
        fleet.pass_time(3.0)
    assert [len(homes[agent]) for agent in homes] == [1] * num_agents
    assert len(set.union(*homes.values())) == 2


def test_a_session_without_cached_blocks_returns_to_its_home() -> None:
    """While no block events come, the session key alone keeps a conversation on its worker."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    homes: set[WorkerId] = set()
    for turn in range(1, 9):
        effects = fleet.tickets.ask(request(turn, chain(("short", turn)), session="s"), 10.0 * turn)
        homes.update(placed(effects).values())
        fleet.tickets.release(turn, 10.0 * turn + 1)
        assert all("tie" in e.reason for e in effects if isinstance(e, Assign))
    assert len(homes) == 1
