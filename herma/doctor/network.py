"""Checks ports, clock and open files.

Owns the parsing of the kernel's socket tables and limits. A port that our own gateway holds is no
finding.
"""

import re
from collections.abc import Iterator
from typing import Final

from config import Config
from herma.doctor.finding import Finding
from herma.doctor.gpu import is_ours
from herma.doctor.host import Host

CHECK: Final = "network"

_LISTEN: Final = "0A"
_PROXIES: Final = frozenset(
    {"haproxy", "nginx", "caddy", "envoy", "traefik", "apache2", "httpd", "lighttpd"}
)
_MIN_FILES: Final = 4096
"""The least limit of open files without a finding. Each stream of a client takes a descriptor,
and each stream of a provider another.
"""


def check_ports(host: Host, config: Config) -> Iterator[Finding]:
    """Check whether another program holds one of the gateway's ports."""
    listening = _listening(host)
    for key, port in _wanted(config):
        if port not in listening:
            continue
        holder = _holder(host, listening[port])
        if holder is not None and is_ours(host, holder):
            continue
        name = host.text(f"/proc/{holder}/comm").strip() if holder else "a process of another user"
        yield Finding(
            "error",
            "ports",
            f"port {port} ({key}) is taken by {name}" + (f", process {holder}" if holder else ""),
            "the gateway cannot start",
            f"stop it, or choose another port in {key}",
        )


def check_proxies(host: Host) -> Iterator[Finding]:
    """Check whether a proxy runs here, whose clients could count as local."""
    found = {host.text(process / "comm").strip() for process in host.names("/proc", "[0-9]*")}
    for name in sorted(found & _PROXIES):
        yield Finding(
            "note",
            "proxies",
            f"{name} runs on this host",
            "if it passes requests on to the gateway without a header such as X-Forwarded-For, and "
            "with a loopback Host, its clients count as local: operators' pages need no key",
            "let it send X-Forwarded-For, as the files in docs/http.md and docs/two-gateways.md do",
        )


def holder_of(host: Host, port: int) -> str | None:
    """The process that listens on the TCP port, as far as this user may see."""
    inode = _listening(host).get(port)
    return None if inode is None else _holder(host, inode)


def _wanted(config: Config) -> Iterator[tuple[str, int]]:
    gateway = config.gateway
    if gateway.port:
        yield "[gateway] port", gateway.port
    scheme, _, rest = gateway.worker_bind.partition("://")
    port = rest.rpartition(":")[2]
    if scheme == "tcp" and port.isdigit() and int(port):
        yield "[gateway] worker_bind", int(port)


def _listening(host: Host) -> dict[int, str]:
    """Inodes of listening TCP sockets by port."""
    found: dict[int, str] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in host.text(table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                found[int(fields[1].rpartition(":")[2], 16)] = fields[9]
    return found


def _holder(host: Host, inode: str) -> str | None:
    """The process that has the socket open, as far as this user may see."""
    for process in host.names("/proc", "[0-9]*"):
        try:
            links = [fd.readlink().name for fd in host.path(process / "fd").iterdir()]
        except OSError:
            continue  # of another user, or gone
        if f"socket:[{inode}]" in links:
            return process.name
    return None


def check_clock(host: Host) -> Iterator[Finding]:
    """Check the clock: spending limits count days, keys expire, and logs of two hosts are
    compared.
    """
    answer = host.ask("timedatectl", "show", "-p", "NTPSynchronized", "--value")
    if answer is not None and answer.status == 0 and answer.text.strip() == "no":
        yield Finding(
            "warning",
            "clock",
            "the clock is not synchronised",
            "spending limits count days, and the logs of several hosts do not fit together",
            "timedatectl set-ntp true",
        )


def check_open_files(host: Host) -> Iterator[Finding]:
    """Check the soft limit of this process, which its children inherit."""
    found = re.search(r"^Max open files\s+(\d+)", host.text("/proc/self/limits"), re.MULTILINE)
    if found is not None and int(found[1]) < _MIN_FILES:
        yield Finding(
            "warning",
            "open files",
            f"a process may open {found[1]} files",
            "each stream takes one or two; beyond the limit connections are refused",
            "ulimit -n 65536, or LimitNOFILE=65536 in the unit",
        )
