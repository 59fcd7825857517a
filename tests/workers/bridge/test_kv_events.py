"""KV events over their real sockets, from a publisher to what a worker tells its gateways."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from protocol.ids import BlockDigest
from protocol.messages import BlocksDropped, BlocksSnapshot, BlocksStored
from tests.fakes.foreign_process import foreign_process
from tests.fakes.gateway_end import GatewayEnd, open_gateway_end
from tests.fakes.kv_publisher import KvPublisher
from tests.fakes.ports import free_ports
from tests.fakes.vllm_engine import VllmEngine, split
from tests.fakes.worker_process import worker_process

BOUND_S = 30.0
PROMPTS = [list(range(1000 * n, 1000 * n + 96)) for n in range(1, 6)]


def held(gateway: GatewayEnd) -> set[BlockDigest]:
    """What a gateway that follows the numbers believes."""
    digests: set[BlockDigest] = set()
    seq = -1
    for message in gateway.heard:
        if isinstance(message, BlocksSnapshot):
            digests, seq = set(split(message.digests)), message.seq
        elif isinstance(message, BlocksStored | BlocksDropped) and message.seq > seq:
            change = (
                digests.update if isinstance(message, BlocksStored) else digests.difference_update
            )
            change(split(message.digests))
            seq = message.seq
    return digests


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(BOUND_S):
        while not holds():  # noqa: ASYNC110 - another process
            await trio.sleep(0.02)


@pytest.mark.parametrize("kind", ["vllm", pytest.param("sglang", marks=pytest.mark.slow)])
async def test_what_is_published_is_held(tmp_path: Path, kind: str) -> None:
    """Stored, removed, lost and replayed, and a new engine behind the same address."""
    first = free_ports(2)
    events, replay = f"tcp://127.0.0.1:{first}", f"tcp://127.0.0.1:{first + 1}"
    engine = VllmEngine()
    publisher = KvPublisher(events, replay, has_topic=kind == "vllm")
    keys = {
        "engine": kind,
        "model": "builtin:herma-tiny",
        "probe_context": 0,
        "kv_events": {"url": events, "replay": replay},
    }
    with foreign_process(kind=kind) as stub:
        async with open_gateway_end() as gateway, trio.open_nursery() as nursery:
            with worker_process(tmp_path, gateway.address, url=stub.url, **keys):
                await gateway.wait_ready()
                nursery.start_soon(publisher.run)
                with trio.fail_after(BOUND_S):
                    await publisher.subscribed()
                engine.compute(PROMPTS[0])
                publisher.publish(engine.batch())
                await until(lambda: held(gateway) == engine.truth(32, "echo") != set())
                engine.compute(PROMPTS[1])
                publisher.publish(engine.batch(), lost=True)
                engine.evict(0)
                publisher.publish(engine.batch())
                await until(lambda: held(gateway) == engine.truth(32, "echo"))
                assert publisher.num_replays == 1
                nursery.cancel_scope.cancel()
                publisher.close()
                engine = VllmEngine()
                publisher = KvPublisher(events, replay, has_topic=kind == "vllm")
                with trio.CancelScope(shield=True, deadline=trio.current_time() + BOUND_S):
                    await publisher.subscribed()
                    engine.compute(PROMPTS[2])
                    publisher.publish(engine.batch())
                    await until(lambda: held(gateway) == engine.truth(32, "echo") != set())
    publisher.close()
