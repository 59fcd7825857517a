"""How engines die under a real supervisor, what is said of it, and how they come back."""

import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from herma.commands.worker import render
from herma.processes import ask, supervisors
from protocol.control_messages import AskRestart, Done
from protocol.messages import Fault, Progress, Register, Rejected, Tokens
from tests.fakes.foreign_process import change, holding_worker
from tests.fakes.gateway_end import GatewayEnd, open_gateway_end, submission
from tests.fakes.moody import moody_worker
from tests.fakes.worker_process import (
    BOUND_S,
    WorkerProcess,
    is_alive,
    wait_dead,
    worker_process,
    write_model_dir,
)
from tests.workers.supervisor.test_hold import wait_status

DEATHS = [
    ({"exit": 127}, "file_not_found", "exit code 127: file not found"),
    ({"exit": 126}, "not_executable", "exit code 126"),
    ({"signal": 11}, "crash", "exit code 139 (SIGSEGV)"),
    ({"signal": 9}, "killed", "exit code 137 (SIGKILL)"),
    ({"exit": 1, "print": ["x", "RuntimeError: CUDA out of memory."]}, "gpu_memory", "nvidia-smi"),
    ({"exit": 1, "print": ["CUDA error: an illegal memory access"]}, "gpu_error", "dmesg"),
    ({"exit": 1, "say": "port 5000 is taken"}, "port_taken", "ss -ltnp"),
    ({"exit": 1, "phase": "weights", "say": "no shard", "is_config": True}, "config", "no shard"),
    ({"health probe": "wrong"}, "bad_answer", "the health probe got 3 of 4 tokens"),
]


async def _go(gateway: GatewayEnd, folder: Path) -> None:
    """Let an engine that waits for it begin, once the worker reports to the gateway."""
    await gateway.wait_joined()
    (folder / "go").touch()


@pytest.mark.parametrize(("mood", "kind", "says"), DEATHS, ids=lambda value: str(value)[:20])
async def test_a_death_is_diagnosed(
    tmp_path: Path, mood: dict[str, object], kind: str, says: str
) -> None:
    """The gateway is told what the engine died of, in one word and in one line."""
    async with open_gateway_end() as gateway:
        with moody_worker(tmp_path, gateway.address, waits_for=str(tmp_path / "go"), **mood):
            await _go(gateway, tmp_path)
            fault = await gateway.wait(Fault)
            assert fault.kind.startswith(kind)
            assert says in fault.cause
            assert "failed start 1 of 5" in fault.cause
            assert not fault.is_final


async def test_what_a_start_goes_on_without_is_in_the_status(tmp_path: Path) -> None:
    """Ahead of the gateways' troubles, and in the table of `herma worker status`."""
    async with open_gateway_end() as gateway:
        with moody_worker(tmp_path, gateway.address, trouble="no tensor cores") as (worker, _):
            status = await wait_status(worker, state="ready")
            assert status.troubles[:1] == ("no tensor cores",)
            assert "\nw: no tensor cores" in render([(1, status)], with_log=False)


async def test_a_death_that_takes_its_time_is_told_before_it_is_over(tmp_path: Path) -> None:
    """An engine that can say nothing more is lost work, whether it is dead or not."""
    async with open_gateway_end() as gateway:
        mood: dict[str, object] = {"close": True, "waits_for": str(tmp_path / "go")}
        with moody_worker(tmp_path, gateway.address, **mood) as (worker, next_mood):
            await _go(gateway, tmp_path)
            fault = await gateway.wait(Fault)
            assert (fault.epoch, fault.exit_code) == (1, None)
            assert "closed its channel but lived on" in fault.cause
            next_mood.set()
            await gateway.wait(Register, lambda m: m.engine is not None)
            assert len([each for each in gateway.all_of(Fault) if each.epoch == 1]) == 1
            assert not is_alive(worker.engine_pids()[0])


async def test_the_last_lines_are_kept_without_what_a_terminal_obeys(tmp_path: Path) -> None:
    """Bounded, colours gone, other control characters written out."""
    lines = [f"line {i}" for i in range(100)] + ["\x1b[31mred\x1b[0m", "bell\x07", "y" * 2000]
    async with open_gateway_end() as gateway:
        with moody_worker(tmp_path, gateway.address, print=lines, exit=3):
            fault = await gateway.wait(Fault)
            assert len(fault.last_log) == 50
            ends = fault.last_log.index("line 99")
            assert fault.last_log[ends + 1 : ends + 3] == ("red", "bell\\x07")
            assert max(len(line) for line in fault.last_log) == 500


async def test_a_crash_loop_stops_is_shown_and_healed(tmp_path: Path) -> None:
    """Exit code 127 five times, then stopped; the cause is in the status; once it is corrected
    `herma worker restart` brings the worker back.
    """
    script = tmp_path / "engine"
    async with open_gateway_end() as gateway:
        with moody_worker(tmp_path, gateway.address, command=[str(script)]) as (worker, mood):
            fault = await gateway.wait(Fault, lambda m: m.is_final)
            assert (fault.epoch, fault.exit_code, fault.kind) == (5, 127, "file_not_found")
            assert "stopped after 5 starts" in fault.cause
            # The first may come before the gateway's welcome, which then is told of the next start.
            assert len(gateway.all_of(Fault)) in (4, 5)
            status, table = await worker.command("status", "w")
            assert status == 1
            assert "stopped" in table
            assert "[file_not_found]" in table
            assert str(script) in table
            # Its cause still there, it is tried five times again and says so.
            status, said = await worker.command("restart", "w")
            assert status == 1
            assert "file not found" in said
            stub = Path(__file__).parents[2] / "fakes" / "stub_engine.py"
            script.write_text(f'#!/bin/sh\nexec {sys.executable} {stub} {mood.path} "$@"\n')
            script.chmod(0o755)
            status, said = await worker.command("restart", "w")
            assert (status, "w is ready (epoch 11" in said) == (0, True), said
            await gateway.wait_ready(epoch=11)
            status, table = await worker.command("status")
            assert status == 0
            assert "ready" in table


async def test_a_mistake_of_the_configuration_is_tried_once(tmp_path: Path) -> None:
    """What the engine calls one before it loads anything would be the same at the next try."""
    mood: dict[str, object] = {"exit": 1, "say": "no such model: correct it", "is_config": True}
    async with open_gateway_end() as gateway:
        with moody_worker(tmp_path, gateway.address, **mood) as (worker, next_mood):
            fault = await gateway.wait(Fault)
            assert fault.is_final
            assert (fault.epoch, fault.kind) == (1, "configuration")
            assert fault.cause.startswith("no such model: correct it; stopped after 1 start")
            next_mood.set()
            status, _ = await worker.command("restart", "w")
            assert status == 0
            assert len(worker.engine_pids()) == 2


async def test_a_corrected_file_is_read_by_a_restart(tmp_path: Path) -> None:
    """What the refusal advises is enough: the file, then `herma worker restart NAME`."""
    file = tmp_path / "herma.toml"
    bad, good = str(tmp_path / "modle"), str(tmp_path / "model")
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address, model=bad) as worker:
            fault = await gateway.wait(Fault)
            assert fault.cause.endswith("correct the cause, then `herma worker restart w`")
            write_model_dir(tmp_path / "model")
            file.write_text(file.read_text().replace(bad, good))
            status, said = await worker.command("restart", "w")
            assert (status, "w is ready (epoch 2" in said) == (0, True), said
            assert "w: the file has changed: model" in said
            ready = await gateway.wait_ready(epoch=2)
            assert ready.config_hash != gateway.all_of(Register)[0].config_hash
            assert good in (await worker.command("status", "w"))[1]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('serves = "echo"', 'serves = "echo"\ndrain_s = 1', "drain_s of worker `w` is another now"),
        ('name = "w"', 'name = "v"', "no [[workers]] table is named `w`"),
        ("max_seqs", "max_seq", "did you mean `max_seqs`"),
        ("model =", 'model = "/none"  #', "worker `w`: model /none is no directory"),
        (
            'engine = "synthetic"',
            'engine = "vllm"\nurl = "unix:/v"\nlaunch = { argv = ["/none/vllm"] }',
            "launch.argv[0] /none/vllm is no program of this host",
        ),
    ],
)
async def test_a_file_that_a_restart_cannot_take_changes_nothing(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    """One line, status 2, and the engine that serves goes on."""
    file = tmp_path / "herma.toml"
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address) as worker:
            await gateway.wait_ready()
            file.write_text(file.read_text().replace(old, new))
            status, said = await worker.command("restart", "w")
            assert (status, len(said.splitlines())) == (2, 1), said
            assert said.startswith("herma: worker `w`: not restarted: ")
            assert says in said
            assert is_alive(worker.engine_pids()[0])
            assert len(worker.engine_pids()) == 1


async def test_a_reload_dials_the_gateways_that_are_new(tmp_path: Path) -> None:
    """The engine lives on, and an address that is none changes nothing."""
    async with open_gateway_end() as first, open_gateway_end() as second:
        with moody_worker(tmp_path, first.address) as (worker, _):
            await first.wait_ready()
            file = tmp_path / "herma.toml"
            text = file.read_text()
            wrong = text.replace(f'["{first.address}"', f'["{first.address}", "udp://x"')
            file.write_text(wrong)
            worker.process.send_signal(signal.SIGHUP)
            await worker.wait_line("nothing is reloaded")
            right = text.replace(f'["{first.address}"', f'["{first.address}", "{second.address}"')
            file.write_text(right)
            worker.process.send_signal(signal.SIGHUP)
            await second.wait_ready()
            assert len(worker.engine_pids()) == 1
            assert not first.lost


async def test_a_start_without_progress_is_ended(tmp_path: Path) -> None:
    """The phase at which it stood is named. Its patience is cut once it stands there: no machine
    is so slow that it ends before.
    """
    async with open_gateway_end() as gateway:
        mood: dict[str, object] = {"phase": "weights", "stall": True}
        mood |= {"waits_for": str(tmp_path / "go")}
        with moody_worker(tmp_path, gateway.address, **mood) as (worker, _):
            await _go(gateway, tmp_path)
            await gateway.wait(Progress, lambda m: m.phase == "weights")
            worker.reload(stall_s=0.5)
            fault = await gateway.wait(Fault)
            assert fault.cause.startswith("no progress for 0.5 s at `weights` (50%)")
            await wait_dead(worker.engine_pids()[0])


async def test_a_reload_before_the_next_engine_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it takes while an engine is being replaced holds for the one that follows."""
    async with open_gateway_end() as gateway:
        with moody_worker(tmp_path, gateway.address) as (worker, next_mood):
            await gateway.wait_ready()
            monkeypatch.setenv("HERMA_RUNTIME_DIR", worker.runtime_dir)
            (supervisor,) = await trio.to_thread.run_sync(lambda: [*supervisors()])
            next_mood.set(phase="weights", stall=True)
            os.kill(worker.engine_pids()[0], signal.SIGSTOP)
            await trio.to_thread.run_sync(ask, supervisor.path, AskRestart(force=True))
            worker.reload(stall_s=0.5)
            fault = await gateway.wait(Fault)
            assert fault.cause.startswith("no progress for 0.5 s at `weights` (50%)")


async def _child_of(worker: WorkerProcess) -> int:
    line = await worker.wait_line("child ")
    return int(line.rpartition(" ")[2])


@pytest.mark.parametrize("victim", ["engine", "supervisor", "stopped supervisor", "both stopped"])
async def test_no_child_of_an_engine_outlives_a_kill(tmp_path: Path, victim: str) -> None:
    """What an engine has started dies with it, also if the supervisor is killed without a word."""
    async with open_gateway_end() as gateway:
        with moody_worker(tmp_path, gateway.address, child=True) as (worker, _):
            await gateway.wait_ready()
            child, engine = await _child_of(worker), worker.engine_pids()[0]
            assert is_alive(child)
            if victim == "both stopped":
                os.kill(engine, signal.SIGSTOP)
            if "stopped" in victim:
                worker.process.send_signal(signal.SIGSTOP)
            os.kill(engine if victim == "engine" else worker.pid, signal.SIGKILL)
            await wait_dead(engine)
            await wait_dead(child)


async def test_an_engine_that_will_not_leave_is_killed(tmp_path: Path) -> None:
    """Deaf to the request and to SIGTERM, it is killed with all that it has started."""
    async with open_gateway_end() as gateway:
        with moody_worker(tmp_path, gateway.address, child=True, deaf=True) as (worker, mood):
            await gateway.wait_ready()
            child = await _child_of(worker)
            mood.set()
            status, said = await worker.command("restart", "w", "--force")
            assert status == 0, said
            assert not is_alive(worker.engine_pids()[0])
            assert not is_alive(child)
            assert not gateway.all_of(Fault)


async def test_what_a_dead_engine_leaves_is_removed(tmp_path: Path) -> None:
    """The leftovers of a dead engine are removed: its temporary directory at its end, and its
    supervisor's by the next supervisor; those of living processes stay.
    """
    folder = tmp_path / "tmp"
    folder.mkdir()
    environ = {"TMPDIR": str(folder)}

    def left() -> list[Path]:
        return sorted(folder.glob("herma-*/left.bin"))

    async with open_gateway_end() as gateway:
        mood: dict[str, object] = {"leave": ["left.bin"]}
        with moody_worker(tmp_path, gateway.address, environ=environ, **mood) as (worker, _):
            await gateway.wait_ready()
            (first,) = left()
            os.kill(worker.engine_pids()[0], signal.SIGKILL)
            await gateway.wait_ready(epoch=2)
            (second,) = left()
            assert second != first
            worker.process.kill()
            await wait_dead(worker.engine_pids()[1])
            assert left() == [second]
        gateway.heard.clear()
        with moody_worker(tmp_path, gateway.address, environ=environ, **mood) as (worker, _):
            await worker.wait_line("removed 1 leftover of dead processes")
            await gateway.wait_ready()
            assert second not in left()
            worker.process.terminate()
            assert await worker.wait_exit() == 0
            assert left() == []


async def test_a_supervisor_that_was_stopped_for_long_blames_nobody(tmp_path: Path) -> None:
    """A supervisor that was stopped for long reports no fault: its engine lives on, and after
    SIGCONT it serves in the same epoch.
    """
    async with open_gateway_end() as gateway:
        with moody_worker(tmp_path, gateway.address) as (worker, _):
            await gateway.wait_ready()
            worker.process.send_signal(signal.SIGSTOP)
            status, table = await worker.command("status")
            assert status == 1
            assert "silent" in table
            await trio.sleep(4.0)  # longer than any watch of a step
            gateway.heard.clear()
            worker.process.send_signal(signal.SIGCONT)
            await gateway.wait(Register, lambda m: m.engine is not None)
            assert is_alive(worker.engine_pids()[0])
            assert not gateway.all_of(Fault)
            assert gateway.all_of(Register)[-1].epoch == 1


async def test_a_restart_finishes_what_runs(tmp_path: Path) -> None:
    """Drained first, and no fault; with --force at once."""
    async with open_gateway_end() as gateway:
        with holding_worker(tmp_path, gateway.address) as (worker, engine):
            await gateway.wait_ready()
            gateway.send(submission(b"a" * 16, max_tokens=100))
            await gateway.wait(Tokens)
            go_on = partial(change, engine.url, hold_after=None)
            status, said = await worker.command_that_says("draining", go_on, "restart", "w")
            assert (status, "draining" in said) == (0, True), said
            assert len(gateway.ids_of(b"a" * 16)) == 100
            await change(engine.url, hold_after=20)
            gateway.send(submission(b"b" * 16, max_tokens=100))
            await gateway.wait(Tokens, lambda m: m.items[0].request_id == b"b" * 16)
            status, _ = await worker.command("restart", "w", "--force")
            assert status == 0
            await gateway.wait_ready(epoch=3)
            assert len(gateway.ids_of(b"b" * 16)) < 100
            assert not gateway.all_of(Fault)


async def test_a_restart_that_waits_can_be_hurried(tmp_path: Path) -> None:
    """New work is refused while it waits, and a second request without --force too."""
    async with open_gateway_end() as gateway, trio.open_nursery() as nursery:
        with worker_process(tmp_path, gateway.address, step_ms=20, drain_s=600) as worker:
            await gateway.wait_ready()
            gateway.send(submission(b"a" * 16, max_tokens=4000))
            await gateway.wait(Tokens)
            ends: list[tuple[int, str]] = []

            async def ask(*words: str) -> None:
                ends.append(await worker.command("restart", "w", *words))

            nursery.start_soon(ask)
            await worker.wait_line("a restart is asked for")
            gateway.send(submission(b"b" * 16))
            assert (await gateway.wait(Rejected)).reason == "draining"
            status, said = await worker.command("restart", "w")
            assert (status, "--force restarts at once" in said) == (2, True), said
            await ask("--force")
            with trio.fail_after(BOUND_S):
                while len(ends) < 2:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert [status for status, _ in ends] == [0, 0]
            await gateway.wait_ready(epoch=2)
            assert len(worker.engine_pids()) == 2


async def test_a_restart_beside_one_that_is_under_way_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old engine takes its time to leave; whoever asks meanwhile waits for the one next start,
    and the worker takes new work then.
    """
    ended: list[tuple[int, str]] = []

    async def restart() -> None:
        ended.append(await worker.command("restart", "w", "--force"))

    async with open_gateway_end() as gateway, trio.open_nursery() as nursery:
        with worker_process(tmp_path, gateway.address) as worker:
            await gateway.wait_ready()
            monkeypatch.setenv("HERMA_RUNTIME_DIR", worker.runtime_dir)
            (supervisor,) = await trio.to_thread.run_sync(lambda: [*supervisors()])
            os.kill(worker.engine_pids()[0], signal.SIGSTOP)
            nursery.start_soon(restart)
            await worker.wait_line("restarting the engine, as asked for")
            # As a second command does, which would take seconds to start on a busy machine.
            answer = await trio.to_thread.run_sync(ask, supervisor.path, AskRestart(force=False))
            assert answer == Done(epoch=2)
            await gateway.wait_ready(epoch=2)
            with trio.fail_after(BOUND_S):
                while not ended:  # noqa: ASYNC110 (a process)
                    await trio.sleep(0.01)
            ((status, said),) = ended
            assert (status, "w is ready (epoch 2," in said) == (0, True), said
            gateway.send(submission(b"a" * 16))
            await gateway.wait(Tokens)
            assert not gateway.all_of(Rejected)


async def test_of_two_with_one_name_the_pid_tells_which(tmp_path: Path) -> None:
    """As of two `herma up` on one host; the refusal says how."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    async with open_gateway_end() as gateway, open_gateway_end() as other:
        with worker_process(one, gateway.address) as first:
            environ = {"HERMA_RUNTIME_DIR": first.runtime_dir}
            with worker_process(two, other.address, environ=environ) as second:
                await gateway.wait_ready()
                await other.wait_ready()
                status, said = await first.command("restart", "w")
                pids = sorted((first.pid, second.pid), key=str)
                assert (status, f"add --pid {pids[0]} or --pid {pids[1]}" in said) == (2, True), (
                    said
                )
                status, said = await first.command("restart", "w", "--pid", str(second.pid))
                assert (status, "w is ready (epoch 2" in said) == (0, True), said
                await other.wait_ready(epoch=2)
                assert len(first.engine_pids()) == 1
                status, said = await first.command("restart", "w", "--pid", "1")
                assert (status, "no worker `w` of this host has pid 1" in said) == (2, True), said


async def test_others_are_not_let_in(tmp_path: Path) -> None:
    """A runtime directory that others may read is refused; the worker serves without."""
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    async with open_gateway_end() as gateway:
        environ = {"HERMA_RUNTIME_DIR": str(folder)}
        with moody_worker(tmp_path, gateway.address, environ=environ) as (worker, _):
            await worker.wait_line("mode 0700")
            await gateway.wait_ready()
            assert list(folder.iterdir()) == []


def _control_socket(worker: WorkerProcess) -> Path:
    (path,) = Path(worker.runtime_dir).glob("herma-*-control")
    return path


async def test_garbage_on_the_control_socket_harms_nobody(tmp_path: Path) -> None:
    """Answered with one refusal per connection, within bounds."""
    async with open_gateway_end() as gateway:
        with moody_worker(tmp_path, gateway.address) as (worker, _):
            await gateway.wait_ready()
            path = _control_socket(worker)
            for garbage in (b"\n", b"{}\n", b"\xff" * 65_537, b'{"type":"status"} x\n'):
                with trio.fail_after(BOUND_S):
                    async with await trio.open_unix_socket(str(path)) as link:
                        await link.send_all(garbage)
                        assert b'"refused"' in await link.receive_some()
            status, _ = await worker.command("status", "w")
            assert status == 0
