"""A gateway that does not take what it is told makes the engine wait, and loses nothing."""

import os
import signal
from pathlib import Path

import msgspec
import trio

from protocol.messages import Bye, Fault, Finished, Submit
from tests.fakes.gateway_end import open_gateway_end, submission
from tests.fakes.running_gateway import wait_until
from tests.fakes.worker_process import worker_process
from workers.supervisor.gateway_link import MAX_UNREAD_BYTES
from workers.supervisor.progress_watch import MIN_HANG_S

NUM_SEQUENCES = 24
NUM_TOKENS = 4000
STALL_S = 3.0
SLACK_BYTES = 2**19
"""Of what is in the pipe when it is closed: what one read of the engine's channel brings."""


def talkative(number: int) -> Submit:
    """A request whose tokens bring log-probabilities along, so that much is said in little time."""
    submit = submission(bytes([number]) * 16, max_tokens=NUM_TOKENS)
    sampling = msgspec.structs.replace(submit.sampling, logprobs=1)
    return msgspec.structs.replace(submit, sampling=sampling)


async def test_an_engine_waits_for_its_gateway_and_goes_on(tmp_path: Path) -> None:
    """Longer than a hang may last it says no more than the credit allows, and is not killed; then
    every token comes, in order.
    """
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address):
            await gateway.wait_ready()
            gateway.acknowledges = False
            for number in range(NUM_SEQUENCES):
                gateway.send(talkative(number))
            await wait_until(lambda: gateway.received_bytes > MAX_UNREAD_BYTES)
            await trio.sleep(MIN_HANG_S + 0.5)  # longer than any watch of a step
            assert gateway.received_bytes < MAX_UNREAD_BYTES + SLACK_BYTES
            assert len(gateway.all_of(Finished)) < NUM_SEQUENCES
            gateway.acknowledges = True
            for number in range(NUM_SEQUENCES):
                request_id = bytes([number]) * 16
                await gateway.wait(Finished, lambda m, wanted=request_id: m.request_id == wanted)
                offsets = [item.offset for item in gateway.items_of(request_id)]
                assert offsets == list(range(NUM_TOKENS))
            assert gateway.received_bytes > MAX_UNREAD_BYTES + SLACK_BYTES
            assert not gateway.all_of(Fault)
            assert not gateway.all_of(Bye)


async def test_an_engine_that_starts_meanwhile_is_not_blamed(tmp_path: Path) -> None:
    """What it tells of its start is left in its channel, for longer than a start may be silent."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address) as worker:
            await gateway.wait_ready()
            worker.reload(stall_s=STALL_S)
            await worker.wait_line("stall_s is taken")
            gateway.acknowledges = False
            for number in range(NUM_SEQUENCES):
                gateway.send(talkative(number))
            await wait_until(lambda: gateway.received_bytes > MAX_UNREAD_BYTES)
            os.kill(worker.engine_pids()[0], signal.SIGKILL)
            await gateway.wait(Fault)
            await trio.sleep(STALL_S + 2.0)
            gateway.acknowledges = True
            await gateway.wait_ready(epoch=2)
            assert [fault.epoch for fault in gateway.all_of(Fault)] == [1]
            assert not gateway.all_of(Bye)


async def test_an_engine_of_two_gateways_waits_for_neither_for_long(tmp_path: Path) -> None:
    """The one that reads nothing loses its work, and hears so; the other's answers are whole."""
    first, second = (f"ipc://{tmp_path}/{name}" for name in ("first", "second"))
    async with open_gateway_end(first) as deaf, open_gateway_end(second) as other:
        with worker_process(tmp_path, first, second, max_seqs=32) as worker:
            await deaf.wait_ready()
            await other.wait_ready()
            deaf.acknowledges = False
            for number in range(NUM_SEQUENCES):
                deaf.send(talkative(number))
            await wait_until(lambda: deaf.received_bytes > MAX_UNREAD_BYTES)
            other.send(submission(b"o" * 16, max_tokens=NUM_TOKENS))
            await other.wait(Finished)
            assert [item.offset for item in other.items_of(b"o" * 16)] == list(range(NUM_TOKENS))
            await worker.wait_line("it has read nothing of what was sent for 3 s")
            await deaf.wait(Bye)
            assert len(deaf.all_of(Finished)) < NUM_SEQUENCES
            assert not other.all_of(Bye)
