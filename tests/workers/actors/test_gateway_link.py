"""A link to a gateway, alone, and what a relay does with its frames."""

import gc
from pathlib import Path

import pytest
import trio
import zmq
from trio.testing import MockClock

from config import builtin_config
from protocol.errors import ConfigError
from protocol.ids import WorkerId
from protocol.messages import PROTOCOL_VERSION, EngineFacts, FromWorker, Register, Welcome
from protocol.wire import encode
from tests.fakes.gateway_end import open_gateway_end, submission
from workers.actors.gateway_link import GatewayLink
from workers.actors.log import Log
from workers.actors.model_files import ModelFiles
from workers.actors.relay import Relay
from workers.core.identity import worker_identity
from workers.core.watch import GATEWAY_SILENCE_S


def open_sockets() -> set[int]:
    return {id(o) for o in gc.get_objects() if type(o) is zmq.Socket and not o.closed}


async def test_a_link_that_cannot_be_dialled_leaves_no_open_socket() -> None:
    """The garbage collector would wait for it to close, and the worker with it, for ever."""
    relay = Relay(
        worker_identity(builtin_config().workers[0], "0"),
        log := Log("w", beside_gateway=False),
        on_work=lambda: None,
        on_drain=lambda _: None,
        on_siblings=lambda _: None,
    )
    before = open_sockets()
    with pytest.raises(ConfigError, match="nonsense"):
        GatewayLink("nonsense", WorkerId(bytes(16)), relay, log, None)
    assert open_sockets() <= before
    log.close()


class Restless:
    """A relay whose engine starts anew whenever it is asked who it is, up to the third time."""

    def __init__(self) -> None:
        self.epoch = 0

    def greeting(self) -> tuple[FromWorker, ...]:
        self.epoch = min(3, self.epoch + 1)
        return (Register(PROTOCOL_VERSION, "w", ("echo",), "test", "", self.epoch),)

    def join(self, link: GatewayLink, welcome: Welcome) -> None:  # noqa: ARG002 - the seam
        link.number = 1

    def leave(self, link: GatewayLink) -> None:
        link.number = None

    def from_gateway(self, link: GatewayLink, frame: bytes) -> None:  # noqa: ARG002 - the seam
        raise AssertionError(frame)

    def gateway_pauses(self) -> None:
        pass

    def held(self) -> None:
        raise AssertionError("nothing was said")


async def test_what_changed_before_the_welcome_is_told_after_it() -> None:
    """Between Register and Welcome a link is none of those that are told of the engine."""
    log = Log("w", beside_gateway=False)
    async with open_gateway_end() as gateway, trio.open_nursery() as nursery:
        link = GatewayLink(gateway.address, WorkerId(bytes(16)), Restless(), log, None)
        nursery.start_soon(link.run)
        await gateway.wait(Register, lambda m: m.epoch == 3)
        assert link.number == 1
        nursery.cancel_scope.cancel()
    log.close()


class Steady(Restless):
    """A relay that is always the same."""

    def greeting(self) -> tuple[FromWorker, ...]:
        return (Register(PROTOCOL_VERSION, "w", ("echo",), "test", "", 1),)


async def test_a_gateway_is_there_as_long_as_it_pings(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Whatever else it says or does not say; its silence is not borne for long."""
    log = Log("w", beside_gateway=False)
    async with (
        open_gateway_end(f"ipc://{tmp_path}/gateway") as gateway,
        trio.open_nursery() as nursery,
    ):
        link = GatewayLink(gateway.address, WorkerId(bytes(16)), Steady(), log, None)
        nursery.start_soon(link.run)
        await gateway.wait(Register)
        for _ in range(4):
            await trio.sleep(GATEWAY_SILENCE_S)
            assert link.number == 1
            assert len(gateway.all_of(Register)) == 1
        gateway.pings = False
        await trio.sleep(GATEWAY_SILENCE_S + 1)
        assert link.number is None or len(gateway.all_of(Register)) > 1
        nursery.cancel_scope.cancel()
    log.close()


class Notes:
    """An engine that notes what is done with it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def put(self, link: int, payload: bytes) -> None:  # noqa: ARG002 - the seam
        self.done.append("put")

    def flush(self) -> None:
        self.done.append("flush")

    def hold(self, is_held: bool) -> None:
        pass


async def test_work_is_noted_once_it_is_with_the_engine(tmp_path: Path) -> None:
    """The engine owes a step for each moment that brought some, and for no other."""
    engine = Notes()
    relay = Relay(
        worker_identity(builtin_config().workers[0], "0"),
        log := Log("w", beside_gateway=False),
        on_work=lambda: engine.done.append("work"),
        on_drain=lambda _: None,
        on_siblings=lambda _: None,
    )
    link = GatewayLink(f"ipc://{tmp_path}/gateway", WorkerId(bytes(16)), relay, log, None)
    relay.engine_starts(engine)
    relay.join(link, Welcome(PROTOCOL_VERSION, bytes(16), 1))
    facts = EngineFacts("fake", "none", "none", 512, 32, 1024, 4, 64, bytes(16))
    relay.engine_ready(facts, ModelFiles(bytes(16), {}))
    for request_id in (b"a" * 16, b"b" * 16):
        relay.from_gateway(link, encode(submission(request_id)))
    relay.gateway_pauses()
    relay.gateway_pauses()
    assert engine.done == ["put", "put", "flush", "work", "flush"]
    link.close()
    log.close()
