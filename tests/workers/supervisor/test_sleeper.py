"""Engines that sleep without an end, and what happens when they do not do what they say.

The engine is the stub of the supervisor's seam, in a process of its own.
"""

import io
import itertools
import os
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from protocol.messages import Register, Residency
from tests.fakes.fixed_card import FixedCard
from tests.fakes.sleeping_worker import CONFIG, WAY, world
from tests.fakes.worker_process import BOUND_S
from workers.ipc import CHECKPOINT, NATIVE_SLEEP
from workers.supervisor import sleeper as sleeper_file
from workers.supervisor import turn_taker
from workers.supervisor.card_memory import CardMemory, CardUse
from workers.supervisor.engine_life import EngineLife
from workers.supervisor.lifecycle import EngineState, Lifecycle, LifeEvent
from workers.supervisor.log import WorkerLog
from workers.supervisor.restart_policy import RestartPolicy
from workers.supervisor.seat_states import SeatEvent, SeatState, SleepTrial
from workers.supervisor.turn_taker import TurnTaker


class _Dead:
    """An engine of which nothing but its process is looked at."""

    def __init__(self) -> None:
        self.process = self
        self.pid = 1


async def test_it_sleeps_and_wakes_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as one:
        pid, epoch = one.pid, one.relay.epoch
        for number in range(1, 4):
            await one.sleep()
            assert (one.state, one.pid, one.card.is_out) == (EngineState.DORMANT, pid, True)
            assert one.relay.epoch == epoch + number
            await one.wake()
            assert (one.pid, one.card.is_out) == (pid, False)
            told = [each for each in one.said if isinstance(each, Register)][-1]
            assert (told.epoch, told.engine is not None) == (one.relay.epoch, True)
        record = one.turns.record
        assert (record.way, record.asleep_bytes) == (WAY, 2**30)
        assert record.wake_s is not None
        assert record.sleep_s is not None
        assert (one.troubles, one.num_faults) == ([], 0)


async def test_a_worker_that_leaves_asleep_says_not_that_it_is_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as one:
        await one.sleep()
        one.said.clear()
        await one.supervisor.drain(0.0)
        await trio.testing.wait_all_tasks_blocked()
        assert not [each for each in one.said if isinstance(each, Residency)]


async def test_a_new_ways_wake_is_not_known_before_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start that was measured before says nothing of it."""
    async with world(tmp_path, monkeypatch) as one:
        start_s = one.turns.record.start_s
        assert one.turns.record.wake_s == start_s
        await one.sleep()
        await one.until(lambda: one.turns.record.way == WAY)
        assert (one.turns.record.start_s, one.turns.record.wake_s) == (start_s, None)


async def test_a_wake_without_room_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table would take it for one that is under way, and order no other change for ever."""
    async with world(tmp_path, monkeypatch) as one:
        await one.sleep()
        one.card.others = 79 * 2**30
        assert one.supervisor.sleeper is not None
        one.supervisor.sleeper.take("wake")
        assert one.turns.seat is SeatState.RISING
        await one.until(lambda: bool(one.troubles))
        await one.until(lambda: one.turns.seat is SeatState.SETTLED)
        assert one.state is EngineState.DORMANT


async def test_an_order_that_does_not_fit_the_state_is_put_off() -> None:
    """The table is told to wait: it would give the same order again and again."""
    log, lifecycle = WorkerLog("w", io.StringIO()), Lifecycle()
    card = cast("CardMemory", FixedCard(Path("nowhere")))
    turns = TurnTaker(CONFIG, lifecycle, card, log, None, "f")
    sleeper = sleeper_file.Sleeper(turns, lifecycle, log)
    for change in ("wake", "sleep"):
        now = trio.current_time()
        assert turns.report(now).must_wait_until == now
        sleeper.take(change)
        assert turns.report(now).must_wait_until > now
        turns.wish("wake")  # it ends the pause


async def test_what_is_restarted_before_it_has_finished_does_not_fall_asleep() -> None:
    """An operator asks for it while the last sequences run."""
    log, lifecycle = WorkerLog("w", io.StringIO()), Lifecycle()
    card = cast("CardMemory", FixedCard(Path("nowhere")))
    sleeper = sleeper_file.Sleeper(
        TurnTaker(CONFIG, lifecycle, card, log, None, "f"), lifecycle, log
    )

    class Restarted(_Dead):
        async def finish(self, _: float) -> None:
            lifecycle.on(LifeEvent.RESTART)

    for event in (LifeEvent.START, LifeEvent.LOADED, LifeEvent.PROVEN, LifeEvent.SLEEP):
        lifecycle.on(event)
    sleeper.life = life = cast("EngineLife", Restarted())
    await sleeper._fall_asleep(life)
    assert lifecycle.state is EngineState.DRAINING


async def test_an_engine_that_is_measured_is_not_put_to_sleep_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what it holds asleep counts as what it needs awake, and no other worker ever gives
    it the room that it lacks.
    """
    async with world(tmp_path, monkeypatch) as one:
        await one.sleep()
        one.kill()
        await one.until(lambda: one.state is EngineState.ASLEEP)
        (tmp_path / "asleep").unlink()
        held_by, is_due, has_begun = one.card.held_by, trio.Event(), trio.Event()

        async def slow(pid: int) -> int:
            if not has_begun.is_set():
                has_begun.set()
                await is_due.wait()
            return await held_by(pid)

        monkeypatch.setattr(one.card, "held_by", slow)
        one.turns.wish("wake")
        await one.until(has_begun.is_set)
        one.turns.wish("sleep")
        with trio.move_on_after(0.5):
            await one.until(lambda: one.state is EngineState.DORMANT)
        assert one.state is EngineState.READY
        is_due.set()
        await one.until(lambda: one.state is EngineState.DORMANT)
        assert one.turns.record.awake_bytes == 60 * 2**30


async def test_where_the_card_says_nothing_its_times_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the card says nothing, the times of a worker are measured: with guessed times others
    would wait half a minute for its place. The worker must not look for its memory again after each
    sleep.
    """

    async def nothing(*_: object) -> None:
        """What nvidia-smi says of a card that shares the host's memory."""

    monkeypatch.setattr(FixedCard, "read", nothing)
    monkeypatch.setattr(FixedCard, "held_by", nothing)
    async with world(tmp_path, monkeypatch, sleep_way="") as one:
        record = one.turns.record
        assert record.awake_bytes is None
        assert record.wake_s == record.start_s
        assert record.wake_s is not None
        await one.sleep()
        report = one.turns.report(trio.current_time())
        assert (report.state, report.wants_look) == ("asleep", False)
        assert report.wake_s == record.start_s


async def test_a_long_back_off_gives_the_place_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long back-off gives the place up: nothing is on the device meanwhile, and other workers
    would wait for it without a reason.
    """
    async with world(tmp_path, monkeypatch) as one:
        one.supervisor.lifecycle.policy = RestartPolicy(30.0)
        one.kill()
        await one.until(lambda: one.num_faults == 1)
        await one.until(lambda: one.state in (EngineState.WAITING, EngineState.ASLEEP))
        now = trio.current_time()
        report = one.turns.report(now)
        assert (report.state, report.must_wait_until > now + 20.0) == ("asleep", True)
        one.turns.wish("wake")  # its turn comes, and the back-off is kept
        await one.until(lambda: one.turns.report(trio.current_time()).state == "waking")
        assert one.state is EngineState.ASLEEP


@pytest.mark.parametrize("forces", [(False,), (True,), (False, False), (False, True)])
async def test_restarts_while_the_device_is_read_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forces: tuple[bool, ...]
) -> None:
    """There is no process to end yet. One that came later would not be ended by anything, and
    would hold the turn of the device.
    """
    async with world(tmp_path, monkeypatch) as one:
        has_begun, is_due = trio.Event(), trio.Event()

        async def slow() -> None:
            has_begun.set()
            await is_due.wait()

        monkeypatch.setattr(one.supervisor.sleeper, "before_start", slow)
        one.kill()
        await one.until(has_begun.is_set)
        epochs = []
        for force in forces:
            epochs.append(one.supervisor.restart(CONFIG, force=force))
            assert one.state is EngineState.REPLACING
        is_due.set()
        await one.until(
            lambda: one.state is EngineState.READY and one.turns.seat is SeatState.SETTLED
        )
        assert one.relay.epoch == epochs[-1]


async def test_a_short_back_off_keeps_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as one:
        one.supervisor.lifecycle.policy = RestartPolicy(1.0)
        one.kill()
        await one.until(lambda: one.num_faults == 1)
        await one.until(lambda: one.state in (EngineState.WAITING, EngineState.ASLEEP))
        assert one.turns.report(trio.current_time()).state == "waking"
        await one.until(lambda: one.state is EngineState.READY)


async def test_the_measurement_of_a_dead_engine_leaves_the_next_one_alone(tmp_path: Path) -> None:
    """The next one may be ready before the device has answered."""
    card = FixedCard(tmp_path)
    is_due = trio.Event()

    async def unknown(_pid: int) -> None:
        await is_due.wait()

    log = WorkerLog("w", io.StringIO())
    lifecycle = Lifecycle(begins_asleep=True)
    turns = TurnTaker(CONFIG, lifecycle, cast("CardMemory", card), log, None, "f")
    turns.memory.held_by = unknown  # type: ignore[method-assign]
    sleeper = sleeper_file.Sleeper(turns, lifecycle, log)
    dead, alive = (cast("EngineLife", _Dead()) for _ in range(2))
    sleeper.life = dead
    await sleeper.before_start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper.after_start, dead)
        await trio.testing.wait_all_tasks_blocked()
        sleeper.life = alive
        turns.sits(SeatEvent.PROVEN)
        is_due.set()
    assert turns.seat is SeatState.MEASURING
    assert turns.record.awake_bytes is None


async def test_the_first_idle_time_is_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first idle time is a trial: without a request the engine sleeps and wakes once."""
    monkeypatch.setattr(turn_taker, "TRIAL_IDLE_S", 0.1)
    async with world(tmp_path, monkeypatch) as one:
        pid = one.pid
        await one.until(lambda: one.turns.record.way == WAY)
        await one.until(lambda: one.turns.record.wake_s is not None)
        assert (one.state, one.pid) == (EngineState.READY, pid)
        await trio.sleep(1.0)
        assert (one.state, one.relay.epoch) == (EngineState.READY, 2)


@pytest.mark.parametrize(
    ("on_sleep", "why"),
    [
        ("it answers 500", "it answers 500"),
        ("lies", "it says so and holds 60.00 GiB of 60.00 GiB"),
        ("dies", "its process has ended"),
        ("hangs", "hung: no step finished"),
    ],
)
async def test_a_sleep_that_fails_is_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_sleep: str, why: str
) -> None:
    """One trouble, and it is not tried again."""
    monkeypatch.setattr(sleeper_file, "FREED_WITHIN_S", 0.2)
    async with world(tmp_path, monkeypatch, on_sleep=on_sleep) as one:
        for _ in range(2):
            await one.sleep()
            assert (one.state, one.pid) == (EngineState.ASLEEP, None)
            assert why in one.turns.record.refusals[WAY]
            assert (len(one.troubles), one.num_faults) == (1, 0)
            assert f"not by {WAY}: " in one.turns.line()
            await one.wake()
        assert one.turns.record.way == sleeper_file.RESTART


@pytest.mark.parametrize(
    ("on_wake", "why"),
    [
        ("it answers 500", "it did not wake: it answers 500"),
        ("dies", "it did not wake: its process has ended"),
        ("hangs", "it did not wake: hung: no step finished"),
    ],
)
async def test_a_wake_that_fails_is_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_wake: str, why: str
) -> None:
    """One fault; from then on it sleeps by its end."""
    async with world(tmp_path, monkeypatch, on_wake=on_wake) as one:
        pid = one.pid
        await one.sleep()
        assert one.state is EngineState.DORMANT
        (tmp_path / "asleep").unlink()  # the next process has its memory
        await one.wake()
        assert one.pid not in (None, pid)
        assert why in one.turns.record.refusals[WAY]
        assert (one.troubles, one.num_faults) == ([], 1)
        await one.sleep()
        assert one.state is EngineState.ASLEEP
        assert (one.troubles, one.num_faults) == ([], 1)


async def test_a_wake_whose_memory_others_took_shows_nothing_of_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wake whose memory others took after the look at the card proves nothing against the way to
    sleep. The process ends, and the next one sleeps as before.
    """
    async with world(tmp_path, monkeypatch, on_wake="out of memory") as one:
        await one.sleep()
        assert one.state is EngineState.DORMANT
        has_room = one.supervisor.sleeper._has_room  # type: ignore[union-attr]

        async def taken_later() -> bool:
            has = await has_room()
            one.card.others = 79 * 2**30
            return has

        monkeypatch.setattr(one.supervisor.sleeper, "_has_room", taken_later)
        one.turns.wish("wake")
        await one.until(lambda: one.num_faults == 1)
        monkeypatch.setattr(one.supervisor.sleeper, "_has_room", has_room)
        assert one.turns.record.refusals == {}


async def test_a_death_asleep_is_one_trouble_and_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next wake starts a process, which sleeps as before."""
    async with world(tmp_path, monkeypatch) as one:
        await one.sleep()
        one.kill()
        await one.until(lambda: one.state is EngineState.ASLEEP)
        (tmp_path / "asleep").unlink()
        await one.until(lambda: bool(one.troubles))
        await one.wake()
        assert len(one.troubles) == 1
        assert one.troubles[0].startswith("its engine died asleep (")
        await one.sleep()
        assert (one.state, one.num_faults) == (EngineState.DORMANT, 0)


async def test_what_was_not_started_so_sleeps_by_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that was not started for a sleep, as it says at its start, sleeps by its end, which
    is no trouble.
    """
    monkeypatch.setattr(turn_taker, "TRIAL_IDLE_S", 0.1)
    async with world(tmp_path, monkeypatch, sleep_refusal="start it otherwise") as one:
        assert f"not by {WAY}: start it otherwise" in one.turns.line()
        await trio.sleep(0.5)
        assert one.state is EngineState.READY
        await one.sleep()
        assert one.state is EngineState.ASLEEP
        assert one.troubles == []


async def test_a_host_without_room_is_not_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends that time, and the way stays."""
    full = CardUse(2**40, 2**40)
    monkeypatch.setattr(sleeper_file, "weights_bytes", lambda _: 2**30)
    async with world(tmp_path, monkeypatch) as one:
        with monkeypatch.context() as patch:
            patch.setattr(sleeper_file, "host_reading", lambda: full)
            await one.sleep()
        assert one.state is EngineState.ASLEEP
        (trouble,) = one.troubles
        assert "it needs 1.00 GiB of the host's memory, and 0 KiB are free" in trouble
        await one.wake()
        await one.sleep()
        assert one.state is EngineState.DORMANT


async def test_what_one_way_cannot_the_next_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that was not started for its API sleeps by the driver's checkpoint, without a word
    of trouble; both ways are in its line.
    """
    ways = {"sleep_refusal": "start it otherwise", "more_ways": [(CHECKPOINT, "")]}
    monkeypatch.setattr(sleeper_file, "host_reading", lambda: CardUse(2**40, 0))
    async with world(tmp_path, monkeypatch, **ways) as one:
        pid = one.pid
        for _ in range(2):
            await one.sleep()
            assert (one.state, one.pid) == (EngineState.DORMANT, pid)
            await one.wake()
        assert one.turns.record.way == CHECKPOINT
        assert f"by {CHECKPOINT}; not by {WAY}: start it otherwise" in one.turns.line()
        assert (one.troubles, one.num_faults) == ([], 0)


async def test_a_way_that_fails_leaves_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a way to sleep fails, the process ends this time, and the next process sleeps by the next
    way.
    """
    ways = {"more_ways": [(CHECKPOINT, "")], "on_sleep": "it answers 500", "fails_by": WAY}
    monkeypatch.setattr(sleeper_file, "host_reading", lambda: CardUse(2**40, 0))
    async with world(tmp_path, monkeypatch, **ways) as one:
        await one.sleep()
        assert one.state is EngineState.ASLEEP
        await one.wake()
        await one.until(lambda: one.turns.trial is SleepTrial.DUE)
        await one.sleep()
        assert one.state is EngineState.DORMANT
        assert one.turns.record.way == CHECKPOINT
        assert list(one.turns.record.refusals) == [WAY]
        assert (len(one.troubles), one.num_faults) == (1, 0)


async def test_all_ways_that_failed_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ways that failed are remembered, so that two ways are not tried in turn for ever."""
    ways = {"more_ways": [(CHECKPOINT, "")], "on_sleep": "it answers 500"}
    monkeypatch.setattr(sleeper_file, "host_reading", lambda: CardUse(2**40, 0))
    async with world(tmp_path, monkeypatch, **ways) as one:
        for tried in ([WAY], [WAY, CHECKPOINT], [WAY, CHECKPOINT]):
            await one.sleep()
            assert one.state is EngineState.ASLEEP
            assert list(one.turns.record.refusals) == tried
            await one.wake()
        assert (len(one.troubles), one.num_faults) == (2, 0)


async def test_where_no_way_is_left_it_sleeps_by_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {
        "sleep_refusal": "start it otherwise",
        "more_ways": [(CHECKPOINT, "the driver has no checkpoint: 570 and newer have it")],
    }
    async with world(tmp_path, monkeypatch, **ways) as one:
        assert one.turns.trial is not SleepTrial.DUE
        await one.sleep()
        assert one.state is EngineState.ASLEEP
        assert "not by the driver's checkpoint: the driver has no checkpoint" in one.turns.line()
        assert one.troubles == []


@pytest.mark.parametrize(("free_gib", "state"), [(59, "ASLEEP"), (61, "DORMANT")])
async def test_a_checkpoint_needs_as_much_of_the_host_as_the_card_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_gib: int, state: str
) -> None:
    """A checkpoint needs as much of the host as the card holds, 60 GiB, and not as much as the
    weights. Found out before a request: no trial begins without room.
    """
    monkeypatch.setattr(turn_taker, "TRIAL_IDLE_S", 0.1)
    monkeypatch.setattr(sleeper_file, "weights_bytes", lambda _: 2**30)
    host = CardUse(2**40, 2**40 - free_gib * 2**30)
    monkeypatch.setattr(sleeper_file, "host_reading", lambda: host)
    ways = {"sleep_way": "", "more_ways": [(CHECKPOINT, "")]}
    async with world(tmp_path, monkeypatch, **ways) as one:
        if state == "ASLEEP":
            lacks = "it needs 60.00 GiB of the host's memory, and 59.00 GiB are free"
            await one.until(lambda: f"not by {CHECKPOINT}: {lacks}" in one.turns.line())
            assert one.turns.trial is not SleepTrial.DUE
        else:
            await one.until(lambda: one.turns.record.wake_s is not None)  # its trial
        await one.sleep()
        assert one.state is EngineState[state]
        if state == "DORMANT":
            assert f"not by {CHECKPOINT}" not in one.turns.line()


async def test_an_engine_that_others_keep_asleep_wakes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its process: an engine of our own tries, is told so, and tries again. One trouble; the
    driver was not asked before.
    """
    monkeypatch.setattr(turn_taker, "AGAIN_S", 0.05)
    taken = tmp_path / "taken"
    slept = {"host_bytes": 3 * 2**30, "note": "the weights are on the host"}
    mood = {"sleep_way": NATIVE_SLEEP, "slept": slept, "taken": str(taken)}
    async with world(tmp_path, monkeypatch, **mood) as one:
        pid = one.pid
        await one.sleep()
        taken.touch()
        one.card.others = 79 * 2**30
        one.turns.wish("wake")
        await one.until(lambda: bool(one.troubles))
        await one.until(lambda: one.state is EngineState.DORMANT)
        (trouble,) = one.troubles
        assert trouble.startswith("it does not wake: it needs 59.00 GiB, and ")
        one.card.others = 0
        taken.unlink()
        await one.until(lambda: one.state is EngineState.READY)
        assert (one.pid, one.num_faults, one.turns.record.refusals) == (pid, 0, {})
        assert one.turns.record.host_bytes == 3 * 2**30
        line = one.turns.line()
        assert "3.00 GiB of the host then" in line
        assert f"by {NATIVE_SLEEP} (the weights are on the host)" in line
        assert "not by" not in line


async def test_a_wake_without_memory_is_one_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long nvidia-smi takes to say what is missing: gateways would be told of each try."""
    taken = tmp_path / "taken"
    mood = {"sleep_way": NATIVE_SLEEP, "slept": {"host_bytes": 1}, "taken": str(taken)}
    async with world(tmp_path, monkeypatch, **mood) as one:
        await one.sleep()
        taken.touch()
        read, is_due = one.card.read, trio.Event()

        async def slow() -> CardUse:
            await is_due.wait()
            return await read()

        monkeypatch.setattr(one.card, "read", slow)
        one.said.clear()
        one.turns.wish("wake")

        def tries() -> int:
            shown = [each.state for each in one.said if isinstance(each, Residency)]
            return sum(pair == ("waking", "asleep") for pair in itertools.pairwise(shown))

        await one.until(lambda: tries() > 0)
        with trio.move_on_after(0.5):
            await one.until(lambda: tries() > 1)
        assert tries() == 1
        is_due.set()


async def test_a_restart_ends_what_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, monkeypatch) as one:
        await one.sleep()
        await one.until(lambda: one.turns.record.asleep_bytes == 2**30)
        one.supervisor.restart(CONFIG, force=False)
        await one.until(lambda: one.state is EngineState.ASLEEP)
        await one.until(lambda: one.turns.record.asleep_bytes == 0)
        (tmp_path / "asleep").unlink()
        await one.wake()
        assert (one.troubles, one.num_faults) == ([], 0)


def _held_here() -> tuple[int, int]:
    """Open descriptors of this process, and its children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    return len(list(Path("/proc/self/fd").iterdir())), len(children)


@pytest.mark.parametrize("refusal", ["", "it sleeps by its end"])
async def test_twenty_switches_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """No more processes and descriptors than just after the first switch, by either way."""
    async with world(tmp_path, monkeypatch, stall_s=BOUND_S, sleep_refusal=refusal) as one:
        await one.sleep()
        await one.wake()
        before = _held_here()
        for _ in range(20):
            await one.sleep()
            await one.wake()
        await one.until(lambda: all(map(int.__le__, _held_here(), before)))
        assert (one.troubles, one.num_faults) == ([], 0)
        assert one.relay.epoch == 22
