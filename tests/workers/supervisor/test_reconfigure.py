"""What a restart and a reload take from a file that has changed."""

import io
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import msgspec
import pytest
import trio

from config import WorkerConfig, builtin_config
from protocol.control_messages import AskRestart
from protocol.errors import ConfigError
from tests.fakes.worker_process import BOUND_S
from workers.supervisor.app import WorkerApp
from workers.supervisor.identity import changed_keys, take_changes
from workers.supervisor.log import WorkerLog

(WORKER,) = builtin_config().workers


def _with(**keys: object) -> WorkerConfig:
    return msgspec.structs.replace(WORKER, **keys)


def test_what_is_the_engine_s_may_change() -> None:
    """A key of the engine may change, and is named in the order of the file's description."""
    assert changed_keys(WORKER, WORKER) == ()
    assert changed_keys(WORKER, _with(max_seqs=3, model="/m")) == ("model", "max_seqs")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"gateways": ("ipc:///x",), "model": "/m"}, "gateways of worker `local` is another"),
        ({"serves": "x", "drain_s": 1.0}, "serves, drain_s of worker `local` are another"),
    ],
)
def test_what_gateways_and_parents_count_with_may_not(keys: dict[str, object], says: str) -> None:
    """One line that names the keys and the way."""
    with pytest.raises(ConfigError, match=f"{says} now, and only a new process takes that"):
        changed_keys(WORKER, _with(**keys))


def test_a_reload_takes_what_no_engine_has_and_names_the_rest() -> None:
    """A reload takes what no engine has and names the rest, with the command that takes it."""
    new = _with(stall_s=7.0, prepare=("clear-shm",), max_seqs=3, drain_s=1.0)
    config, reloaded = take_changes(WORKER, new)
    assert reloaded.taken == ("stall_s", "prepare")
    assert reloaded.kept == (
        "max_seqs: herma worker restart local",
        "drain_s: a restart of the worker's process (`herma up`, or its unit)",
    )
    assert config == _with(stall_s=7.0, prepare=("clear-shm",))
    assert take_changes(config, config) == (config, type(reloaded)())


def test_gateways_are_added_and_not_taken_away() -> None:
    """A gateway that is gone from the file may still have requests here."""
    first, second, third = "ipc:///1", "ipc:///2", "ipc:///3"
    old = _with(gateways=(first, second))
    config, reloaded = take_changes(old, _with(gateways=(third, second)))
    assert config.gateways == (first, second, third)
    assert reloaded.taken == ("gateways",)
    (kept,) = reloaded.kept
    way = "a restart of the worker's process (`herma up`, or its unit)"
    assert kept == f"gateways, those that are gone: {way}"
    again, reloaded = take_changes(config, _with(gateways=(third, first, second)))
    assert (again, reloaded.taken, reloaded.kept) == (config, (), ())


async def test_a_reload_beside_a_restart_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restart has read the file before it changed, and ends after the reload was asked for."""
    stall_s = [3.0]
    has_read, may_go_on = Event(), Event()

    def reread() -> WorkerConfig:
        config = _with(gateways=(), device="cpu", stall_s=stall_s[0])
        if not has_read.is_set():
            has_read.set()
            may_go_on.wait(BOUND_S)
        return config

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with TemporaryDirectory(prefix="reload-") as folder, trio.fail_after(BOUND_S):
        monkeypatch.setenv("HERMA_RUNTIME_DIR", folder)
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        config = _with(gateways=(), device="cpu", stall_s=3.0)
        app = WorkerApp(config, WorkerLog("local", io.StringIO()), command, reread)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(app.run)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as asked:
                asked.start_soon(app._restart, AskRestart(force=True))
                await trio.to_thread.run_sync(has_read.wait, BOUND_S)
                stall_s[0] = 7.0
                asked.start_soon(app._reload)
                await trio.sleep(0.2)  # time for a reload that does not wait
                may_go_on.set()
            assert (app._config.stall_s, app._engine._next_config.stall_s) == (7.0, 7.0)
            nursery.cancel_scope.cancel()
