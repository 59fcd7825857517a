"""The files of this host that a configuration names.

An invalid file is an error. A missing file of the gateway is an error, and so is a missing drafter
on the model's host. A worker's other missing files are only notes, because the worker may run on
another host. Must not write anything.
"""

import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from config import (
    Config,
    LedgerConfig,
    builtin_models,
    clear_password,
    ledger_path,
    responses_path,
    signing_key_path,
    state_dir,
)
from herma.checks.models import found, missing_drafters
from herma.checks.settings import check_script
from protocol.addresses import IPC_PREFIX
from protocol.errors import ConfigError


def gateway_links(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """Where workers dial in. Raises `ConfigError` for keys that are missing or invalid."""
    yield from _socket_folder(config, environ)
    yield from _gateway_keys(config)


def stores_and_programs(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """The files that the gateway writes, and the programs that it runs. Raises `ConfigError` for a
    place that cannot be written.
    """
    troubles = list(_ledger(config, environ))
    yield from troubles
    yield from _shared_limits(config.ledger)
    if config.gateway.responses.path is not None or not troubles:
        yield from _stored_responses(config, environ)
    yield from _programs(config)


def _socket_folder(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """A note for a missing folder of sockets, which a unit's RuntimeDirectory may make. The gateway
    makes the state directory itself.
    """
    path = config.gateway.worker_bind.removeprefix(IPC_PREFIX)
    if path == config.gateway.worker_bind or path.startswith("@"):
        return
    if (folder := Path(path).parent) == _made_folder(environ):
        return
    if not folder.is_dir():
        yield f"[gateway] worker_bind: there is no directory {folder} on this host"


def _made_folder(environ: Mapping[str, str]) -> Path | None:
    try:
        return state_dir(environ).absolute()
    except ConfigError:
        return None


def _gateway_keys(config: Config) -> Iterator[str]:
    gateway = config.gateway
    if gateway.curve_secret_file is None:
        return
    from protocol.transport import load_curve_server

    try:
        load_curve_server(gateway.curve_secret_file, gateway.curve_worker_keys)
    except ConfigError as error:
        raise ConfigError(f"[gateway] curve_secret_file: {error}") from error
    if not gateway.curve_worker_keys:
        yield "[gateway] curve_secret_file is set, but no curve_worker_keys: no worker can connect"


def certificate(config: Config, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a certificate or a key that is missing or invalid."""
    del environ
    gateway = config.gateway
    if gateway.tls_certificate_file is None or gateway.tls_key_file is None:
        return
    from gateway.http.server import Certificates

    Certificates(gateway.tls_certificate_file, gateway.tls_key_file)


def signing_key(config: Config, environ: Mapping[str, str]) -> None:
    """Check the signing key; a missing file is made at the first start. Raises `ConfigError`."""
    if config.gateway.signing_key_file is None:
        return
    from gateway.signing_key import read_key

    path, setting = signing_key_path(config, environ), "[gateway] signing_key_file"
    _check_place(path, setting)
    if not path.exists():
        return
    try:
        read_key(path)
    except OSError as error:
        raise ConfigError(f"{setting} {path} cannot be read: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from error


def _stored_responses(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """Check the place of stored responses. A place that the file names must be usable; without a
    usable default place nothing is stored.
    """
    if config.gateway.responses.store != "allow":
        return
    from gateway.store import check_responses

    try:
        path = responses_path(config, environ)
        _check_place(path, "[gateway.responses] path")
        check_responses(path)
    except ConfigError as error:
        if config.gateway.responses.path is not None:
            raise
        yield f"{error}; the gateway still runs, and stores no responses"


def _ledger(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    from gateway.store import check_ledger

    try:
        path = ledger_path(config.ledger, environ)
        _check_place(path, "[ledger] path")
        check_ledger(path, config.ledger.currency)
    except ConfigError as error:
        if config.providers:
            raise
        yield f"{error}; without providers the gateway still runs, and records no usage"


def _shared_limits(ledger: LedgerConfig) -> Iterator[str]:
    if ledger.shared is None:
        return
    if find_spec("redis") is None:
        raise ConfigError("[ledger] shared needs the client of Redis: pip install 'herma[redis]'")
    if (problem := clear_password(ledger)) is not None:
        yield f"{problem}; rediss:// is TLS"


def _check_place(path: Path, setting: str) -> None:
    """Raise `ConfigError` if no file can be at `path`."""
    try:
        is_folder = path.is_dir()
        above = next(folder for folder in path.absolute().parents if folder.exists())
    except OSError as error:
        raise ConfigError(f"{setting} {path} cannot be read: {error}") from error
    if is_folder:
        raise ConfigError(f"{setting} {path} is a directory; name a file in it")
    if not above.is_dir():
        raise ConfigError(f"{setting} {path} is impossible: {above} is a file, not a directory")


def _programs(config: Config) -> Iterator[str]:
    """Notes for missing programs of the gateway: a unit's PATH may differ from ours."""
    commands = [(f"alerts `{one.name}`: command", one.command) for one in config.alerts]
    commands += [(f"host `{one.name}`: power", one.power) for one in config.hosts]
    for what, words in commands:
        if words and shutil.which(words[0]) is None:
            yield f"{what}[0] {words[0]} is no program of this host"


def drafters_beside_models(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """Check drafters. A worker runs where its model is, so its drafter must be there too. Raises
    `ConfigError` if the model is on this host.
    """
    del environ
    for worker, problem in missing_drafters(config):
        path = found(worker.model)
        if worker.model in builtin_models() or (path is not None and path.is_dir()):
            raise ConfigError(f"{problem}; correct its `speculation`")
        yield problem


def worker_files(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """The scripts and keys of workers. Raises `ConfigError` for one that is invalid."""
    del environ
    for worker in config.workers:
        name = f"worker `{worker.name}`"
        if worker.script is not None:
            if found(worker.script) is not None:
                check_script(worker)
            else:
                yield f"{name}: there is no script {worker.script} on this host"
        if worker.curve_secret_file is None or worker.curve_server_key is None:
            continue
        from protocol.transport import load_curve_client

        if found(worker.curve_secret_file) is None:
            yield f"{name}: there is no curve_secret_file {worker.curve_secret_file} on this host"
            continue
        try:
            load_curve_client(worker.curve_secret_file, worker.curve_server_key)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
