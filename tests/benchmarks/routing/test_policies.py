"""Policies by example, and what must hold for all of them."""

from collections import Counter

import pytest

from benchmarks.routing.cache import BlockCache
from benchmarks.routing.cost_model import QWEN3_8B_H200
from benchmarks.routing.fleet import fleet_trace
from benchmarks.routing.policies import BASELINES, OURS, POLICIES
from benchmarks.routing.policies.aibrix import AibrixPrefix
from benchmarks.routing.policies.base import Baseline, Setting
from benchmarks.routing.policies.dynamo import DynamoKv
from benchmarks.routing.policies.llmd import LlmdPrecise
from benchmarks.routing.policies.lmetric import LMetric
from benchmarks.routing.policies.routed_blocks import RoutedBlocks
from benchmarks.routing.policies.session_hash import SessionHash
from benchmarks.routing.policies.simple import LeastRequests, RoundRobin
from benchmarks.routing.policies.smg import SmgCacheAware
from benchmarks.routing.run import SimulationCase, busy_time_s, simulate
from benchmarks.routing.trace import DigestChains, TracedTurn
from benchmarks.routing.worker import SimWorker, WorkerReport, WorkerSpec
from protocol.ids import BlockDigest
from protocol.messages import BlocksStored, Load

BLOCK = 512
SPEC = WorkerSpec(QWEN3_8B_H200, 200_000, 64, 8192)
CHAINS = DigestChains()


def setting(num_workers: int) -> Setting:
    """Idle workers."""
    workers = [
        SimWorker(n, SPEC, BlockCache(SPEC.kv_tokens // BLOCK), BLOCK) for n in range(num_workers)
    ]
    return Setting(num_workers, SPEC, BLOCK, 0, workers)


def turn(number: int, ids: list[int], session: str | None = None) -> TracedTurn:
    """A prompt of these blocks and a few tokens."""
    return TracedTurn(number, session, 0.0, len(ids) * BLOCK + 9, 50, CHAINS.digests(ids))


def place(policy: Baseline, asked: TracedTurn) -> int:
    """Where the policy sends it."""
    ((number, worker),) = policy.arrived(asked, 0.0)
    assert number == asked.number
    return worker


def stored(worker: int, digests: tuple[BlockDigest, ...]) -> WorkerReport:
    """The worker tells that it holds these."""
    load = Load(1, 0, 0, 390, 390, 1, 0, 5.0, 40_000.0)
    return WorkerReport(worker, 0.0, (BlocksStored(1, b"".join(digests)),), (), (), (), load)


def finished(worker: int, *numbers: int) -> WorkerReport:
    """The worker tells that these are over."""
    load = Load(1, 0, 0, 390, 390, 1, 0, 5.0, 40_000.0)
    return WorkerReport(worker, 0.0, (), (), numbers, numbers, load)


def test_round_robin_goes_round() -> None:
    """One after the other."""
    policy = RoundRobin(setting(3))
    assert [place(policy, turn(n, [n])) for n in range(4)] == [0, 1, 2, 0]


def test_least_requests_counts_finished_requests() -> None:
    """The one with the fewest; among equals they take turns."""
    policy = LeastRequests(setting(3))
    assert [place(policy, turn(n, [n])) for n in range(3)] == [0, 1, 2]
    policy.on_report(finished(1, 1), 0.0)
    assert place(policy, turn(3, [3])) == 1


def test_session_hash_is_sticky() -> None:
    """The hash is of the session if there is one, else of the beginning of the prompt."""
    policy = SessionHash(setting(4))
    assert len({place(policy, turn(n, [n], "one")) for n in range(8)}) == 1
    assert len({place(policy, turn(n, [1, 2, 3, 4, n])) for n in range(20, 28)}) == 1
    assert len({place(policy, turn(n, [n], f"session {n}")) for n in range(40, 80)}) == 4


def test_smg_follows_the_prefix_until_the_load_is_out_of_balance() -> None:
    """More than 0.3 of the prompt routed before: there; 65 requests apart: the least busy."""
    policy = SmgCacheAware(setting(2))
    first = place(policy, turn(0, [1, 2, 3]))
    assert place(policy, turn(1, [1, 2, 4])) == first
    assert place(policy, turn(2, [1, 8, 9, 10])) != first  # a quarter of it is known
    for number in range(3, 67):
        assert place(policy, turn(number, [1, 2, number + 100])) == first
    assert place(policy, turn(99, [1, 2, 999])) != first


def test_aibrix_prefers_a_match_that_is_not_busier_than_usual() -> None:
    """The longest match within a standard deviation of the mean load; 9 apart: the least busy."""
    policy = AibrixPrefix(setting(3))
    first = place(policy, turn(0, [1, 2, 3]))
    policy.on_report(finished(first, 0), 0.0)
    assert place(policy, turn(1, [1, 2, 4])) == first
    assert place(policy, turn(2, [1, 2, 5])) != first  # one request there, none elsewhere
    policy.in_flight[:] = [0, 9, 0]
    assert place(policy, turn(3, [1, 2, 3])) != 1


def test_dynamo_counts_prompt_work_and_blocks_held() -> None:
    """A hit is worth its blocks, until as many are at work there."""
    policy = DynamoKv(setting(2))
    policy.on_report(stored(1, CHAINS.digests([1, 2, 3, 4])), 0.0)
    assert place(policy, turn(0, [1, 2, 3, 4])) == 1
    assert place(policy, turn(1, [1, 2, 3, 4])) == 0
    policy.on_report(finished(1, 0), 0.0)
    assert place(policy, turn(2, [7])) == 1


def test_llmd_adds_scores_of_prefix_queue_and_room() -> None:
    """An idle holder wins; one whose queue and cache are full loses 4 to 3."""
    policy = LlmdPrecise(setting(2))
    policy.on_report(stored(1, CHAINS.digests([1, 2])), 0.0)
    assert place(policy, turn(0, [1, 2])) == 1
    policy.setting.workers[1].cache.allocate(390)
    for number in range(5):
        policy.setting.workers[1].submit(turn(10 + number, [50 + number]), 0.0)
    assert [worker for _, worker in policy.arrived(turn(20, [1, 2]), 1.0)] == [0]


def test_lmetric_multiplies() -> None:
    """The holder takes it until its batch times the rest of the prompt is more."""
    policy = LMetric(setting(2))
    policy.on_report(stored(1, CHAINS.digests([1, 2, 3])), 0.0)
    chosen = [place(policy, turn(number, [1, 2, 3, number + 10])) for number in range(5)]
    assert chosen[0] == 1
    assert 0 in chosen


def test_routed_blocks_forget_tails_first() -> None:
    """Beyond its size the least recently sent tail goes, for that worker alone."""
    routed = RoutedBlocks(2, 4)
    old, new = CHAINS.digests([1, 2, 3]), CHAINS.digests([1, 5, 6])
    routed.insert(old, 0)
    routed.insert(old, 1)
    routed.insert(new, 0)
    assert routed.matched(old) == [2, 3]
    assert routed.matched(new) == [3, 1]
    assert routed.longest(old) == (3, 1)
    assert routed.longest(CHAINS.digests([99])) == (0, None)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_serves_every_turn_and_does_so_again(name: str) -> None:
    """Each turn of a fleet ends, and a second run gives the very same row."""
    trace = fleet_trace("forks", 3, 0)
    case = SimulationCase(name, trace, busy_time_s(trace, SPEC), 3, 0.9, 0, SPEC)
    row = simulate(case)
    assert row == simulate(case)
    assert row["ttft_p50_ms"] > 0
    assert 0 < row["hit_rate"] < 1
    assert row["imbalance"] >= 1


def test_the_table_has_all_that_was_published() -> None:
    """Ours, ten baselines; each has a name of its own."""
    assert OURS not in BASELINES
    assert len(BASELINES) == 10
    assert max(Counter(BASELINES.values()).values()) == 1
