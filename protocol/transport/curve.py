"""CURVE keys: who may talk to whom.

Owns key files and the key options of a socket. A key file holds one pair; the secret never
leaves it, the public half goes into the other side's configuration. Must not know workers'
messages.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import zmq

from protocol.errors import ConfigError
from protocol.public_key import KEY_FORM, has_key_form

ZAP_DOMAIN: Final = b"herma"

_LINES: Final = re.compile(r"public (\S+)\nsecret (\S+)\n")
_HEADER: Final = (
    "# A Herma CURVE key pair. Keep this file private; give away the public key only.\n"
)


class CurvePair(NamedTuple):
    """A public and a secret key, each 40 characters of Z85."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"<CurvePair {self.public}>"


@dataclass(frozen=True, slots=True)
class CurveServer:
    """The gateway's pair and the public keys of the workers that it lets in, by worker name."""

    public: str
    secret: str = field(repr=False)
    worker_keys: Mapping[str, str]

    @property
    def public_keys(self) -> frozenset[str]:
        """All public keys that may connect."""
        return frozenset(self.worker_keys.values())

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Make `socket` refuse every peer that ZAP does not let in, also while ZAP is missing."""
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self.secret.encode())
        socket.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


@dataclass(frozen=True, slots=True)
class CurveClient:
    """A worker's pair and the public key of the gateway that it trusts."""

    public: str
    secret: str = field(repr=False)
    server_key: str

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Make `socket` speak only to the holder of `server_key`."""
        socket.set(zmq.CURVE_SERVERKEY, self.server_key.encode())
        socket.set(zmq.CURVE_PUBLICKEY, self.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, self.secret.encode())


def make_pair() -> CurvePair:
    """A fresh pair."""
    public, secret = zmq.curve_keypair()
    return CurvePair(public.decode(), secret.decode())


def write_curve_pair(path: str | Path) -> str:
    """Write a fresh pair to a new file that only its owner can read; returns the public key.

    Raises `ConfigError` if the file exists (a lost secret cannot be had back) or cannot be made.
    """
    pair = make_pair()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already and is not overwritten; name another") from error
    except OSError as error:
        raise ConfigError(f"cannot write the key file {path}: {error.strerror}") from error
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(f"{_HEADER}public {pair.public}\nsecret {pair.secret}\n")
    return pair.public


def read_curve_pair(path: str | Path) -> CurvePair:
    """The pair in a key file.

    Raises `ConfigError` if it is missing, readable by others, or not a key file.
    """
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123 (one descriptor: stat what we read)
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(4096)
    except OSError as error:
        raise ConfigError(f"cannot read the key file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(_not_a_key_file(path)) from error
    if mode & 0o077:
        raise ConfigError(f"others can read the secret in {path}; run `chmod 600 {path}`")
    match = _LINES.fullmatch(text.removeprefix(_HEADER))
    if match is None:
        raise ConfigError(_not_a_key_file(path))
    pair = CurvePair(*match.groups())
    if not has_key_form(pair.secret) or _public_of(pair.secret) != pair.public:
        raise ConfigError(_not_a_key_file(path))
    return pair


def load_curve_server(secret_file: str | Path, worker_keys: Mapping[str, str]) -> CurveServer:
    """The gateway's keys. Raises `ConfigError` for a bad file or a malformed worker key."""
    for name, key in worker_keys.items():
        _check_public_key(key, f"the public key of worker `{name}`")
    pair = read_curve_pair(secret_file)
    return CurveServer(public=pair.public, secret=pair.secret, worker_keys=dict(worker_keys))


def load_curve_client(secret_file: str | Path, server_key: str) -> CurveClient:
    """A worker's keys. Raises `ConfigError` for a bad file or a malformed gateway key."""
    _check_public_key(server_key, "the public key of the gateway")
    pair = read_curve_pair(secret_file)
    return CurveClient(public=pair.public, secret=pair.secret, server_key=server_key)


def _check_public_key(key: str, what: str) -> None:
    if not has_key_form(key):
        raise ConfigError(f"{what} must be {KEY_FORM}")


def _public_of(secret: str) -> str | None:
    try:
        return zmq.curve_public(secret.encode()).decode()
    except zmq.ZMQError:
        return None


def _not_a_key_file(path: str | Path) -> str:
    return f"{path} is not a key file; make one with `herma keys curve FILE`"
