"""Generated fleets look like the fleets that operators report."""

from itertools import pairwise

import pytest

from benchmarks.routing.cost_model import QWEN3_8B_H200
from benchmarks.routing.fleet import KINDS, fleet_trace
from benchmarks.routing.run import SimulationCase, busy_time_s, simulate
from benchmarks.routing.trace import RoutingTrace, TracedTurn
from benchmarks.routing.worker import WorkerSpec

ROOMY = WorkerSpec(QWEN3_8B_H200, 50_000_000, 64, 8192)
NUM_SESSIONS = 20


@pytest.fixture(name="fleet", params=KINDS, scope="module")
def _fleet(request: pytest.FixtureRequest) -> RoutingTrace:
    """One fleet of each kind."""
    return fleet_trace(request.param, NUM_SESSIONS, 1)


def sessions(fleet: RoutingTrace) -> dict[str, list[TracedTurn]]:
    """Turns by session."""
    found: dict[str, list[TracedTurn]] = {}
    for turn in fleet.turns:
        assert turn.session is not None
        found.setdefault(turn.session, []).append(turn)
    return found


def test_prompts_outweigh_answers_28_to_1(fleet: RoutingTrace) -> None:
    """Prompts outweigh answers 28 to 1, as reported of a real agent fleet."""
    prompts = sum(turn.prompt_tokens for turn in fleet.turns)
    assert 25 <= prompts / sum(turn.output_tokens for turn in fleet.turns) <= 31


def test_one_replica_with_room_hits_90_to_96_percent(fleet: RoutingTrace) -> None:
    """One replica with room hits 90 to 96 percent, as reported too."""
    case = SimulationCase("round_robin", fleet, busy_time_s(fleet, ROOMY), 1, 0.5, 0, ROOMY)
    assert 0.90 <= simulate(case)["hit_rate"] <= 0.96


def test_sessions_have_10_to_40_turns_that_grow_on_one_prefix(fleet: RoutingTrace) -> None:
    """Each turn holds the one before, and all sessions of an agent begin alike."""
    by_name = sessions(fleet)
    parents = {name: turns for name, turns in by_name.items() if "." not in name}
    assert len(parents) == NUM_SESSIONS
    assert len({turns[0].digests[:24] for turns in parents.values()}) == 1
    for turns in by_name.values():
        assert 10 <= len(turns) <= 40
        for before, after in pairwise(turns):
            assert 500 <= after.prompt_tokens - before.prompt_tokens <= 4_000
            assert after.digests[: len(before.digests)] == before.digests
            assert 0.1 <= after.pause_s <= 60.0
            assert max(after.after) >= before.number


def test_subagents_fork_by_two_or_three_and_their_parent_waits() -> None:
    """A parent's next turn follows the last turns of all that it forked."""
    fleet = fleet_trace("forks", NUM_SESSIONS, 1)
    by_name = sessions(fleet)
    children = {name for name in by_name if "." in name}
    assert children
    assert len({by_name[name][0].digests[:12] for name in children}) == 1
    for name, turns in by_name.items():
        waits = [turn.after for turn in turns if len(turn.after) > 1]
        assert all(len(after) in {2, 3} for after in waits)
        ends = {number for after in waits for number in after}
        assert all(fleet.turns[end].session in children for end in ends), name


def test_a_seed_is_one_fleet(fleet: RoutingTrace) -> None:
    """One seed makes one fleet, and another seed another fleet; the numbers are in order."""
    kind = fleet.name.removeprefix("fleet_")
    assert fleet_trace(kind, NUM_SESSIONS, 1) == fleet
    assert fleet_trace(kind, NUM_SESSIONS, 2) != fleet
    assert [turn.number for turn in fleet.turns] == list(range(len(fleet.turns)))
    assert all(before < turn.number for turn in fleet.turns for before in turn.after)
