"""Transport of bytes between processes.

Owns the sockets that carry frames (ZeroMQ's, which only this package imports, and Unix sockets
within a machine), control sockets, and the streaming HTTP/1.1 client. Must not know what the bytes
mean.
"""

from protocol.transport.backlog import MAX_BACKLOG_BYTES
from protocol.transport.control_socket import ControlSocket, ask_control
from protocol.transport.curve import (
    CurveClient,
    CurvePair,
    CurveServer,
    gateway_key_file,
    kept_pair,
    load_curve_client,
    load_curve_server,
    make_pair,
    read_curve_pair,
    worker_key_file,
    write_curve_pair,
)
from protocol.transport.dealer import DealerSocket
from protocol.transport.http_body import Body
from protocol.transport.http_client import IDLE_END_S, HttpClient, HttpResponse
from protocol.transport.inline_reads import enable_inline_reads
from protocol.transport.local_dealer import LocalDealer
from protocol.transport.local_router import LocalRouter
from protocol.transport.local_socket import is_local
from protocol.transport.name_lookups import use_name_lookups
from protocol.transport.router import RouterSocket, RouterStatistics
from protocol.transport.sockets import check_ipc_is_free
from protocol.transport.subscriber import Subscriber
