"""A worker that is held: what gateways and the engine see, and how it ends."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import trio

from protocol.control_messages import (
    Answer,
    Ask,
    AskHold,
    AskProbe,
    AskReplace,
    AskRestart,
    AskServe,
    AskStatus,
    Done,
    ProbeQuestion,
    ProbeReport,
    Refused,
    WorkerStatus,
    decode_answer,
    encode_line,
)
from protocol.errors import ConfigError
from protocol.messages import REPLACED, Bye, Finished, Register, Rejected, Tokens
from tests.fakes.foreign_process import change, foreign_process, holding_worker, stub_argv
from tests.fakes.gateway_end import GatewayEnd, open_gateway_end, submission
from tests.fakes.ports import free_ports
from tests.fakes.worker_process import BOUND_S, WorkerProcess, worker_process
from workers.supervisor.hold import WorkerHold

LEASE_S = 60.0


async def ask(worker: WorkerProcess, question: Ask) -> Answer:
    """The worker's answer on its control socket, once it has one."""
    with trio.fail_after(BOUND_S):
        async with await _connected(Path(worker.runtime_dir)) as link:
            await link.send_all(encode_line(question))
            line = b""
            while not line.endswith(b"\n"):
                line += await link.receive_some()
    return decode_answer(line)


async def _connected(folder: Path) -> trio.SocketStream:
    """To the control socket, once it is there and listens: its file is there a moment before."""
    while True:
        for path in folder.glob("herma-*-control"):  # noqa: ASYNC240
            with suppress(ConnectionRefusedError):
                return await trio.open_unix_socket(str(path))
        await trio.sleep(0.01)


async def done(worker: WorkerProcess, question: Ask) -> int:
    """The epoch to wait for."""
    answer = await ask(worker, question)
    assert isinstance(answer, Done), answer
    return answer.epoch


async def wait_status(worker: WorkerProcess, **fields: object) -> WorkerStatus:
    """The status, once these of its fields have these values."""
    with trio.fail_after(BOUND_S):
        while True:
            status = await ask(worker, AskStatus())
            assert isinstance(status, WorkerStatus)
            if all(getattr(status, name) == value for name, value in fields.items()):
                return status
            await trio.sleep(0.02)


async def probed(worker: WorkerProcess, *prompts: tuple[int, ...], number: int = 1) -> ProbeReport:
    """The report of these questions."""
    questions = tuple(ProbeQuestion(8, ids=prompt) for prompt in prompts)
    await done(worker, AskProbe(number, questions))
    with trio.fail_after(BOUND_S):
        while True:
            report = (await wait_status(worker)).probe
            if report is not None and report.number == number and report.is_over:
                return report
            await trio.sleep(0.02)


async def _is_served(gateway: GatewayEnd, number: int) -> bool:
    """Whether a request is answered, not refused."""
    request_id = bytes([number]) * 16
    gateway.send(submission(request_id, max_tokens=4))
    with trio.fail_after(BOUND_S):
        while True:
            for message in gateway.heard:
                if isinstance(message, Finished) and message.request_id == request_id:
                    return True
                if isinstance(message, Rejected) and message.request_id == request_id:
                    assert message.reason in ("draining", "not_ready")
                    return False
            await trio.sleep(0.01)


async def test_what_runs_is_finished_and_nothing_else_begins(tmp_path: Path) -> None:
    """Held, the engine answers questions only; released, requests again, without a restart."""
    async with open_gateway_end() as gateway:
        with holding_worker(tmp_path, gateway.address) as (worker, engine):
            await gateway.wait_ready()
            gateway.send(submission(b"r" * 16, max_tokens=30))
            await gateway.wait(Tokens, lambda m: m.items[0].request_id == b"r" * 16)
            await done(worker, AskHold(drain_s=BOUND_S, lease_s=LEASE_S))
            assert (await wait_status(worker, is_held=True)).state == "draining"
            assert not await _is_served(gateway, 1)
            await change(engine.url, hold_after=None)
            await gateway.wait(Finished, lambda m: m.request_id == b"r" * 16)
            await wait_status(worker, is_held=True, state="ready")
            report = await probed(worker, (1, 2, 3), (4, 5))
            assert not report.failure
            assert [len(answer.tokens) for answer in report.answers] == [8, 8]
            assert all(answer.tokens_per_s > 0 for answer in report.answers)
            again = await probed(worker, (1, 2, 3), (4, 5), number=2)
            assert [one.tokens for one in again.answers] == [one.tokens for one in report.answers]
            await done(worker, AskServe())
            await gateway.wait(Register, lambda m: m is gateway.all_of(Register)[-1])
            assert await _is_served(gateway, 2)
            assert len(worker.engine_pids()) == 1


async def test_only_a_held_worker_is_probed_replaced_or_given_a_version(tmp_path: Path) -> None:
    """The refusal says so."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address) as worker:
            await gateway.wait_ready()
            question = ProbeQuestion(8, ids=(1,))
            for one in (
                AskProbe(1, (question,)),
                AskServe(),
                AskReplace(("/bin/true",)),
                AskRestart(version="v2"),
            ):
                refused = await ask(worker, one)
                assert isinstance(refused, Refused)
                assert "only a worker that is held" in refused.reason
            assert await _is_served(gateway, 1)


async def test_a_lease_that_ends_gives_the_worker_back(tmp_path: Path) -> None:
    """A lease that ends, as when the command that held it is killed, gives the worker back."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address) as worker:
            await gateway.wait_ready()
            await done(worker, AskHold(drain_s=1.0, lease_s=0.3))
            await worker.wait_line("nobody has accepted it")
            await wait_status(worker, is_held=False, state="ready")
            assert await _is_served(gateway, 1)
            assert len(worker.engine_pids()) == 1


@pytest.mark.slow
async def test_an_engine_that_takes_text_is_asked_in_text(tmp_path: Path) -> None:
    """The answers are texts, and their speed is known."""
    with foreign_process(kind="openai", token_ms=2) as engine:
        keys = {"engine": "openai", "model": "there", "url": engine.url, "probe_context": 0}
        async with open_gateway_end() as gateway:
            with worker_process(tmp_path, gateway.address, **keys) as worker:
                await gateway.wait_ready()
                await done(worker, AskHold(drain_s=5.0, lease_s=LEASE_S))
                await wait_status(worker, is_held=True, state="ready")
                questions = ProbeQuestion(8, text="Hi"), ProbeQuestion(8, text="Ho")
                await done(worker, AskProbe(1, questions))
                status = await wait_status(worker)
                while status.probe is None or not status.probe.is_over:
                    status = await wait_status(worker)
                assert not status.probe.failure
                first, second = status.probe.answers
                assert first.text
                assert first.text != second.text
                assert first.tokens_per_s > 0


def _foreign(folder: Path, port: int, **versions: dict[str, object]) -> dict[str, object]:
    """The keys of a worker whose engine is a stub in versions: `base`, and others on this host."""
    home = folder / "state" / "herma" / "versions" / "stub"
    for name, settings in versions.items():
        place = folder / name if name == "base" else home / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "env").mkdir(exist_ok=True)
        (place / "settings.json").write_text(json.dumps(stub_argv(str(port), **settings)))
        if name != "base":
            (place / "version.json").write_text(json.dumps({"id": name, "kind": "environment"}))
            (place / "env" / "run").write_text(_RUN.format(place=place))
            (place / "env" / "run").chmod(0o755)
        else:
            (place / "run").write_text(_RUN.format(place=place))
            (place / "run").chmod(0o755)
    return {
        "engine": "vllm",
        "model": "builtin:herma-tiny",
        "url": f"http://127.0.0.1:{port}",
        "probe_context": 0,
        "launch": {
            "argv": ["{version}/run"],
            "installation": "stub",
            "base": str(folder / "base"),
        },
    }


_RUN = """#!/bin/sh
exec python3 -c 'import json, os, sys
words = json.load(open("{place}/settings.json"))
os.execv(words[0], words)'
"""


def _worker(tmp_path: Path, gateway: GatewayEnd, keys: dict[str, object]):  # type: ignore[no-untyped-def]  # noqa: ANN202
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": os.getcwd()}  # noqa: PTH109
    return worker_process(tmp_path, gateway.address, environ=environ, **keys)


@pytest.mark.slow
async def test_a_version_on_trial_serves_nobody_until_it_is_accepted(tmp_path: Path) -> None:
    """A version on trial serves no request until it is accepted; its answers differ from those of
    the version before.
    """
    keys = _foreign(tmp_path, free_ports(1), base={}, v2={"version": "2.0", "answer": [7, 8, 9]})
    async with open_gateway_end() as gateway:
        with _worker(tmp_path, gateway, keys) as worker:
            await gateway.wait_ready()
            assert (await wait_status(worker)).version == "base"
            await done(worker, AskHold(drain_s=5.0, lease_s=LEASE_S))
            await wait_status(worker, is_held=True, state="ready")
            before = await probed(worker, (1, 2, 3))
            epoch = await done(worker, AskRestart(force=True, version="v2"))
            await wait_status(worker, epoch=epoch, state="ready", is_held=True, version="v2")
            after = await probed(worker, (1, 2, 3), number=2)
            assert before.answers[0].tokens != after.answers[0].tokens
            assert [m.engine for m in gateway.all_of(Register) if m.epoch == epoch] == [None]
            await done(worker, AskServe())
            await gateway.wait_ready(epoch)
            assert (await wait_status(worker, is_held=False)).version == "v2"


@pytest.mark.slow
@pytest.mark.parametrize("is_mute", [False, True])
async def test_a_version_that_dies_or_is_forgotten_goes_by_itself(
    tmp_path: Path, is_mute: bool
) -> None:
    """A version that dies or is forgotten is replaced without a command: it is tried once, and the
    end of the lease brings the base back. Gateways get no fault.
    """
    keys = _foreign(tmp_path, free_ports(1), base={}, v2={} if is_mute else {"fails": True})
    async with open_gateway_end() as gateway:
        with _worker(tmp_path, gateway, keys) as worker:
            await gateway.wait_ready()
            await done(worker, AskHold(drain_s=5.0, lease_s=LEASE_S))
            await wait_status(worker, is_held=True, state="ready")
            await done(worker, AskRestart(force=True, version="v2"))
            state = "ready" if is_mute else "stopped"
            status = await wait_status(worker, state=state, epoch=2, is_held=True)
            assert is_mute or status.fault is not None
            await done(worker, AskHold(drain_s=5.0, lease_s=0.2))
            await worker.wait_line("nobody has accepted it")
            await gateway.wait_ready(3)
            assert await _is_served(gateway, 1)
            assert (await wait_status(worker)).version == "base"
            assert not [
                m for m in gateway.all_of(Register) if m.epoch == 2 and m.engine is not None
            ]
            assert not [m for m in gateway.heard if type(m).__name__ == "Fault"]


@pytest.mark.slow
async def test_a_process_becomes_another_program_and_back(tmp_path: Path) -> None:
    """A process becomes another program under the same process id, and goes back when the new
    version is not accepted.
    """
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address) as worker:
            await gateway.wait_ready()
            entry = (await wait_status(worker)).entry
            script = tmp_path / "herma"
            words = " ".join(entry)
            script.write_text(f'#!/bin/sh\nHERMA_SEEN=1 exec {words} "$@"\n')
            script.chmod(0o755)
            await done(worker, AskHold(drain_s=5.0, lease_s=LEASE_S))
            await wait_status(worker, is_held=True, state="ready")
            await done(worker, AskReplace((str(script),), lease_s=LEASE_S))
            await gateway.wait(Bye, lambda m: m.reason == REPLACED)
            await _wait_seen(worker.pid)
            await wait_status(worker, is_held=True, state="ready")
            assert worker.process.poll() is None
            await done(worker, AskHold(drain_s=5.0, lease_s=0.2))
            await worker.wait_line("nobody has accepted it")
            with trio.fail_after(BOUND_S):
                while len(worker.engine_pids()) < 3:  # noqa: ASYNC110
                    await trio.sleep(0.02)
            await wait_status(worker, is_held=False, state="ready")
            assert await _is_served(gateway, 1)
            worker.process.send_signal(signal.SIGTERM)
            assert await worker.wait_exit() == 0


async def _wait_seen(pid: int) -> None:
    environ = trio.Path(f"/proc/{pid}/environ")
    with trio.fail_after(BOUND_S):
        while b"HERMA_SEEN" not in await environ.read_bytes():  # noqa: ASYNC110
            await trio.sleep(0.01)


def test_a_lease_is_renewed_and_ends() -> None:
    """Times are the caller's."""
    hold = WorkerHold(0.0)
    assert not hold.is_on
    with pytest.raises(ConfigError, match="only a worker that is held"):
        hold.check("be probed")
    assert hold.begin(10.0, 5.0)
    assert not hold.begin(11.0, 5.0)
    hold.check("be probed")
    assert not hold.is_over(15.9)
    assert hold.is_over(16.0)
    hold.renew(16.0)
    assert not hold.is_over(16.0)
    hold.version = "v"
    hold.end()
    assert (hold.is_over(100.0), hold.version) == (False, "")
    assert WorkerHold(1.0, lease_s=2.0).is_over(3.0)


def test_messages_have_defaults_for_versions_that_do_not_know_them() -> None:
    """A status of an older version, without the later fields, is read."""
    status = WorkerStatus("w", 1, "m", "m", "ready", 1, 0)
    fields = msgspec.to_builtins(status)
    early = {name: fields[name] for name in ("type", "name", "pid", "serves", "model", "state")}
    line = json.dumps({**early, "epoch": 1, "restarts": 0}).encode()
    assert decode_answer(line) == status
