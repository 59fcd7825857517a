"""Real worker processes with a synthetic engine against a real ROUTER on loopback."""

import os
import signal
from pathlib import Path

import msgspec
import pytest
import trio

from protocol import wire
from protocol.files_digest import files_digest
from protocol.messages import (
    Abort,
    Accepted,
    BlocksSnapshot,
    Bye,
    Drain,
    Fault,
    Files,
    Finished,
    GetFiles,
    Load,
    Ping,
    Pong,
    Progress,
    Register,
    Rejected,
    Snapshot,
    Submit,
    Tokens,
)
from tests.fakes.foreign_process import change, holding_worker
from tests.fakes.gateway_end import REGULAR_NONCES, GatewayEnd, open_gateway_end, submission
from tests.fakes.ports import free_ports
from tests.fakes.worker_process import BOUND_S, is_alive, wait_dead, worker_process

A, B = b"a" * 16, b"b" * 16


def pong(nonce: int) -> Pong:
    """One that is recorded."""
    return Pong(REGULAR_NONCES + nonce)


def own_address() -> str:
    """Where a gateway can listen again: the kernel assigns this port to no other socket."""
    return f"tcp://127.0.0.1:{free_ports(1)}"


async def finish(gateway: GatewayEnd, request_id: bytes) -> Finished:
    return await gateway.wait(Finished, lambda m: m.request_id == request_id)


async def test_a_worker_registers_proves_itself_and_serves(tmp_path: Path) -> None:
    """Register without an engine, progress, register with facts, then tokens until finished."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address):
            ready = await gateway.wait_ready()
            assert gateway.all_of(Register)[0].engine is None
            assert gateway.all_of(Progress)
            assert (ready.worker, ready.models) == ("w", ("echo",))
            assert ready.engine is not None
            assert ready.engine.kind == "synthetic"
            gateway.send(submission(A))
            finished = await finish(gateway, A)
            assert (finished.reason, finished.output_tokens) == ("length", 8)
            assert [item.offset for item in gateway.items_of(A)] == list(range(8))
            assert gateway.all_of(Accepted)[0].request_id == A
            # Deterministic: the same seed and positions give the same tokens.
            gateway.send(submission(B))
            assert (await finish(gateway, B)).cached_tokens == 32
            assert gateway.ids_of(A) == gateway.ids_of(B)


async def test_a_resumed_sequence_continues_as_the_undisturbed_one(tmp_path: Path) -> None:
    """With output_ids so far, the rest of the tokens is what the first run would have said."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address):
            await gateway.wait_ready()
            gateway.send(submission(A))
            await finish(gateway, A)
            whole = gateway.ids_of(A)
            so_far = b"".join(item.ids for item in gateway.items_of(A)[:3])
            resumed = msgspec.structs.replace(submission(B), attempt=2, output_ids=so_far)
            gateway.send(resumed)
            await finish(gateway, B)
            assert gateway.ids_of(B) == whole[3:]
            assert gateway.items_of(B)[0].offset == 3


async def test_files_and_snapshots_are_answered(tmp_path: Path) -> None:
    """GetFiles gets the model's text files with the digest of Register, Snapshot the cache."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address):
            ready = await gateway.wait_ready()
            assert ready.engine is not None
            gateway.send(GetFiles(ready.engine.files_digest))
            files = await gateway.wait(Files)
            assert set(files.files) == {"tokenizer.json", "config.json"}
            assert files_digest(files.files) == files.digest == ready.engine.files_digest
            gateway.send(submission(A))
            await finish(gateway, A)
            gateway.send(Snapshot())
            assert (
                len((await gateway.wait(BlocksSnapshot, lambda m: bool(m.digests))).digests) == 16
            )


async def test_an_abort_frees_the_blocks(tmp_path: Path) -> None:
    """A running sequence that is aborted says so, and the engine's counters show no trace."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address, step_ms=5):
            await gateway.wait_ready()
            gateway.send(submission(A, max_tokens=4000))
            await gateway.wait(Tokens, lambda m: m.items[0].request_id == A)
            gateway.send(Abort(A, 1))
            assert (await finish(gateway, A)).reason == "abort"
            gateway.heard.clear()
            gateway.send(Snapshot())
            load = await gateway.wait(Load, lambda m: m.running == 0)
            assert load.free_blocks == load.num_blocks


async def test_a_killed_engine_is_told_and_replaced(tmp_path: Path) -> None:
    """kill -9 of the engine: Fault with cause and code, a new epoch, ready and serving again."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address, step_ms=5) as worker:
            await gateway.wait_ready()
            gateway.send(submission(A, max_tokens=4000))
            await gateway.wait(Tokens, lambda m: m.items[0].request_id == A)
            os.kill(worker.engine_pids()[0], signal.SIGKILL)
            fault = await gateway.wait(Fault)
            assert (fault.worker, fault.epoch, fault.exit_code) == ("w", 1, 137)
            # By its end, not by its silence.
            assert (fault.kind, "SIGKILL" in fault.cause) == ("killed", True)
            await gateway.wait_ready(epoch=2)
            gateway.send(submission(B))
            assert (await finish(gateway, B)).reason == "length"


async def test_killing_the_supervisor_ends_its_engine(tmp_path: Path) -> None:
    """kill -9 of the supervisor leaves no engine behind."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address) as worker:
            await gateway.wait_ready()
            (engine,) = worker.engine_pids()
            assert is_alive(engine)
            worker.process.kill()
            await wait_dead(engine)


async def test_a_stopped_engine_is_pinged_for_and_killed(tmp_path: Path) -> None:
    """While the engine stands still the supervisor answers; with work pending it is replaced."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address) as worker:
            await gateway.wait_ready()
            os.kill(worker.engine_pids()[0], signal.SIGSTOP)
            gateway.send(Ping(pong(1).nonce))
            await gateway.wait(Pong, lambda m: m == pong(1))
            gateway.send(submission(A))
            gateway.send(Ping(pong(2).nonce))
            await gateway.wait(Pong, lambda m: m == pong(2))
            fault = await gateway.wait(Fault)
            assert "hung" in fault.cause
            await gateway.wait_ready(epoch=2)


async def test_a_model_that_is_not_there_stops_with_its_cause(tmp_path: Path) -> None:
    """One start, one clear line, and the supervisor stays to tell."""
    async with open_gateway_end() as gateway:
        missing = tmp_path / "nowhere"
        with worker_process(tmp_path, gateway.address, model=str(missing)) as worker:
            fault = await gateway.wait(Fault)
            assert fault.is_final
            assert "nowhere is no directory" in fault.cause
            assert not any("Traceback" in line for line in worker.lines)
            gateway.send(submission(A))
            assert (await gateway.wait(Rejected)).reason == "not_ready"
            assert len(worker.engine_pids()) == 1


GARBAGE = [b"", b"\x00", b"\xff" * 100, b"\x91\x02", b"\x92\x07\xc4", b"\x9f\x7f" + bytes(50)]


async def test_garbage_from_a_gateway_harms_nobody(tmp_path: Path) -> None:
    """Frames that are no messages are counted; a bad submission is answered; others go on."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address):
            await gateway.wait_ready()
            for frame in GARBAGE:
                gateway.send_frame(frame)
            whole = wire.encode(submission(A))
            for cut in range(0, len(whole), 7):
                gateway.send_frame(whole[:cut])
            fields = msgspec.msgpack.decode(whole)
            gateway.send_frame(msgspec.msgpack.encode([*fields[:4], "not bytes", *fields[5:]]))
            rejected = await gateway.wait(Rejected)
            assert (rejected.request_id, rejected.reason) == (A, "invalid")
            gateway.send(submission(B))
            assert (await finish(gateway, B)).reason == "length"
            assert not gateway.all_of(Fault)


async def test_sigterm_finishes_what_runs_and_says_bye(tmp_path: Path) -> None:
    """A drain refuses new work, lets the running sequence end, then Bye and exit status 0."""
    async with open_gateway_end() as gateway:
        with holding_worker(tmp_path, gateway.address) as (worker, engine):
            await gateway.wait_ready()
            gateway.send(submission(A, max_tokens=100))
            await gateway.wait(Tokens, lambda m: m.items[0].request_id == A)
            worker.process.send_signal(signal.SIGTERM)
            await worker.wait_line("draining")
            gateway.send(submission(B))
            assert (await gateway.wait(Rejected)).reason == "draining"
            await change(engine.url, hold_after=None)
            await gateway.wait(Bye)
            assert (await finish(gateway, A)).output_tokens == 100
            assert await worker.wait_exit() == 0
            assert not is_alive(worker.engine_pids()[0])


async def test_the_same_signal_again_leaves_at_once(tmp_path: Path) -> None:
    """A drain is not cut short by Ctrl-C and a parent's SIGTERM together, but by insisting."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address, step_ms=50, drain_s=600) as worker:
            await gateway.wait_ready()
            gateway.send(submission(A, max_tokens=4000))
            await gateway.wait(Tokens, lambda m: m.items[0].request_id == A)
            worker.process.send_signal(signal.SIGINT)
            worker.process.send_signal(signal.SIGTERM)
            await worker.wait_line("draining")
            gateway.send(submission(B))
            await gateway.wait(Rejected)
            worker.process.send_signal(signal.SIGTERM)
            assert await worker.wait_exit() == 143
            await wait_dead(worker.engine_pids()[0])


async def test_a_drain_ends_at_its_deadline(tmp_path: Path) -> None:
    """A gateway may ask for the drain; what is not done in time is left behind."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address, step_ms=50) as worker:
            await gateway.wait_ready()
            gateway.send(submission(A, max_tokens=4000))
            await gateway.wait(Tokens, lambda m: m.items[0].request_id == A)
            gateway.send(Drain(0.2))
            await gateway.wait(Bye)
            assert await worker.wait_exit() == 0


async def test_a_silent_gateway_loses_its_work_and_gets_the_worker_back(tmp_path: Path) -> None:
    """Without pings its sequences are aborted; heard again, the worker says Bye and registers."""
    async with open_gateway_end() as gateway, open_gateway_end() as other:
        with worker_process(tmp_path, gateway.address, other.address, step_ms=5):
            await gateway.wait_ready()
            await other.wait_ready()
            gateway.send(submission(A, max_tokens=4000))
            await gateway.wait(Tokens, lambda m: m.items[0].request_id == A)
            await other.wait(Load, lambda m: m.running == 1)
            gateway.heard.clear()
            other.heard.clear()
            gateway.pings = False
            await gateway.wait(Bye)
            gateway.pings = True
            await gateway.wait_ready()
            await other.wait(Load, lambda m: m.running == 0)
            gateway.send(submission(B))
            assert (await finish(gateway, B)).reason == "length"


async def test_a_restarted_gateway_is_found_again(tmp_path: Path) -> None:
    """A new gateway on the old address gets the ready worker, without anyone's help."""
    async with open_gateway_end(own_address()) as first:
        with worker_process(tmp_path, first.address):
            await first.wait_ready()
            first.close()
            async with open_gateway_end(first.address) as second:
                ready = await second.wait_ready()
                assert ready.epoch == 1
                second.send(submission(A))
                assert (await finish(second, A)).reason == "length"


async def test_a_gateway_that_is_not_there_is_reported_once(tmp_path: Path) -> None:
    """The operator of a worker learns that nobody answers, before and after there was somebody."""
    address = own_address()
    with worker_process(tmp_path, address) as worker:
        says = f"gateway {address} has not answered"
        await worker.wait_line(says)
        _, table = await worker.command("status", "w")
        assert f"w: gateway {address}: it has not answered" in table
        async with open_gateway_end(address) as found:
            await found.wait_ready()
            # Only who was welcomed is missed; an answer tells that the Welcome has come before.
            found.send(Ping(pong(1).nonce))
            await found.wait(Pong, lambda m: m == pong(1))
        with trio.fail_after(BOUND_S):
            while sum(says in line for line in worker.lines) < 2:  # noqa: ASYNC110
                await trio.sleep(0.05)


async def test_a_gateway_names_its_siblings(tmp_path: Path) -> None:
    """A worker dials every gateway that a Welcome lists."""
    async with open_gateway_end() as gateway, open_gateway_end() as sibling:
        gateway.siblings = (gateway.address, sibling.address, "nonsense")
        with worker_process(tmp_path, gateway.address) as worker:
            await sibling.wait_ready()
            await worker.wait_line("nonsense")


@pytest.mark.parametrize(
    ("gateway", "says"),
    [("nonsense", "nonsense"), ("tcp://203.0.113.1:9", "needs keys")],
)
async def test_a_bad_gateway_address_is_one_clear_line(
    tmp_path: Path, gateway: str, says: str
) -> None:
    """An address that cannot be dialled, or must not be, ends the start with one line."""
    with worker_process(tmp_path, gateway) as worker:
        assert await worker.wait_exit() == 1
        line = await worker.wait_line(says)
        assert worker.lines == [line]


def test_submissions_are_known_by_their_first_bytes() -> None:
    """What the relay passes on unread is recognised without decoding."""
    assert wire.peek_tag(wire.encode(submission(A))) == wire.tag_of(Submit)
