"""Checks before `herma up`, or several gateway processes, start their children.

Checks this host's ports, providers' keys, model directories and scripts. Each child checks again
what it needs; an error found here is one line that is not mixed with the children's.
"""

import errno
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from config import (
    BUILTIN_PREFIX,
    DUMMY_PREFIX,
    EXTERNAL_ENGINES,
    INDEX_DRAFTERS,
    TEXT_ENGINE,
    Config,
    GatewayConfig,
    WorkerConfig,
    builtin_drafters,
    builtin_models,
    is_hub_id,
    no_drafter,
    no_model,
    provider_api_key,
    secret_of,
)
from protocol.addresses import nth_address
from protocol.errors import ConfigError
from workers import versions
from workers.engine_extra import check_engine_extra

_SAMPLE: Final = "Hello"
"""Some damaged tokenizers load, and fail at every text."""
_MODEL_SIGNS: Final = ("config.json", "tokenizer.json", "tekken.json")
"""A directory with one of them holds a model, if not all of it."""
_PORT: Final = "[gateway] port, --port"


def check_host(config: Config, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` for the first reason why this host cannot run `config`."""
    check_providers(config, environ)
    check_engine_extra(config.workers)
    for problem in missing_models(config):
        raise ConfigError(f"{problem}; correct its `model`")
    for _, problem in missing_drafters(config):
        raise ConfigError(f"{problem}; correct its `speculation`")
    check_aliases(config)
    list(check_model_texts(config))
    for worker in config.workers:
        check_script(worker)
    for problem in launch_problems(config, environ):
        raise ConfigError(problem)
    if config.gateway.port != 0:
        _check_free(config.gateway.host, config.gateway.port, _PORT)


def check_providers(config: Config, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` for the first provider, receiver of alerts or server of shared limits
    whose secret is missing.
    """
    secret_of("[ledger] shared", config.ledger.shared_password_env, None, environ)
    for name, provider in config.providers.items():
        provider_api_key(name, provider, environ)
    for one in config.alerts:
        for variable in (one.url_env, one.token_env):
            secret_of(f"alerts `{one.name}`", variable, None, environ)


def missing_models(config: Config) -> Iterator[str]:
    """One line for each worker whose `model` is not a directory of this host."""
    for worker in config.workers:
        if worker.engine == TEXT_ENGINE:
            continue
        path = found(worker.model)
        if worker.model in builtin_models() or (path is not None and path.is_dir()):
            continue
        if worker.engine in ("native", *EXTERNAL_ENGINES) and is_hub_id(worker.model):
            continue  # fetched at the start, unless the hub's cache has it
        if worker.engine != "native":
            yield (
                f"worker `{worker.name}`: there is no directory {worker.model} on this host, and "
                f"the {worker.engine} engine needs its tokenizer"
            )
        elif worker.model.startswith(DUMMY_PREFIX):
            yield (
                f"worker `{worker.name}`: {worker.model} is a shape for `herma plan` and `herma "
                "bench`, without a tokenizer to serve it by"
            )
        else:
            yield f"worker `{worker.name}`: on this host {no_model(worker.model)}"


def check_model_texts(config: Config) -> Iterator[str]:
    """One line for each thing that an operator should know of the text files of a model directory
    of this host. Raises `ConfigError` for files that no gateway could use; those of built-in models
    are tested.
    """
    from gateway.prompt import encode_raw, read_model_text
    from workers.model_dir import check_text_files, read_model_files

    for worker in config.workers:
        is_own = worker.model in builtin_models() or worker.model.startswith(DUMMY_PREFIX)
        path = None if worker.engine == TEXT_ENGINE or is_own else found(worker.model)
        if path is None or not any((path / name).exists() for name in _MODEL_SIGNS):
            continue
        try:
            check_text_files(worker)
            text = read_model_text(read_model_files(path).files)
            encode_raw(text, _SAMPLE)
        except ConfigError as error:
            raise ConfigError(f"worker `{worker.name}`: {error}") from error
        yield from (f"worker `{worker.name}`: {remark}" for remark in text.remarks)


def missing_drafters(config: Config) -> Iterator[tuple[WorkerConfig, str]]:
    """Each worker whose drafter is not on this host, with one line."""
    for worker in config.workers:
        chosen = worker.drafting
        if chosen is None or chosen.drafter in (*INDEX_DRAFTERS, *builtin_drafters()):
            continue
        path = found(chosen.drafter)
        if (path is None or not path.is_dir()) and not is_hub_id(chosen.drafter):
            yield worker, f"worker `{worker.name}`: on this host {no_drafter(chosen.drafter)}"


def check_aliases(config: Config) -> None:
    """Raise `ConfigError` for an alias that no request could use."""
    from gateway.api import alias_params
    from gateway.turn import read_model_prompts

    alias_params.check_aliases(config.models)
    read_model_prompts(config.models)


def found(name: str) -> Path | None:
    """The file or directory of that name; None if it does not exist or is not accessible."""
    try:
        path = Path(name).expanduser()
        path.stat()
    except (OSError, RuntimeError):  # RuntimeError: `~user` of an unknown user
        return None
    return path


def known_model(model: str) -> tuple[str, str]:
    """The `model` of a worker for a word of the command line, and its name: the last part of a
    directory, a hub id itself, a built-in model without its prefix.
    """
    if f"{BUILTIN_PREFIX}{model}" in builtin_models():
        return f"{BUILTIN_PREFIX}{model}", model
    if model.startswith(BUILTIN_PREFIX):
        return model, model.removeprefix(BUILTIN_PREFIX)
    path = found(model)
    return (model, model) if path is None else (str(path.resolve()), path.resolve().name)


def check_script(worker: WorkerConfig) -> None:
    """Raise `ConfigError` if the worker has a script that is unreadable or invalid."""
    if worker.script is not None:
        from workers.replay import load_script

        load_script(Path(worker.script).expanduser())


def launch_problems(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """One line for each thing that a worker's external engine needs and this host lacks."""
    for worker in config.workers:
        for problem in versions.launch_problems(worker, environ):
            yield f"worker `{worker.name}`: {problem}"


def unserved_models(config: Config) -> Iterator[str]:
    """One line for each model without a worker or fallback in the file, or for an empty file."""
    if not config.models and not config.workers:
        yield "the file has neither [[models]] nor [[workers]]"
    served = {worker.serves for worker in config.workers}
    for model in config.models:
        if model.name not in served and not model.fallback:
            yield f"model `{model.name}`: the file has neither a worker nor a fallback for it"


def claim_port(gateway: GatewayConfig) -> socket.socket:
    """A bound socket that reserves the gateway's port, or a free one for port 0, without listening.
    Meanwhile only sockets of the same user that set SO_REUSEPORT can listen there.

    Raises `ConfigError` if the port cannot be bound or any other socket has it.
    """
    host, port = gateway.host, gateway.port
    try:
        claim = _bound(host, port, _PORT)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error}; correct [gateway] host or port"
        ) from error
    # After the bind: with SO_REUSEPORT set before it, a port that others share would be granted.
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return claim


def check_process_ports(gateway: GatewayConfig) -> None:
    """Raise `ConfigError` if a port or path that one of the processes needs is taken."""
    from protocol.transport import check_ipc_is_free

    for index in range(gateway.processes):
        bind = gateway.worker_bind
        bind = bind if gateway.processes == 1 else nth_address(bind, index)
        check_ipc_is_free(bind)
        scheme, _, rest = bind.partition("://")
        host, _, port = rest.rpartition(":")
        if scheme == "tcp" and port not in ("0", "*"):
            _check_free(host, int(port), "[gateway] worker_bind, --worker-bind")
        if gateway.process_port is not None:
            _check_free(gateway.host, gateway.process_port + index, "[gateway] process_port")


def _check_free(host: str, port: int, option: str) -> None:
    """Raise `ConfigError` if the port is taken. The gateway reports all other errors."""
    with suppress(OSError, UnicodeError):
        _bound(host, port, option).close()


def _bound(host: str, port: int, option: str) -> socket.socket:
    """A socket bound there. Raises `ConfigError` if the port is taken, else `OSError`."""
    found = socket.getaddrinfo(
        host.strip("[]*") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    # The server chooses the same way: one address, IPv4 if there is one.
    family, kind, proto, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    probe = socket.socket(family, kind, proto)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
    except OSError as error:
        probe.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is taken by another program; "
                f"stop it or choose another port ({option})"
            ) from error
        raise
    return probe
