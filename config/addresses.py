"""Rules for listening addresses, worker links and their keys.

Owns the rules for addresses, ports and CURVE keys. Must not open sockets, resolve names or read
key files.
"""

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Final, NamedTuple

from config.mistakes import Mistake, Place
from config.tables import Config, GatewayConfig, WorkerConfig
from protocol.addresses import (
    ADDRESS_FORM,
    CURVE_KEY_FORM,
    IPC_PREFIX,
    is_curve_key,
    is_host,
    is_local_address,
    is_loopback_host,
    is_well_formed,
    nth_address,
    too_long,
)

_EVERY_HOST: Final = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 (compared, never bound)


def link_mistakes(config: Config) -> Iterator[Mistake]:
    """Mistakes that keep clients or workers from connecting, or that admit strangers."""
    return chain(
        _host_mistakes(config),
        _bind_mistakes(config.gateway),
        _tls_mistakes(config.gateway),
        _port_mistakes(config.gateway),
        _worker_key_mistakes(config.gateway),
        *(_dial_mistakes(config, at, worker) for at, worker in enumerate(config.workers)),
        *(_group_mistakes(at, worker) for at, worker in enumerate(config.workers)),
    )


def _tls_mistakes(gateway: GatewayConfig) -> Iterator[Mistake]:
    for key, other in (
        ("tls_certificate_file", "tls_key_file"),
        ("tls_key_file", "tls_certificate_file"),
    ):
        if getattr(gateway, key) is not None and getattr(gateway, other) is None:
            yield Mistake(("gateway", key), f"`{key}` needs `{other}` beside it")


def _host_mistakes(config: Config) -> Iterator[Mistake]:
    place, host = ("gateway", "host"), config.gateway.host
    if not is_host(host):
        yield Mistake(
            place,
            f'[gateway] host "{host}" is neither an IP address, as 127.0.0.1 or ::1, nor a name; '
            "set the port with `port`",
        )
    elif not is_loopback_host(host) and not config.keys:
        yield Mistake(
            place,
            f"[gateway] host {host} is public, but there are no [[keys]]; "
            "make one with `herma keys new` or bind 127.0.0.1",
        )


def _bind_mistakes(gateway: GatewayConfig) -> Iterator[Mistake]:
    place, bind = ("gateway", "worker_bind"), gateway.worker_bind
    if not is_well_formed(bind, allows_wildcard=True):
        yield Mistake(place, f"[gateway] worker_bind `{bind}` is not an address: {ADDRESS_FORM}")
    elif (why := too_long(_last_address(gateway))) is not None:
        yield Mistake(place, f"[gateway] worker_bind: {why}")
    elif not is_local_address(bind) and gateway.curve_secret_file is None:
        yield Mistake(
            place,
            f"[gateway] worker_bind {bind} is public, but there is no "
            "curve_secret_file; make a pair with `herma keys curve FILE` or bind 127.0.0.1",
        )


def takes_made_keys(gateway: GatewayConfig) -> bool:
    """Whether workers dial the gateway on loopback with keys that are made for the file."""
    is_loopback = _is_tcp(gateway.worker_bind) and is_local_address(gateway.worker_bind)
    return is_loopback and gateway.curve_secret_file is None and not gateway.insecure_local


def dials_made_keys(worker: WorkerConfig) -> bool:
    """Whether the worker dials a gateway on loopback with keys that are made for the file."""
    has_none = worker.curve_secret_file is None and worker.curve_server_key is None
    is_loopback = any(_is_tcp(one) and is_local_address(one) for one in worker.gateways)
    return is_loopback and has_none and not worker.insecure_local


def _is_tcp(address: str) -> bool:
    return address.startswith("tcp://")


def _last_address(gateway: GatewayConfig) -> str:
    """The worker address of the last process, which for Unix sockets is the longest."""
    bind = gateway.worker_bind
    return nth_address(bind, gateway.processes - 1) if bind.startswith(IPC_PREFIX) else bind


def _port_mistakes(gateway: GatewayConfig) -> Iterator[Mistake]:
    for one, other in combinations(_listeners(gateway), 2):
        if port := one.shared_with(other):
            text = f"[gateway] {one.key} and {other.key} are both port {port}; choose another"
            yield Mistake(("gateway", other.key), text)


class _Listener(NamedTuple):
    """A key of `[gateway]` that names ports: one for all processes, or one for each."""

    key: str
    host: str
    ports: range

    def shared_with(self, other: "_Listener") -> int | None:
        """A port on which this listener and `other` would both listen; None if there is none."""
        hosts = {self.host.strip("[]"), other.host.strip("[]")}
        if len(hosts) == 1 or hosts & _EVERY_HOST:
            return next((port for port in self.ports if port in other.ports), None)
        return None


def _listeners(gateway: GatewayConfig) -> Iterator[_Listener]:
    """Listeners with a known port; 0 and `*` mean any free one."""
    yield _Listener("port", gateway.host, _ports(gateway.port, 1))
    if gateway.process_port is not None:
        ports = _ports(gateway.process_port, gateway.processes)
        yield _Listener("process_port", gateway.host, ports)
    scheme, _, rest = gateway.worker_bind.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and port.isdecimal():
        yield _Listener("worker_bind", host, _ports(int(port), gateway.processes))


def _ports(first: int, count: int) -> range:
    return range(first, first + count) if first else range(0)


def _worker_key_mistakes(gateway: GatewayConfig) -> Iterator[Mistake]:
    place = ("gateway", "curve_worker_keys")
    if gateway.curve_worker_keys and gateway.curve_secret_file is None:
        yield Mistake(place, "[gateway] curve_worker_keys need a curve_secret_file")
    for name, key in gateway.curve_worker_keys.items():
        if not is_curve_key(key):
            text = f"[gateway] curve_worker_keys: the key of `{name}` must be {CURVE_KEY_FORM}"
            yield Mistake((*place, name), text)


def _dial_mistakes(config: Config, at: int, worker: WorkerConfig) -> Iterator[Mistake]:
    place: Place = ("workers", at)
    is_half = (worker.curve_secret_file is None) != (worker.curve_server_key is None)
    if is_half and worker.group is None:
        text = f"worker `{worker.name}`: curve_secret_file and curve_server_key belong together"
        yield Mistake(place, text)
    if worker.curve_server_key is not None and not is_curve_key(worker.curve_server_key):
        text = f"worker `{worker.name}`: curve_server_key must be {CURVE_KEY_FORM}"
        yield Mistake((*place, "curve_server_key"), text)
    place = (*place, "gateways")
    if not worker.gateways:
        text = f"worker `{worker.name}` has an empty list `gateways`: name one, or omit the key"
        yield Mistake(place, text)
    for index, address in enumerate(worker.gateways):
        if not is_well_formed(address, allows_wildcard=False):
            text = f"worker `{worker.name}` cannot dial `{address}`: {ADDRESS_FORM} in `gateways`"
            yield Mistake((*place, index), text)
        elif (why := too_long(address)) is not None:
            yield Mistake((*place, index), f"worker `{worker.name}`: {why}")
        elif worker.curve_server_key is None and _takes_keys(config.gateway, worker, address):
            text = (
                f"worker `{worker.name}` dials {address}, where it needs keys: make a pair with "
                "`herma keys curve FILE`, set its curve_secret_file and curve_server_key"
            )
            if is_local_address(address):
                text += "; or omit `gateways`, for the gateway of this file"
            yield Mistake((*place, index), text)


def _takes_keys(gateway: GatewayConfig, worker: WorkerConfig, address: str) -> bool:
    """Whether the worker needs configured keys at this address. Keys for addresses of this host are
    made automatically.
    """
    if address == gateway.worker_bind and gateway.curve_secret_file is not None:
        return True
    if not _is_tcp(address):
        return False
    if not is_local_address(address):
        return True
    if worker.insecure_local:
        return False
    is_ours = takes_made_keys(gateway) and _is_port_of(gateway, address)
    return worker.curve_secret_file is not None or not is_ours


def _is_port_of(gateway: GatewayConfig, address: str) -> bool:
    """Whether a process of the gateway may listen on the port of `address`."""
    first, port = (one.rpartition(":")[2] for one in (gateway.worker_bind, address))
    return first in {"0", "*"} or int(port) in _ports(int(first), gateway.processes)


def _group_mistakes(at: int, worker: WorkerConfig) -> Iterator[Mistake]:
    """Mistakes of a group's address. Rank 0 trusts every process that dials it, so the address
    needs keys.
    """
    address, place = worker.group_address, ("workers", at, "group_address")
    if address is None:
        return
    if not address.startswith("tcp://") or not is_well_formed(address, allows_wildcard=True):
        text = f"worker `{worker.name}`: group_address `{address}` must be tcp://HOST:PORT"
        yield Mistake(place, text)
        return
    for key in (*worker.group_keys.values(), worker.group_server_key):
        if key is not None and not is_curve_key(key):
            text = f"worker `{worker.name}`: a key of the group must be {CURVE_KEY_FORM}"
            yield Mistake(place, text)
    has_keys = worker.group_keys if worker.rank == 0 else worker.group_server_key is not None
    if worker.insecure_local and is_local_address(address):
        return
    if not (has_keys and worker.curve_secret_file is not None):
        needed = "group_keys" if worker.rank == 0 else "group_server_key"
        reach = "open to all users of this host" if is_local_address(address) else "public"
        yield Mistake(
            place,
            f"worker `{worker.name}`: group_address {address} is {reach}: make a pair with "
            f"`herma keys curve FILE`, set curve_secret_file and {needed}",
        )
