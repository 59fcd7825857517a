"""ZeroMQ sockets: options, binding and dialling.

Owns the options that all our ZeroMQ sockets share, and the translation of address errors into
`ConfigError`. Must not know messages or tasks.
"""

import errno
import socket as stdlib_socket
from pathlib import Path
from typing import Final

import zmq

from protocol.addresses import ADDRESS_FORM, is_local_address, is_well_formed
from protocol.errors import ConfigError
from protocol.wire import MAX_FRAME_BYTES

# With these values a stopped peer is unreachable after 0.8 s; a lost link must be known within 1 s.
_HEARTBEAT_EVERY_MS: Final = 200
_HEARTBEAT_TIMEOUT_MS: Final = 600

# libzmq's default is 30 s, for which a port scanner could hold a descriptor.
_HANDSHAKE_MS: Final = 5_000

# Frames that libzmq itself holds per connection, in addition to our backlog. Few are held for
# sending, because libzmq counts frames and not bytes. Receiving has no limit: with a full queue
# libzmq stops reading, even heartbeats, and takes a loop that lags for a dead peer. The senders
# bound the unread frames: workers send only a bounded amount beyond what the gateway has
# acknowledged, and the gateway gives up on silent workers.
_SEND_HWM_FRAMES: Final = 128
_RECEIVE_HWM_FRAMES: Final = 0

# Combining zmq's flag enums costs 0.9 us each time; as plain integers they are free.
NOBLOCK: Final = int(zmq.NOBLOCK)
NOBLOCK_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


def receive_rest(socket: zmq.Socket[bytes]) -> int:
    """Discard the remaining parts of the message that is being received; returns their number."""
    num_parts = 0
    while socket.get(zmq.RCVMORE):
        socket.recv(NOBLOCK)
        num_parts += 1
    return num_parts


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket with the shared options."""
    socket = context.socket(kind)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.set(zmq.SNDHWM, _SEND_HWM_FRAMES)
    socket.set(zmq.RCVHWM, _RECEIVE_HWM_FRAMES)
    socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_EVERY_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
    socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    return socket


def bind(socket: zmq.Socket[bytes], address: str, *, has_keys: bool) -> str:
    """Bind and return the bound address, with the port in place of `*`.

    Raises `ConfigError` for an address that is taken, malformed, or public without keys.
    """
    _check_address(address, "bind", has_keys=has_keys)
    check_ipc_is_free(address)
    _allow_ipv6(socket, address)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise ConfigError(_explain_bind(address, error)) from error
    endpoint = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


def connect(socket: zmq.Socket[bytes], address: str, *, has_keys: bool) -> None:
    """Start dialling; libzmq dials again after every loss.

    Raises `ConfigError` for an address that is malformed, or public without keys.
    """
    _check_address(address, "dial", has_keys=has_keys)
    _allow_ipv6(socket, address)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot dial {address}: {_reason(error)}; {ADDRESS_FORM}") from error


def _check_address(address: str, verb: str, *, has_keys: bool) -> None:
    if not is_well_formed(address, allows_wildcard=verb == "bind"):
        raise ConfigError(f"cannot {verb} `{address}`: {ADDRESS_FORM}")
    if not has_keys and not is_local_address(address):
        raise ConfigError(
            f"will not {verb} {address}: it is public and there are no CURVE keys; make a pair "
            "with `herma keys curve FILE`, or use 127.0.0.1 or ipc"
        )


def check_ipc_is_free(address: str) -> None:
    """Raise `ConfigError` if a process listens on the ipc path, because binding would unlink it."""
    scheme, _, path = address.partition("://")
    if scheme != "ipc" or not Path(path).is_socket():
        return
    with stdlib_socket.socket(stdlib_socket.AF_UNIX) as probe:
        if probe.connect_ex(path) == 0:
            raise ConfigError(address_in_use(address))


def _allow_ipv6(socket: zmq.Socket[bytes], address: str) -> None:
    if "[" in address:
        socket.set(zmq.IPV6, 1)


def _explain_bind(address: str, error: zmq.ZMQError) -> str:
    if error.errno == errno.EADDRINUSE:
        return address_in_use(address)
    return f"cannot bind {address}: {_reason(error)}; {ADDRESS_FORM}"


def address_in_use(address: str) -> str:
    """The error text for an address that is in use."""
    remedy = "change the port"
    if address.startswith("ipc://"):
        remedy = "name another path; by default a configuration file has one, for one gateway"
    return f"cannot bind {address}: it is already taken; stop the other process, or {remedy}"


def _reason(error: zmq.ZMQError) -> str:
    # Without the text of the error, which repeats the address.
    return zmq.strerror(error.errno) if error.errno is not None else str(error)
