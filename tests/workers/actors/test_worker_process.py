"""Real worker processes with a synthetic engine against a real ROUTER on loopback."""

from pathlib import Path

from protocol.messages import Accepted, Finished
from tests.fakes.gateway_end import open_gateway_end, submission
from tests.fakes.worker_process import worker_process


async def test_a_worker_registers_proves_itself_and_serves(tmp_path: Path) -> None:
    """Register without an engine, progress, register with facts, then tokens until finished."""
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address):
            ready = await gateway.wait_ready()
            assert ready.worker == "w"
            assert ready.models == ("echo",)
            assert ready.engine is not None
            assert ready.engine.kind == "synthetic"
            request_id = b"a" * 16
            gateway.send(submission(request_id))
            finished = await gateway.wait(Finished)
            assert finished.reason == "length"
            assert finished.output_tokens == 8
            assert len(gateway.ids_of(request_id)) == 8
            assert [item.offset for item in gateway.items_of(request_id)] == list(range(8))
            assert gateway.all_of(Accepted)[0].request_id == request_id
