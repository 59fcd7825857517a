"""How the ranks of one engine on several hosts meet: the others dial the first one.

Owns the first words on those connections, the bounds of the wait, and the comparison of what the
ranks were started with. Must not know networks, nor what a rank computes.

The other ranks run the code that plans name, so they dial an address of their own file only. What
the first rank reads is data of a fixed form. Nothing is encrypted, as little as NCCL's sums are:
hosts that compute together need a network of their own.
"""

import socket
import struct
import time
from contextlib import suppress
from fcntl import ioctl
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from protocol.errors import ConfigError
from protocol.reading import FAULTS
from workers.loop import EngineBroken

_LENGTH: Final = struct.Struct("<I")
_MOST_BYTES: Final = 2**16
_RETRY_S: Final = 0.2
_HELLO_S: Final = 5.0
"""How long a connection may take to say who it is; a port scan says nothing."""

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""A host that is gone without a word is noticed after 11 s."""
_SIOCGIFADDR: Final = 0x8915

_Kind = TypeVar("_Kind")


class RankAbsent(EngineBroken):
    """The ranks did not come together in time."""


class RankHello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a rank that dials: its identity, and its configuration."""

    group: str
    rank: int
    ranks: int
    facts: dict[str, str]


class RanksBegin(msgspec.Struct, frozen=True, tag="welcome"):
    """All ranks are there; the store of `torch.distributed` listens on this port."""

    store_port: int


class RankRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    """Why the ranks do not begin; `is_absence`: another start may help."""

    text: str
    is_absence: bool = False


_ANSWER: Final[Any] = RanksBegin | RankRefusal


class MeetingPoint(NamedTuple):
    """The address at which the first rank listens."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> "MeetingPoint":
        """HOST:PORT; of IPv6 in brackets."""
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class MetRanks(NamedTuple):
    """The connections of the other ranks by their numbers, 1 first; for one of these its own
    connection alone.
    """

    connections: tuple[socket.socket, ...]
    store_port: int


def listen(address: MeetingPoint) -> socket.socket:
    """Listen as the first rank. Raises `ConfigError`."""
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server(address, family=family)
    except OSError as error:
        raise ConfigError(
            f"rank 0 cannot listen at {address}: {error}: rendezvous must name an address of this "
            "host, the one that its other hosts reach, and a free port"
        ) from error


def gather(listener: socket.socket, own: RankHello, wait_s: float) -> list[socket.socket]:
    """Wait as the first rank for all others. Raises `RankAbsent` if one does not come within
    `wait_s`, and `ConfigError` if one was started with something else, which it is told.
    """
    end, come = time.monotonic() + wait_s, dict[int, socket.socket]()
    while len(come) < own.ranks - 1:
        listener.settimeout(max(0.0, end - time.monotonic()) or 1e-3)
        try:
            connection, peer = listener.accept()
        except TimeoutError:
            missing = [str(rank) for rank in range(1, own.ranks) if rank not in come]
            text = (
                f"rank {' and rank '.join(missing)} of group `{own.group}` did not come to "
                f"{_name(listener)} within {wait_s:.0f} s: start the worker there, and see that no "
                "firewall is between the hosts"
            )
            dismiss(list(come.values()), text, is_absence=True)
            raise RankAbsent(text) from None
        hello = _hello(connection)
        if hello is None:
            connection.close()
        elif text := _misfit(own, hello):
            dismiss([connection, *come.values()], text)
            raise ConfigError(f"{text} (it dialled from {peer[0]})")
        elif hello.rank in come:
            dismiss([connection], f"rank {hello.rank} of group `{own.group}` is there already")
        else:
            come[hello.rank] = connection
    return [come[rank] for rank in range(1, own.ranks)]


def welcome(connections: list[socket.socket], store_port: int) -> MetRanks:
    """Let all ranks begin."""
    for connection in connections:
        _send(connection, RanksBegin(store_port))
        _watch_over(connection)
    return MetRanks(tuple(connections), store_port)


def dismiss(connections: list[socket.socket], text: str, *, is_absence: bool = False) -> None:
    """Tell ranks that have come why they do not begin."""
    for connection in connections:
        with suppress(OSError):  # it may be gone, and then needs no reason
            _send(connection, RankRefusal(text, is_absence))
        connection.close()


def dial(address: MeetingPoint, own: RankHello, wait_s: float) -> MetRanks:
    """Meet the first rank as another one. Raises `RankAbsent` if it is not there within `wait_s`,
    or parts again, and `ConfigError` if it refuses this rank.
    """
    end = time.monotonic() + wait_s
    connection = _connected(address, own, end, wait_s)
    try:
        _send(connection, own)
        connection.settimeout(max(1e-3, end + _HELLO_S - time.monotonic()))
        answer = _take(connection, _ANSWER)
    except (OSError, *FAULTS) as error:
        connection.close()
        raise RankAbsent(
            f"rank {own.rank} of group `{own.group}` got no answer at {address}: "
            f"{type(error).__name__}: {error}: is rank 0 of that group there?"
        ) from error
    if isinstance(answer, RanksBegin):
        _watch_over(connection)
        return MetRanks((connection,), answer.store_port)
    connection.close()
    if answer is None:
        raise RankAbsent(f"rank 0 of group `{own.group}` at {address} has gone again")
    if answer.is_absence:
        raise RankAbsent(answer.text)
    raise ConfigError(answer.text)


def interface_of(connection: socket.socket) -> str:
    """The network interface by which a connection leaves; empty if none has its address."""
    own = connection.getsockname()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an IPv4 address
                found = ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == own:
                    return name
    return ""


def _connected(address: MeetingPoint, own: RankHello, end: float, wait_s: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(address, max(0.1, end - time.monotonic()))
        except OSError as error:
            if time.monotonic() + _RETRY_S > end:
                raise RankAbsent(
                    f"rank {own.rank} of group `{own.group}` found no rank 0 at {address} within "
                    f"{wait_s:.0f} s ({error}): correct rendezvous, start the worker of rank 0, "
                    "and see that no firewall is between the hosts"
                ) from error
        time.sleep(_RETRY_S)


def _misfit(own: RankHello, other: RankHello) -> str:
    """The differences in the configuration of the other rank; empty if there are none."""
    who = f"rank {other.rank} of group `{other.group}`"
    if other.group != own.group:
        return f"{who} is none of group `{own.group}`: one of them has another's rendezvous"
    if other.ranks != own.ranks or not 0 < other.rank < own.ranks:
        return f"{who} counts {other.ranks} ranks, and rank 0 {own.ranks}: correct rank and ranks"
    for key in sorted({*own.facts, *other.facts}):
        here, there = own.facts.get(key, "nothing"), other.facts.get(key, "nothing")
        if here != there:
            return f"{who} has {key} = {there}, and rank 0 {here}: start both alike"
    return ""


def _hello(connection: socket.socket) -> RankHello | None:
    """The rank that dials; None for a peer that is no rank."""
    connection.settimeout(_HELLO_S)
    try:
        return _take(connection, RankHello)
    except (OSError, *FAULTS):
        return None


def _send(connection: socket.socket, message: RankHello | RanksBegin | RankRefusal) -> None:
    data = msgspec.msgpack.encode(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _take(connection: socket.socket, kind: type[_Kind]) -> _Kind | None:
    """The next message; None at the end of the connection. Raises `OSError` and
    one of `FAULTS`.
    """
    head = _read(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MOST_BYTES:
        raise msgspec.DecodeError(f"a message of {length} bytes")
    data = _read(connection, length)
    return None if data is None else msgspec.msgpack.decode(data, type=kind)


def _read(connection: socket.socket, num_bytes: int) -> bytes | None:
    data = b""
    while len(data) < num_bytes:
        part = connection.recv(num_bytes - len(data))
        if not part:
            return None
        data += part
    return data


def _watch_over(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _name(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return str(MeetingPoint(host, port))
