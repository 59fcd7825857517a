"""Progress watches in virtual time: only lack of progress is a failure."""

from collections.abc import Iterator

from workers.ipc.messages import Heartbeat
from workers.supervisor.progress_watch import (
    MAX_PAUSE_S,
    STOPPED_S,
    GatewayWatch,
    HangWatch,
    StartWatch,
)

TICK_S = 0.1


def ticks(start: float, until: float) -> Iterator[float]:
    """Moments at which a supervisor looks."""
    for i in range(1, round((until - start) / TICK_S) + 1):
        yield start + i * TICK_S


def verdict_at(watch: HangWatch | StartWatch, start: float, until: float) -> float | None:
    """When the watch gives its verdict, None if not before `until`."""
    return next((now for now in ticks(start, until) if watch.verdict(now)), None)


def test_work_without_a_step_is_a_hang_after_three_seconds() -> None:
    """A busy engine whose step count stands still is hung at 3 s, also with heartbeats."""
    watch = HangWatch(stall_s=120.0, now=0.0)
    watch.heartbeat(Heartbeat(1, busy=True, phase="", longest_step_s=0.01), 0.0)
    for now in ticks(0.0, 2.9):
        watch.heartbeat(Heartbeat(1, busy=True, phase="", longest_step_s=0.01), now)
        assert watch.verdict(now) is None
    found = verdict_at(watch, 2.9, 4.0)
    assert found is not None
    assert 2.95 <= found <= 3.15


def test_an_idle_engine_never_hangs() -> None:
    """Without work pending, silence is no failure."""
    watch = HangWatch(stall_s=120.0, now=0.0)
    watch.heartbeat(Heartbeat(5, busy=False, phase="", longest_step_s=0.01), 0.0)
    assert verdict_at(watch, 0.0, 1000.0) is None


def test_a_submission_to_a_silent_engine_counts_as_work() -> None:
    """An engine that stopped while idle is found once a step is due, after a late heartbeat too."""
    watch = HangWatch(stall_s=120.0, now=0.0)
    assert verdict_at(watch, 0.0, 50.0) is None
    watch.work_sent(50.0)
    watch.heartbeat(Heartbeat(5, busy=False, phase="", longest_step_s=0.01), 50.05)
    found = verdict_at(watch, 50.0, 60.0)
    assert found is not None
    assert found <= 53.3


def test_idle_beats_after_the_work_settle_the_debt() -> None:
    """Work that was refused or finished between two heartbeats leaves nothing pending."""
    watch = HangWatch(stall_s=120.0, now=0.0)
    watch.work_sent(0.0)
    watch.heartbeat(Heartbeat(5, busy=False, phase="", longest_step_s=0.01), 0.2)
    watch.heartbeat(Heartbeat(5, busy=False, phase="", longest_step_s=0.01), 0.4)
    assert verdict_at(watch, 0.4, 100.0) is None


def test_long_steps_lengthen_the_patience() -> None:
    """Ten times the longest recent step, if that is more than 3 s."""
    watch = HangWatch(stall_s=120.0, now=0.0)
    watch.heartbeat(Heartbeat(7, busy=True, phase="", longest_step_s=2.0), 0.0)
    found = verdict_at(watch, 0.0, 60.0)
    assert found is not None
    assert 19.9 <= found <= 20.2


def test_a_step_larger_than_any_before_gets_its_estimate() -> None:
    """Ten times the estimate, but no more than `stall_s`: an estimate may be far too long."""
    for expected_s, limit_s in ((0.1, 3.0), (4.0, 40.0), (500.0, 120.0)):
        watch = HangWatch(stall_s=120.0, now=0.0)
        watch.heartbeat(
            Heartbeat(7, busy=True, longest_step_s=0.01, expected_step_s=expected_s), 0.0
        )
        found = verdict_at(watch, 0.0, 200.0)
        assert found is not None
        assert limit_s - 0.1 <= found <= limit_s + 0.2


def test_a_declared_phase_may_last_as_long_as_a_start() -> None:
    """A compile that is declared stalls after `stall_s` and not before."""
    watch = HangWatch(stall_s=120.0, now=0.0)
    watch.heartbeat(Heartbeat(7, busy=True, phase="compile", longest_step_s=0.1), 0.0)
    found = verdict_at(watch, 0.0, 200.0)
    assert found is not None
    assert 119.9 <= found <= 120.2


def test_a_start_may_take_for_ever_while_it_progresses() -> None:
    """New phases, fractions or details count; repeating the last report does not."""
    watch = StartWatch(stall_s=10.0, now=0.0)
    for step in range(100):
        now = 9.0 * step
        watch.progress("weights", step / 100, "", now)
        assert verdict_at(watch, now, now + 9.0) is None
    at = 9.0 * 100
    watch.progress("weights", 0.99, "", at)
    found = verdict_at(watch, at, at + 20.0)
    assert found is not None
    assert found <= at + 10.0
    verdict = watch.verdict(found)
    assert verdict is not None
    assert "weights" in verdict


def gone_at(watch: GatewayWatch, start: float, until: float) -> float | None:
    """When the gateway counts as gone, None if not before `until`."""
    return next((now for now in ticks(start, until) if watch.verdict(now)), None)


def test_a_gateway_is_gone_after_ten_silent_seconds() -> None:
    """Any frame counts as a sign of life; a loop that lags for seconds is not dead."""
    watch = GatewayWatch(0.0)
    for now in ticks(0.0, 20.0):
        watch.heard(now)
        watch.took(now)
        assert watch.verdict(now) is None
    found = gone_at(watch, 20.0, 31.0)
    assert found is not None
    assert 29.9 <= found <= 30.2
    assert "sent nothing" in str(watch.verdict(found))


def test_a_gateway_that_pings_and_takes_nothing_is_gone() -> None:
    """A gateway that pings and takes nothing is given up: its loop runs, but frames to it stay
    unread.
    """
    watch = GatewayWatch(0.0)
    for now in ticks(0.0, 9.8):
        watch.heard(now)
        assert watch.verdict(now) is None
    watch.heard(9.9)
    found = gone_at(watch, 9.8, 11.0)
    assert found is not None
    assert "read nothing" in str(watch.verdict(found))


def test_a_watcher_that_slept_blames_nobody() -> None:
    """A watcher that slept reports no fault: after a pause of the supervisor itself, each watch has
    its whole patience again.
    """
    gateway, engine = GatewayWatch(0.0), HangWatch(stall_s=120.0, now=0.0)
    engine.heartbeat(Heartbeat(1, busy=True, phase="", longest_step_s=0.01), 0.0)
    assert gateway.verdict(60.0) is None
    assert engine.verdict(60.0) is None
    assert gone_at(gateway, 60.0, 70.2) is not None
    assert verdict_at(engine, 60.0, 63.3) is not None


def test_the_others_wait_less_for_a_gateway_that_shares_their_engine() -> None:
    """Three seconds for one that reads nothing, less for a stopped one; others may be silent."""
    lagging, deaf, stopped = GatewayWatch(0.0), GatewayWatch(0.0), GatewayWatch(0.0)
    for now in ticks(0.0, 9.8):
        lagging.took(now)
        stopped.took(now)
        deaf.heard(now)
        assert lagging.verdict(now, is_shared=True) is None
        verdict = deaf.verdict(now, is_shared=True)
        assert (verdict is not None) == (now >= MAX_PAUSE_S), now
        verdict = stopped.verdict(now, is_shared=True, is_stopped=lambda: True)
        assert (verdict == "its process is stopped") == (now >= STOPPED_S), now
    assert stopped.verdict(9.85, is_stopped=lambda: True) is None
