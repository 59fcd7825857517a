"""A worker and a gateway of one machine: the whole way of a request over a Unix socket."""

import os
import signal
from pathlib import Path

from protocol.messages import Accepted, Bye, Finished, FromWorker, Register, Tokens
from tests.fakes.gateway_end import open_gateway_end, submission
from tests.fakes.running_gateway import wait_until
from tests.fakes.worker_process import worker_process

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


async def test_an_answer_of_one_token_is_one_frame(tmp_path: Path) -> None:
    """Acceptance, token and end arrive together, once the engine knows its steps to be brief. On a
    busy machine that takes more of them.
    """
    async with open_gateway_end(f"ipc://{tmp_path}/workers") as gateway:
        with worker_process(tmp_path, gateway.address, step_ms=0.0):
            await gateway.wait_ready()
            whole, together = [Accepted, Tokens, Finished], list[type[FromWorker]]()
            for number in range(1000):
                request_id = number.to_bytes(16, "big")
                gateway.send(submission(request_id, max_tokens=1))
                await gateway.wait(Finished, lambda m, wanted=request_id: m.request_id == wanted)
                (bundle,) = (one for one in gateway.bundles if _ends(one, request_id))
                together = [type(message) for message in bundle[:3]]
                if together == whole:
                    break
            assert together == whole


def _ends(bundle: list[FromWorker], request_id: bytes) -> bool:
    return any(isinstance(one, Finished) and one.request_id == request_id for one in bundle)


async def test_sequences_side_by_side_are_whole(tmp_path: Path) -> None:
    """Nothing is missing or out of order of what eight sequences say."""
    async with open_gateway_end(f"ipc://{tmp_path}/workers") as gateway:
        with worker_process(tmp_path, gateway.address, step_ms=5.0, max_seqs=8):
            await gateway.wait_ready()
            ids = [bytes([number]) * 16 for number in range(8)]
            for request_id in ids:
                gateway.send(submission(request_id, max_tokens=20))
            for request_id in ids:
                await gateway.wait(Finished, lambda m, wanted=request_id: m.request_id == wanted)
                assert [item.offset for item in gateway.items_of(request_id)] == list(range(20))


async def test_a_killed_supervisor_is_noticed_at_once(tmp_path: Path) -> None:
    """A killed supervisor is noticed at once by the end of its connection, in the middle of an
    answer: nothing here looks for silence.
    """
    async with open_gateway_end(f"ipc://{tmp_path}/workers") as gateway:
        with worker_process(tmp_path, gateway.address, step_ms=5.0) as worker:
            await gateway.wait_ready()
            gateway.send(submission(A, max_tokens=4000))
            await gateway.wait(Tokens)
            os.kill(worker.pid, signal.SIGKILL)
            await wait_until(lambda: bool(gateway.lost))


async def test_a_gateway_that_comes_back_is_told_that_its_work_is_lost(tmp_path: Path) -> None:
    """The worker aborts what ran for the lost connection, says so and registers anew."""
    address = f"ipc://{tmp_path}/workers"
    async with open_gateway_end(address) as gateway:
        with worker_process(tmp_path, address, step_ms=5.0) as worker:
            await gateway.wait_ready()
            gateway.send(submission(A, max_tokens=4000))
            await gateway.wait(Tokens)
            gateway.close()
            await worker.wait_line("the connection is lost")
            async with open_gateway_end(address) as successor:
                await successor.wait_ready()
                assert isinstance(successor.heard[0], Bye | Register)
                successor.send(submission(B))
                finished = await successor.wait(Finished)
                assert (finished.request_id, finished.output_tokens) == (B, 8)
                assert not successor.items_of(A)
