"""Real worker processes with external engines, against a real gateway end.

The engines are stub servers in processes of their own, launched by the worker or already there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from protocol.messages import (
    Abort,
    Accepted,
    BlocksStored,
    Fault,
    Finished,
    Grammar,
    Load,
    Progress,
    Rejected,
    Submit,
    Tokens,
)
from protocol.tokens import pack_tokens
from tests.fakes.foreign_engine import SLOTS, WINDOW, next_id
from tests.fakes.foreign_process import (
    change,
    foreign_process,
    kill_launched,
    pids_of,
    stub_argv,
    told,
    wait_told,
)
from tests.fakes.gateway_end import GatewayEnd, open_gateway_end, submission
from tests.fakes.ports import free_ports
from tests.fakes.worker_process import WorkerProcess, wait_dead, worker_process

KINDS = ["vllm", "sglang", "llama-cpp"]
A, B = b"a" * 16, b"b" * 16
PROMPT = list(range(10, 50))
"""That of `submission`."""


def expected(num: int) -> list[int]:
    """What the stub's model says to `PROMPT`."""
    ids = list(PROMPT)
    for _ in range(num):
        ids.append(next_id(ids, []))
    return ids[len(PROMPT) :]


async def finish(gateway: GatewayEnd, request_id: bytes) -> Finished:
    return await gateway.wait(Finished, lambda m: m.request_id == request_id)


@contextmanager
def foreign_worker(
    folder: Path, gateway: GatewayEnd, kind: str, url: str, **keys: Any
) -> Iterator[WorkerProcess]:
    """A worker `w` for `echo`, with herma-tiny's tokenizer."""
    keys = {"model": "builtin:herma-tiny", "probe_context": 64, **keys}
    with worker_process(folder, gateway.address, engine=kind, url=url, **keys) as worker:
        yield worker


@contextmanager
def launching_worker(
    folder: Path, gateway: GatewayEnd, settings: dict[str, Any], **keys: Any
) -> Iterator[tuple[WorkerProcess, str]]:
    """A worker that launches a stub with `settings`; with it, the stub's port."""
    port = str(free_ports(1))
    kind, url = settings.get("kind", "vllm"), f"http://127.0.0.1:{port}"
    launch = {"argv": stub_argv(port, **settings), **keys.pop("launch", {})}
    with foreign_worker(folder, gateway, kind, url, launch=launch, **keys) as worker:
        yield worker, port


@pytest.mark.parametrize("kind", KINDS)
async def test_tokens_both_ways(tmp_path: Path, kind: str) -> None:
    """A launched engine: facts from its own endpoints, its model's tokens with their offsets,
    usage, cached tokens; a resumed submission goes on as the undisturbed one.
    """
    async with open_gateway_end() as gateway:
        with launching_worker(tmp_path, gateway, {"kind": kind, "cached": 32}) as (_, port):
            facts = (await gateway.wait_ready()).engine
            assert facts is not None
            assert (facts.kind, facts.context_length) == (kind, WINDOW)
            assert facts.kv_tokens == 8192
            assert facts.max_seqs == (8 if kind == "vllm" else SLOTS)
            gateway.send(submission(A))
            finished = await finish(gateway, A)
            assert gateway.ids_of(A) == expected(8)
            assert [item.offset for item in gateway.items_of(A)] == list(range(8))
            assert (finished.reason, finished.output_tokens, finished.matched) == (
                "length",
                8,
                None,
            )
            assert (finished.prompt_tokens, finished.cached_tokens) == (40, 32)
            assert gateway.all_of(Accepted)[0].request_id == A
            so_far = pack_tokens(expected(3))
            gateway.send(msgspec.structs.replace(submission(B), attempt=2, output_ids=so_far))
            await finish(gateway, B)
            assert gateway.ids_of(B) == expected(8)[3:]
            # The block of the prompt is thought to be held there now.
            assert gateway.all_of(BlocksStored)
            probes = (await told(f"http://127.0.0.1:{port}"))["requests"]
            assert [len(one.get("prompt") or one["input_ids"]) for one in probes[:2]] == [4, 64]


async def test_an_attached_engine_over_a_unix_socket_with_a_key(tmp_path: Path) -> None:
    """An attached engine over a Unix socket is asked with the key of the environment, watched, and
    never killed.
    """
    address = str(tmp_path / "engine.sock")
    with foreign_process(address, key="sk-1") as engine:
        async with open_gateway_end() as gateway:
            keys = {"api_key_env": "STUB_KEY", "environ": {"STUB_KEY": "sk-1"}}
            with foreign_worker(tmp_path, gateway, "vllm", engine.url, **keys) as worker:
                await gateway.wait_ready()
                gateway.send(submission(A))
                await finish(gateway, A)
                load = await gateway.wait(Load, lambda m: m.waiting == 3)
                assert load.num_blocks == 8192 // 32
                worker.process.terminate()
                assert await worker.wait_exit() == 0
        assert engine.process.poll() is None


async def test_an_abort_closes_the_stream(tmp_path: Path) -> None:
    """An abort closes the HTTP stream, by which these engines learn of it; the sequence ends as
    aborted.
    """
    async with open_gateway_end() as gateway:
        settings = {"token_ms": 5}
        with launching_worker(tmp_path, gateway, settings) as (_, port):
            await gateway.wait_ready()
            gateway.send(submission(A, max_tokens=1500))
            await gateway.wait(Tokens)
            gateway.send(Abort(A, 1))
            assert (await finish(gateway, A)).reason == "abort"
            stub = f"http://127.0.0.1:{port}"
            assert (await wait_told(stub, lambda m: not m["running"]))["aborted"] == 1


async def test_a_killed_engine_is_a_fault_and_starts_again(tmp_path: Path) -> None:
    """kill -9 of the launched engine in mid-stream: its exit code is in the fault, the next start
    serves.
    """
    async with open_gateway_end() as gateway:
        with launching_worker(tmp_path, gateway, {"token_ms": 5}) as (_, port):
            await gateway.wait_ready()
            gateway.send(submission(A, max_tokens=1500))
            await gateway.wait(Tokens)
            kill_launched(port)
            fault = await gateway.wait(Fault)
            assert (fault.epoch, fault.kind) == (1, "killed")
            assert fault.exit_code == 137
            assert not [one for one in gateway.all_of(Finished) if one.request_id == A]
            await gateway.wait_ready(2)
            gateway.send(submission(B))
            await finish(gateway, B)
            assert gateway.ids_of(B) == expected(8)


async def test_a_worker_that_leaves_takes_its_engine_along(tmp_path: Path) -> None:
    """No process of a launched engine outlives the worker, killed or asked to leave."""
    for signal_name in ("terminate", "kill"):
        async with open_gateway_end() as gateway:
            with launching_worker(tmp_path, gateway, {}) as (worker, port):
                await gateway.wait_ready()
                (pid,) = pids_of(port)
                getattr(worker.process, signal_name)()
                await worker.wait_exit()
                await wait_dead(pid)


async def test_an_attached_engine_that_dies_is_waited_for(tmp_path: Path) -> None:
    """An attached engine that dies, also an idle one, is waited for: within seconds its worker has
    no engine, for any time, and then has it again.
    """
    with foreign_process() as engine:
        async with open_gateway_end() as gateway:
            with foreign_worker(tmp_path, gateway, "vllm", engine.url):
                await gateway.wait_ready()
                engine.kill()
                fault = await gateway.wait(Fault)
                assert "is gone" in fault.cause
                assert not fault.is_final
                # Attaching is progress, not failure.
                await gateway.wait(Progress, lambda m: m.epoch == 2 and m.phase == "attach")
                engine.restart()
                await gateway.wait_ready(2)


async def test_one_broken_answer_moves_one_request(tmp_path: Path) -> None:
    """An engine that lives but answers 500 (out of memory), cuts a stream or half an event: that
    request ends with the error, which moves it; the others and the engine go on.
    """
    broken: list[tuple[dict[str, Any], int]] = [
        ({"fails": True}, 0),
        ({"fails": False, "cut_after": 3}, 3),
        ({"cut_after": None, "half_after": 3}, 3),
    ]
    with foreign_process() as engine:
        async with open_gateway_end() as gateway:
            with foreign_worker(tmp_path, gateway, "vllm", engine.url):
                await gateway.wait_ready()
                for number, (settings, num_tokens) in enumerate(broken):
                    await change(engine.url, **settings)
                    name = bytes([number]) * 16
                    gateway.send(submission(name))
                    finished = await finish(gateway, name)
                    assert (finished.reason, bool(finished.detail)) == ("error", True)
                    assert gateway.ids_of(name) == expected(num_tokens)
                await change(engine.url, half_after=None)
                gateway.send(submission(B))
                assert (await finish(gateway, B)).reason == "length"
                assert not gateway.all_of(Fault)


async def test_what_cannot_be_served_is_rejected_by_name(tmp_path: Path) -> None:
    """What cannot be served is rejected by name before the engine sees it; a busy engine is no
    failure.
    """
    with foreign_process(kind="llama-cpp") as engine:
        async with open_gateway_end() as gateway:
            with foreign_worker(tmp_path, gateway, "llama-cpp", engine.url):
                await gateway.wait_ready()
                await change(engine.url, refuses=True)
                plain = submission(A)
                submits = {
                    "private": msgspec.structs.replace(plain, salt=b"x"),
                    "adapter": msgspec.structs.replace(plain, adapter="x"),
                    "not served": msgspec.structs.replace(plain, model="x"),
                    "no tokens": msgspec.structs.replace(plain, prompt_ids=b""),
                    "vocabulary": msgspec.structs.replace(plain, prompt_ids=pack_tokens([10**9])),
                    "context length": submission(A, prompt=WINDOW),
                    "grammars": msgspec.structs.replace(plain, grammar=Grammar("regex", "a")),
                    "overloaded": plain,
                }
                # The same attempt twice, one after the other and at once.
                await change(engine.url, refuses=False, token_ms=20)
                gateway.send(submission(B, max_tokens=60))
                assert await _rejected_at_once(gateway, B) == "invalid"
                assert (await finish(gateway, B)).reason == "length"
                await change(engine.url, refuses=True)
                reasons = [await _rejected(gateway, *pair) for pair in submits.items()]
                assert reasons == [
                    "invalid", "invalid", "unknown_model", "invalid", "invalid",
                    "too_long", "grammar", "busy",
                ]  # fmt: skip
                assert not gateway.all_of(Fault)


async def _rejected_at_once(gateway: GatewayEnd, request_id: bytes) -> str:
    gateway.send(submission(request_id, max_tokens=60))
    return (await gateway.wait(Rejected, lambda m: m.request_id == request_id)).reason


async def _rejected(gateway: GatewayEnd, word: str, submit: Submit) -> str:
    request_id = word.encode()[:16].ljust(16)
    gateway.send(msgspec.structs.replace(submit, request_id=request_id))
    rejected = await gateway.wait(Rejected, lambda m: m.request_id == request_id)
    assert word in rejected.detail
    return rejected.reason


async def test_a_slow_start_is_progress(tmp_path: Path) -> None:
    """A start longer than `stall_s` is no failure while the engine's log says something new; known
    lines give the phase and the fraction.
    """
    async with open_gateway_end() as gateway:
        settings = {"start_s": 9.0}
        with launching_worker(tmp_path, gateway, settings, stall_s=7.0):
            await gateway.wait_ready()
            weights = [m.fraction for m in gateway.all_of(Progress) if m.phase == "weights"]
            assert len(weights) >= 3
            assert weights == sorted(weights)
            assert not gateway.all_of(Fault)


async def test_silence_is_a_failure(tmp_path: Path) -> None:
    """An engine that says nothing and uses no CPU is ended after `stall_s`."""
    async with open_gateway_end() as gateway:
        settings = {"start_s": 600.0, "silent": True}
        with launching_worker(tmp_path, gateway, settings, stall_s=1.5) as (_, port):
            fault = await gateway.wait(Fault)
            assert fault.kind == "no_progress"
            # Its start ended it, or the next has its own.
            assert len(pids_of(port)) <= 1


async def test_a_death_at_the_first_large_prompt_is_found_before_users(tmp_path: Path) -> None:
    """`probe_context` ids are sent before the worker is ready; the log names the cause."""
    async with open_gateway_end() as gateway:
        settings = {"die_at": 1000}
        with launching_worker(tmp_path, gateway, settings, probe_context=1500):
            fault = await gateway.wait(Fault)
            assert fault.epoch == 1
            assert any("CUDA out of memory" in line for line in fault.last_log)
            assert all(m.engine is None for m in gateway.heard if hasattr(m, "engine"))


@pytest.mark.parametrize(
    ("kind", "settings", "cause"),
    [
        ("vllm", {"ignores_ids": True}, "0.10.2 or later"),
        ("sglang", {"mixes_prompt": True}, "ids of the prompt"),
        ("vllm", {"key": "sk-2"}, "api_key_env"),
    ],
)
async def test_an_engine_that_cannot_serve_never_becomes_ready(
    tmp_path: Path, kind: str, settings: dict[str, Any], cause: str
) -> None:
    """The fault says what is wrong with it."""
    with foreign_process(kind=kind, **settings) as engine:
        async with open_gateway_end() as gateway:
            with foreign_worker(tmp_path, gateway, kind, engine.url):
                assert cause in (await gateway.wait(Fault)).cause


async def test_a_taken_address_and_a_missing_program_are_named(tmp_path: Path) -> None:
    """A server that is there already would be mistaken for the launched one; 127 says that the
    program is gone.
    """
    with foreign_process() as other:
        await told(other.url)  # it listens
        async with open_gateway_end() as gateway:
            keys = {"launch": {"argv": stub_argv(other.address)}}
            with foreign_worker(tmp_path, gateway, "vllm", other.url, **keys):
                fault = await gateway.wait(Fault)
                assert (fault.kind, "in use" in fault.cause) == ("port_taken", True)
                assert f"pid {other.process.pid} (" in fault.cause
    async with open_gateway_end() as gateway:
        url = f"http://127.0.0.1:{free_ports(1)}"
        keys = {"launch": {"argv": ["/no/such/program"]}}
        with foreign_worker(tmp_path, gateway, "vllm", url, **keys):
            fault = await gateway.wait(Fault)
            assert (fault.kind, fault.exit_code) == ("file_not_found", 127)


async def test_stop_runs_before_the_first_start_and_after_each_end(tmp_path: Path) -> None:
    """What outlives the process, as a container does, is ended by the worker's own command."""
    log = tmp_path / "stops"
    stop = ["/bin/sh", "-c", f"echo stopped >> {log}"]
    async with open_gateway_end() as gateway:
        with launching_worker(tmp_path, gateway, {}, launch={"stop": stop}) as (worker, port):
            await gateway.wait_ready()
            assert log.read_text().split() == ["stopped"]
            kill_launched(port)
            await gateway.wait_ready(2)
            assert log.read_text().split() == ["stopped"] * 2
            worker.process.terminate()
            assert await worker.wait_exit() == 0
    assert log.read_text().split() == ["stopped"] * 3


async def test_a_drain_waits_for_the_last_answer(tmp_path: Path) -> None:
    """SIGTERM in mid-answer: the answer is finished, then the worker leaves."""
    async with open_gateway_end() as gateway:
        with launching_worker(tmp_path, gateway, {"token_ms": 10}) as (worker, _):
            await gateway.wait_ready()
            gateway.send(submission(A, max_tokens=60))
            await gateway.wait(Tokens)
            worker.process.terminate()
            assert (await finish(gateway, A)).reason == "length"
            assert await worker.wait_exit() == 0


async def test_many_at_once(tmp_path: Path) -> None:
    """Every sequence gets its own tokens; those over the places and the queue are told busy."""
    async with open_gateway_end() as gateway:
        with launching_worker(tmp_path, gateway, {}, max_waiting=24):
            await gateway.wait_ready()
            names = [bytes([number]) * 16 for number in range(40)]
            for name in names:
                gateway.send(submission(name, max_tokens=32))
            with trio.fail_after(30):
                ends = [await _end(gateway, name) for name in names]
            served = [one.request_id for one in ends if isinstance(one, Finished)]
            assert len(served) >= 32
            assert all(gateway.ids_of(name) == expected(32) for name in served)
            assert {one.reason for one in ends if isinstance(one, Rejected)} <= {"busy"}


async def _end(gateway: GatewayEnd, name: bytes) -> Finished | Rejected:
    def is_end(message: Finished | Rejected) -> bool:
        return message.request_id == name

    return await gateway.wait(Finished | Rejected, is_end)  # type: ignore[arg-type]
