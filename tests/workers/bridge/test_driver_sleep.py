"""The driver's checkpoint by a helper process: order, undoing, refusals in words.

The driver is a stub, a shared library of its own; without a compiler only its calls are replaced.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.herma_process import wait_until
from tests.fakes.stub_driver import COMPILER, driver_folder
from tests.fakes.worker_process import is_alive
from workers.bridge import checkpoint_helper as helper
from workers.bridge import driver_sleep
from workers.bridge.checkpoint_helper import RefusedError, put_to_sleep, users_of_cards, wake
from workers.bridge.driver_sleep import DriverSleep

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler makes the stub")


@dataclass
class FakeDriver:
    """States of processes; `faults` are results by call and process."""

    states: dict[int, int]
    faults: dict[tuple[str, int], int] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)

    def state(self, pid: int) -> tuple[int, int]:
        return (0, self.states[pid]) if pid in self.states else (1, -1)

    def lock(self, pid: int) -> int:
        return self._move("lock", pid, helper.RUNNING, helper.LOCKED)

    def checkpoint(self, pid: int) -> int:
        return self._move("checkpoint", pid, helper.LOCKED, helper.CHECKPOINTED)

    def restore(self, pid: int) -> int:
        return self._move("restore", pid, helper.CHECKPOINTED, helper.LOCKED)

    def unlock(self, pid: int) -> int:
        return self._move("unlock", pid, helper.LOCKED, helper.RUNNING)

    def _move(self, name: str, pid: int, before: int, after: int) -> int:
        self.calls.append((name, pid))
        if code := self.faults.get((name, pid), 0):
            return code
        assert self.states[pid] == before, f"{name} of a process that is {self.states[pid]}"
        self.states[pid] = after
        return 0


# The order of calls.


def test_all_are_locked_before_the_first_is_moved() -> None:
    driver = FakeDriver({1: 0, 2: 0})
    put_to_sleep(driver, [1, 2])
    assert driver.calls == [("lock", 1), ("lock", 2), ("checkpoint", 1), ("checkpoint", 2)]
    driver.calls.clear()
    wake(driver, [1, 2])
    assert driver.calls == [("restore", 1), ("unlock", 1), ("restore", 2), ("unlock", 2)]
    assert set(driver.states.values()) == {helper.RUNNING}


@given(
    st.integers(1, 4),
    st.sampled_from(["lock", "checkpoint"]),
    st.integers(1, 4),
    st.sampled_from([2, 401, 600, 800, 801, 999]),
)
def test_if_one_cannot_sleep_all_go_on(count: int, call: str, which: int, code: int) -> None:
    """If one process cannot sleep, all go on, whatever fails, at whichever process."""
    driver = FakeDriver(dict.fromkeys(range(1, count + 1), 0), {(call, min(which, count)): code})
    with pytest.raises(RefusedError, match=f"{call} of process {min(which, count)}: .*{code}"):
        put_to_sleep(driver, list(driver.states))
    assert set(driver.states.values()) == {helper.RUNNING}


def test_a_lock_that_came_with_its_failure_is_undone() -> None:
    """A driver may lock the process and then report that its calls have not ended in time."""

    class LateDriver(FakeDriver):
        def lock(self, pid: int) -> int:
            return super().lock(pid) or (600 if pid == 2 else 0)

    driver = LateDriver({1: 0, 2: 0, 3: 0})
    with pytest.raises(RefusedError, match="lock of process 2"):
        put_to_sleep(driver, [1, 2, 3])
    assert set(driver.states.values()) == {helper.RUNNING}


def test_a_process_that_the_driver_gave_up_does_not_wake() -> None:
    """A process that the driver gave up does not wake: as if it ran, the engine would be asked for
    an answer that never comes.
    """
    driver = FakeDriver({1: helper.FAILED})
    with pytest.raises(RefusedError, match="the driver says that process 1 has failed"):
        wake(driver, [1])
    assert not driver.calls


def test_what_cannot_be_undone_is_said() -> None:
    driver = FakeDriver({1: 0, 2: 0}, {("checkpoint", 2): 801, ("restore", 1): 999})
    with pytest.raises(RefusedError) as caught:
        put_to_sleep(driver, [1, 2])
    assert "shared between processes" in str(caught.value)
    assert "could not be undone (restore of process 1: CUDA error 999)" in str(caught.value)
    assert driver.states == {1: helper.CHECKPOINTED, 2: helper.RUNNING}


def test_a_wake_goes_on_behind_a_process_that_is_gone() -> None:
    driver = FakeDriver({2: helper.CHECKPOINTED, 3: helper.FAILED})
    with pytest.raises(RefusedError, match="process 1 is gone"):
        wake(driver, [1, 2, 3])
    assert driver.states[2] == helper.RUNNING


def test_only_processes_with_a_card_are_moved() -> None:
    driver = FakeDriver({2: 0})
    assert users_of_cards(driver, [1, 2, 3]) == [2]
    with pytest.raises(RefusedError, match="it uses no card"):
        users_of_cards(driver, [1, 3])
    driver.states[2] = helper.LOCKED
    with pytest.raises(RefusedError, match="process 2 is locked or asleep by another"):
        users_of_cards(driver, [2])


def test_the_tree_is_found_below_its_root() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert child.pid in helper.tree_of(child.pid)
    finally:
        child.kill()
        child.wait()
    assert helper.tree_of(child.pid) == [child.pid]


def test_the_tree_has_all_generations(tmp_path: Path) -> None:
    """Parents first; names of programs may hold spaces and brackets."""
    parents = {1: 0, 10: 1, 11: 10, 12: 10, 13: 12, 14: 13, 20: 1}
    for pid, parent in parents.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 7 7 0 -1\n")
    (tmp_path / "15").mkdir()  # it has just ended
    (tmp_path / "self").mkdir()
    assert helper.tree_of(10, tmp_path) == [10, 11, 12, 13, 14]


def test_each_line_is_answered_whether_it_went_well_or_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "CudaDriver", lambda _: FakeDriver({1: helper.CHECKPOINTED}))
    helper.main(["libcuda.so.1"], ["wake 2\n", "wake 1\n", "wake\n"])
    gone, well, nothing = map(json.loads, capsys.readouterr().out.splitlines())
    assert "process 2 is gone" in gone["why"]
    assert (well["pids"], well["why"]) == ([1], "")
    assert (nothing["pids"], nothing["why"]) == ([], "")
    assert well["seconds"] >= 0.0


# The helper process, and a driver in a shared library.


@pytest.fixture
def engine() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child, as engines have them; the child's pid is its first line."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    yield process
    with suppress(ProcessLookupError):  # a test may have ended it before it had a child
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@asynccontextmanager
async def _closed(sleep: DriverSleep) -> AsyncIterator[DriverSleep]:
    try:
        yield sleep
    finally:
        await sleep.close()


def _sleep(
    process: "subprocess.Popen[bytes]", *, is_old: bool = False
) -> AbstractAsyncContextManager[DriverSleep]:
    library = str(driver_folder(is_old=is_old) / "libcuda.so.1")
    return _closed(DriverSleep(process.pid, library))


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stub's states."""
    monkeypatch.setenv("HERMA_TEST_CARD", str(tmp_path))
    return tmp_path


def _states(card: Path) -> set[str]:
    return {path.read_text() for path in card.glob("state-*")}


def _names(card: Path, pattern: str) -> set[str]:
    return {path.name for path in card.glob(pattern)}


@needs_compiler
async def test_a_tree_sleeps_and_wakes(card: Path, engine: "subprocess.Popen[bytes]") -> None:
    """Twice: the process and its child, both with a card. One helper does it all: a wake does not
    wait for the start of another one.
    """
    assert engine.stdout is not None
    child = int(engine.stdout.readline())
    async with _sleep(engine) as sleep:
        assert await sleep.refusal() == ""
        assert _states(card) == set()
        for _ in range(2):
            assert await sleep.sleep() == ""
            assert _states(card) == {str(helper.CHECKPOINTED)}
            assert _names(card, "state-*") == {f"state-{engine.pid}", f"state-{child}"}
            assert await sleep.wake() == ""
            assert _states(card) == {str(helper.RUNNING)}
            assert sleep.note.startswith("the driver's calls took 0.")
    assert (card / "calls").read_text().count("Init") == 1


@needs_compiler
async def test_a_helper_that_has_died_is_replaced(
    card: Path, engine: "subprocess.Popen[bytes]"
) -> None:
    """Between a sleep and its wake: what sleeps is in the driver, and in the bridge."""
    assert engine.stdout is not None
    engine.stdout.readline()
    async with _sleep(engine) as sleep:
        assert await sleep.sleep() == ""
        assert sleep._helper is not None
        sleep._helper.kill()
        await sleep._helper.wait()
        assert await sleep.wake() == ""
        assert _states(card) == {str(helper.RUNNING)}


@needs_compiler
@pytest.mark.usefixtures("card")
def test_a_helper_ends_with_its_caller() -> None:
    """However that ends: its input ends then."""
    code = (
        "import trio, os, sys\n"
        "from workers.bridge.driver_sleep import DriverSleep\n"
        "async def ask():\n"
        "    sleep = DriverSleep(os.getpid(), sys.argv[1])\n"
        "    print(await sleep.refusal(), sleep._helper.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "trio.run(ask)"
    )
    library = str(driver_folder() / "libcuda.so.1")
    done = subprocess.run(
        [sys.executable, "-c", code, library], stdout=subprocess.PIPE, check=False, text=True
    )
    helper_pid = int(done.stdout)
    wait_until(lambda: not is_alive(helper_pid), "the helper process is gone")


@needs_compiler
@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("fault-Lock", "600", "calls of CUDA have not ended in time (CUDA error 600)"),
        ("fault-Lock", "800", "the driver does not permit it"),
        ("fault-Checkpoint", "801", "it is shared between processes (CUDA IPC"),
        ("fault-Checkpoint", "1 2", "the driver found no memory for it (CUDA error 2)"),
        ("fault-Checkpoint", "77", "CUDA error 77"),
        ("integrated", "1", "the card shares the host's memory"),
        ("fault-Init", "999", "the driver does not start (CUDA error 999)"),
        ("users", "1", "it uses no card"),
        ("fault-State", "800", "the driver does not permit it"),
    ],
)
async def test_a_refusal_is_one_line_and_leaves_the_engine_running(
    card: Path, engine: "subprocess.Popen[bytes]", file: str, text: str, words: str
) -> None:
    assert engine.stdout is not None
    engine.stdout.readline()
    (card / file).write_text(text)
    async with _sleep(engine) as sleep:
        why = await sleep.sleep()
    assert words in why
    assert "\n" not in why
    assert _states(card) <= {str(helper.RUNNING)}
    assert not _names(card, "asleep-*")


@needs_compiler
async def test_what_the_driver_says_before_is_no_surprise_later(
    card: Path, engine: "subprocess.Popen[bytes]"
) -> None:
    (card / "integrated").write_text("1")
    async with _sleep(engine) as sleep:
        assert "shares the host's memory" in await sleep.refusal()
    (card / "version").write_text("12040")
    async with _sleep(engine, is_old=True) as sleep:
        why = await sleep.refusal()
    assert why == "the driver has no checkpoint (it speaks CUDA 12.4): 570 and newer have it"


async def test_a_host_without_a_driver_says_so(engine: "subprocess.Popen[bytes]") -> None:
    async with _closed(DriverSleep(engine.pid, "libnothing-of-this-name.so.1")) as sleep:
        why = await sleep.refusal()
        assert sleep._helper is None
    assert why.startswith("there is no CUDA driver here (libnothing-of-this-name.so.1")


@needs_compiler
async def test_a_process_that_died_asleep_does_not_wake(
    card: Path, engine: "subprocess.Popen[bytes]"
) -> None:
    async with _sleep(engine) as sleep:
        assert await sleep.sleep() == ""
        engine.kill()
        engine.wait()
        assert "is gone" in await sleep.wake()


@needs_compiler
async def test_only_what_sleeps_is_woken(card: Path, engine: "subprocess.Popen[bytes]") -> None:
    """Only processes that sleep are woken: not one that could not sleep, or one that was woken
    before and may be gone.
    """
    async with _sleep(engine) as sleep, _sleep(engine) as after_refusal:
        (card / "fault-Checkpoint").write_text("77")
        assert "CUDA error 77" in await sleep.sleep()
        (card / "fault-Checkpoint").unlink()
        after_refusal._asleep = sleep._asleep
        assert await sleep.sleep() == ""
        assert await sleep.wake() == ""
        engine.kill()
        engine.wait()
        assert await sleep.wake() == ""
        assert await after_refusal.wake() == ""


async def test_a_driver_that_does_not_answer_is_asked_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(helper, "__file__", str(slow))
    monkeypatch.setattr(driver_sleep, "_ASK_S", 0.1)
    with trio.fail_after(60.0):
        why = await DriverSleep(os.getpid()).refusal()
    assert why == "the driver did not answer within 0.1 s"


@needs_compiler
async def test_a_driver_that_crashes_ends_the_helper_alone(
    card: Path, engine: "subprocess.Popen[bytes]"
) -> None:
    (card / "fault-Checkpoint").write_text("-11")
    async with _sleep(engine) as sleep:
        assert await sleep.sleep() == "the helper process ended by signal 11"
    assert engine.poll() is None


async def test_a_library_that_is_none_is_no_driver(tmp_path: Path) -> None:
    broken = tmp_path / "libcuda.so.1"
    broken.write_bytes(b"no library")
    async with _closed(DriverSleep(1, str(broken))) as sleep:
        assert "there is no CUDA driver here" in await sleep.refusal()
