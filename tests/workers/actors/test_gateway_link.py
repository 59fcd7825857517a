"""A link to a gateway, alone."""

import gc

import pytest
import trio
import zmq

from config import builtin_config
from protocol.errors import ConfigError
from protocol.ids import WorkerId
from protocol.messages import PROTOCOL_VERSION, FromWorker, Register, Welcome
from tests.fakes.gateway_end import open_gateway_end
from workers.actors.gateway_link import GatewayLink
from workers.actors.log import Log
from workers.actors.relay import Relay
from workers.core.identity import worker_identity


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
