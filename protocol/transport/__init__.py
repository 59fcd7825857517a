"""The only importer of zmq: trio sockets that carry opaque frames."""

from protocol.transport.backlog import MAX_BACKLOG_BYTES
from protocol.transport.curve import (
    CurveClient,
    CurvePair,
    CurveServer,
    load_curve_client,
    load_curve_server,
    make_pair,
    read_curve_pair,
    write_curve_pair,
)
from protocol.transport.dealer import DealerSocket, DealerStatistics
from protocol.transport.router import RouterSocket, RouterStatistics

__all__ = [
    "MAX_BACKLOG_BYTES",
    "CurveClient",
    "CurvePair",
    "CurveServer",
    "DealerSocket",
    "DealerStatistics",
    "RouterSocket",
    "RouterStatistics",
    "load_curve_client",
    "load_curve_server",
    "make_pair",
    "read_curve_pair",
    "write_curve_pair",
]
