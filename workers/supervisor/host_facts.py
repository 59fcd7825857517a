"""The facts of a host before a rank of a group starts on it.

Owns which links and ports an engine will use, read from its command line and environment, and their
state in /sys and /proc. Must not know other hosts. Blocks: call it in a thread.
"""

import errno
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from config import WorkerConfig
from housekeeping.processes import text_of
from protocol.version import VERSION
from workers.ipc import HostFacts, LinkFacts
from workers.starts import driver_version
from workers.supervisor.prepare import unused_names

_ROOT: Final = Path("/")
_IP_LINKS: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_IB_LINKS: Final = ("NCCL_IB_HCA",)
_PORT_FLAGS: Final = frozenset({"--master-port", "--nccl-port"})
_ADDRESS_FLAGS: Final = frozenset({"--dist-init-addr"})
_MAX_SEGMENTS: Final = 16


def host_facts(config: WorkerConfig, root: Path = _ROOT) -> HostFacts:
    """The facts of this host for one rank."""
    launch = config.launch
    # An engine of ours has this process's environment.
    environ: Mapping[str, str] = os.environ if launch is None else launch.env
    links = {name: _ip_link(root, name) for name in link_names(environ, _IP_LINKS)}
    links |= {name: _ib_link(root, name) for name in link_names(environ, _IB_LINKS)}
    ports = set(engine_ports(() if launch is None else launch.argv))
    if config.url is not None and (port := urlsplit(config.url).port) is not None:
        ports.add(port)
    if config.rendezvous is not None:
        ports.add(int(config.rendezvous.rpartition(":")[2]))
    # Only the head's engine listens; the others dial.
    taken = tuple(sorted(port for port in ports if _is_taken(port))) if config.rank == 0 else ()
    segments = tuple(unused_names(root / "dev/shm")[:_MAX_SEGMENTS])
    return HostFacts(VERSION, driver_version(root), links, taken, segments)


def link_names(environ: Mapping[str, str], variables: Sequence[str]) -> list[str]:
    """The network links that the variables name. Exclusions (`^name`) and ports of a device
    (`dev:1`) name none.
    """
    found: dict[str, None] = {}
    for variable in variables:
        value = environ.get(variable, "")
        if value.startswith("^"):
            continue
        for part in value.removeprefix("=").split(","):
            if name := part.strip().partition(":")[0]:
                found[name] = None
    return list(found)


def engine_ports(argv: Sequence[str]) -> Iterator[int]:
    """The ports on which the ranks meet, from `--flag value` and `--flag=value`."""
    for word, following in zip(argv, (*argv, "")[1:], strict=True):
        flag, _, value = word.partition("=")
        value = value or following
        if flag in _ADDRESS_FLAGS:
            value = value.rpartition(":")[2]
        elif flag not in _PORT_FLAGS:
            continue
        if value.isdecimal():
            yield int(value)


def _ip_link(root: Path, name: str) -> LinkFacts:
    folder = root / "sys/class/net" / name
    carrier, mtu = text_of(folder / "carrier"), text_of(folder / "mtu")
    return LinkFacts(carrier == "1", int(mtu) if mtu.isdecimal() else 0)


def _ib_link(root: Path, name: str) -> LinkFacts:
    folder = root / "sys/class/infiniband" / name / "ports"
    ports = sorted(folder.iterdir()) if folder.is_dir() else []
    return LinkFacts(any("ACTIVE" in text_of(port / "state") for port in ports))


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # A listener can take a port whose last connection has just ended.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
