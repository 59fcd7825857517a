"""A link to a gateway, alone."""

import gc

import pytest
import zmq

from config import builtin_config
from protocol.errors import ConfigError
from protocol.ids import WorkerId
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
