"""What would end `herma up` right after its start, found before anything starts.

Owns the look at this host: the port, the providers' keys, the model directories. Each process
checks again what it needs; here one line stands alone instead of among the children's.
"""

import errno
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from config import Config, GatewayConfig, provider_api_key
from protocol.errors import ConfigError


def check_host(config: Config, port: int, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` for the first thing that this host lacks to run `config` on `port`."""
    for name, provider in config.providers.items():
        provider_api_key(name, provider, environ)
    for problem in missing_models(config):
        raise ConfigError(f"{problem}; correct `model` or give a hub id such as Qwen/Qwen3-0.6B")
    _check_port(config.gateway, port)


def missing_models(config: Config) -> Iterator[str]:
    """One line for each worker whose `model` is a path to no directory of this host."""
    for worker in config.workers:
        is_path = worker.model.startswith(("/", "~", "."))
        if is_path and not Path(worker.model).expanduser().is_dir():
            yield f"worker `{worker.name}`: there is no directory {worker.model} on this host"


def unserved_models(config: Config) -> Iterator[str]:
    """One line for each model that no worker of the file serves and no provider answers for, or
    for a file that names none.
    """
    if not config.models and not config.workers:
        yield "the file has neither [[models]] nor [[workers]]"
    served = {worker.serves for worker in config.workers}
    for model in config.models:
        if model.name not in served and not model.fallback:
            yield f"model `{model.name}`: the file has neither a worker nor a fallback for it"


def _check_port(gateway: GatewayConfig, port: int) -> None:
    """Whether somebody listens there already; whatever else is wrong, the gateway names."""
    if port == 0:
        return
    host = gateway.host.strip("[]")
    with suppress(socket.gaierror, UnicodeError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, proto, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise ConfigError(
                        f"port {port} on {gateway.host} is taken by another program; "
                        "stop it or choose another port ([gateway] port, --port)"
                    ) from error
