"""When hosts are woken and when their power is switched."""

import math

from config import HostConfig
from gateway.alerts.hosts import AGAIN_S, MAX_POWER_RUNS, MAX_WAKES, WAKE_EVERY_S, Hosts
from gateway.telemetry import FallbackOff, FallbackOn, WorkerLost, WorkerReady, WorkerStarting

HOST = HostConfig(
    name="box",
    workers=("w1", "w2"),
    models=("m",),
    mac="00:1a:2b:3c:4d:5e",
    power=("switch", "box"),
    power_after_s=100.0,
)
ASKED = FallbackOn("m", ("cloud",), "no worker")


def whats(hosts: Hosts, now: float) -> list[str]:
    return [action.what for action in hosts.due(now)]


def test_a_sleeping_host_is_woken_until_a_worker_registers() -> None:
    hosts = Hosts((HOST,))
    assert hosts.wait_s(0.0) == math.inf
    hosts.observe(ASKED, 0.0)
    assert whats(hosts, 0.0) == ["wake"]
    assert whats(hosts, 1.0) == []
    assert hosts.wait_s(1.0) == WAKE_EVERY_S - 1
    assert whats(hosts, WAKE_EVERY_S) == ["wake"]
    hosts.observe(WorkerStarting("w2", 1), 70.0)
    assert hosts.wait_s(70.0) == math.inf


def test_a_host_that_does_not_wake_is_left_in_peace() -> None:
    hosts = Hosts((HOST,))
    hosts.observe(ASKED, 0.0)
    rounds = [whats(hosts, WAKE_EVERY_S * step) for step in range(MAX_WAKES + 5)]
    assert sum(map(len, rounds)) == MAX_WAKES


def test_models_of_others_and_hosts_that_are_awake_wake_nothing() -> None:
    hosts = Hosts((HOST,))
    hosts.observe(FallbackOn("other", ("cloud",), "no worker"), 0.0)
    assert whats(hosts, 0.0) == []
    hosts.observe(WorkerReady("w1", 1, ("m",), "cuda:0"), 0.0)
    hosts.observe(ASKED, 1.0)
    assert whats(hosts, 1.0) == []


def test_the_end_of_the_fallback_ends_the_waking() -> None:
    hosts = Hosts((HOST,))
    hosts.observe(ASKED, 0.0)
    hosts.observe(FallbackOff("m", 3), 0.5)
    assert whats(hosts, 1.0) == []


def test_the_power_hook_runs_once_the_last_worker_stays_away() -> None:
    """The power hook runs once the last worker stays away, and again after half an hour, three
    times in all.
    """
    hosts = Hosts((HOST,))
    for worker in ("w1", "w2"):
        hosts.observe(WorkerReady(worker, 1, ("m",), "cuda:0"), 0.0)
    hosts.observe(WorkerLost("w1", "silent"), 10.0)
    assert whats(hosts, 1000.0) == []
    hosts.observe(WorkerLost("w2", "silent"), 1000.0)
    assert whats(hosts, 1099.0) == []
    assert whats(hosts, 1100.0) == ["power"]
    rounds = [whats(hosts, 1100.0 + AGAIN_S * step) for step in range(1, 6)]
    assert sum(map(len, rounds)) == MAX_POWER_RUNS - 1


def test_a_worker_that_comes_back_in_time_keeps_the_power() -> None:
    hosts = Hosts((HOST,))
    hosts.observe(WorkerReady("w1", 1, ("m",), "cuda:0"), 0.0)
    hosts.observe(WorkerLost("w1", "silent"), 10.0)
    hosts.observe(WorkerStarting("w1", 2), 60.0)
    assert whats(hosts, 500.0) == []
