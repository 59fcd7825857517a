"""The clock, the load and the figures of a row."""

import pytest

from benchmarks.routing.cache import BlockCache
from benchmarks.routing.cost_model import CostModel
from benchmarks.routing.policies.base import Setting
from benchmarks.routing.policies.simple import RoundRobin
from benchmarks.routing.run import SimulationCase, busy_time_s, figures, simulate
from benchmarks.routing.simulation import Simulation, TurnOutcome
from benchmarks.routing.trace import DigestChains, RoutingTrace, TracedTurn
from benchmarks.routing.worker import SimWorker, WorkerSpec

BLOCK = 512
SPEC = WorkerSpec(CostModel(0.01, 0.0, 0.0, 1e-4, 0.0), 100_000, 8, 4096)


def play(*turns: TracedTurn, scale: float = 1.0) -> list[TurnOutcome]:
    """One worker serves them."""
    workers = [SimWorker(0, SPEC, BlockCache(100), BLOCK)]
    policy = RoundRobin(Setting(1, SPEC, BLOCK, 0, workers))
    simulation = Simulation(RoutingTrace("t", BLOCK, turns), policy, workers, scale)
    simulation.run()
    return simulation.outcomes


def test_one_request_takes_its_prefill_and_its_steps() -> None:
    """The first token comes with the prompt, each other one with a step."""
    (one,) = play(TracedTurn(0, None, 2.0, 1000, 11, ()))
    assert one.first_token_at - one.arrived_at == pytest.approx(0.01 + 0.1)
    assert one.finished_at - one.first_token_at == pytest.approx(10 * 0.01)


def test_a_turn_comes_at_its_time_but_after_the_one_before_and_its_pause() -> None:
    """The later of the two; pauses are not scaled, arrivals are."""
    first = TracedTurn(0, "s", 1.0, 1000, 11, ())
    soon = TracedTurn(1, "s", 1.0, 1000, 11, (), after=(0,), pause_s=3.0)
    late = TracedTurn(2, "s", 50.0, 1000, 11, (), after=(0, 1), pause_s=3.0)
    outcomes = play(first, soon, late, scale=2.0)
    assert outcomes[0].arrived_at == 0.0
    assert outcomes[1].arrived_at == pytest.approx(outcomes[0].finished_at + 3.0)
    assert outcomes[2].arrived_at == 98.0


def test_a_hit_is_what_the_worker_had_cached() -> None:
    """The second turn computes only what is new, but at least one token."""
    chains = DigestChains()
    first = TracedTurn(0, None, 0.0, 1024, 2, chains.digests([1, 2]))
    longer = TracedTurn(1, None, 10.0, 1600, 2, chains.digests([1, 2, 3]))
    again = TracedTurn(2, None, 20.0, 1024, 2, chains.digests([1, 2]))
    outcomes = play(first, longer, again)
    assert [one.cached_tokens for one in outcomes] == [0, 1024, 512]


def test_load_is_work_over_what_the_fleet_could_do_in_the_span() -> None:
    """At load 1 the arrivals take as long as one worker per N needs for all of them."""
    turns = tuple(TracedTurn(n, None, float(n), 1000, 50, ()) for n in range(101))
    trace = RoutingTrace("t", BLOCK, turns)
    busy_s = busy_time_s(trace, SPEC)
    assert busy_s > 101 * 0.1
    rows = {
        load: simulate(SimulationCase("round_robin", trace, busy_s, 2, load, 0, SPEC))
        for load in (0.5, 1.0)
    }
    spans_s = {load: 101 * 50 / row["throughput_tok_s"] for load, row in rows.items()}
    assert spans_s[0.5] == pytest.approx(busy_s, rel=0.1)
    assert spans_s[1.0] == pytest.approx(busy_s / 2, rel=0.2)
    assert rows[1.0]["ttft_mean_ms"] > rows[0.5]["ttft_mean_ms"]


def test_the_figures_of_a_row() -> None:
    """A row computed by hand from two outcomes and two workers."""
    trace = RoutingTrace(
        "t", BLOCK, (TracedTurn(0, None, 0.0, 1000, 30, ()), TracedTurn(1, None, 0.0, 3000, 50, ()))
    )
    outcomes = [
        TurnOutcome(arrived_at=0.0, first_token_at=1.0, finished_at=3.0, cached_tokens=1000),
        TurnOutcome(arrived_at=1.0, first_token_at=4.0, finished_at=5.0),
    ]
    workers = [SimWorker(n, SPEC, BlockCache(9), BLOCK) for n in range(2)]
    workers[0].busy_s, workers[1].busy_s = 3.0, 1.0
    assert figures(trace, outcomes, workers) == {
        "ttft_mean_ms": 2000.0,
        "ttft_p50_ms": 3000.0,
        "ttft_p90_ms": 3000.0,
        "ttft_p99_ms": 3000.0,
        "ttft_max_ms": 3000.0,
        "hit_rate": 0.25,
        "throughput_tok_s": 16.0,
        "imbalance": 1.5,
    }
