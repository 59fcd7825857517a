"""CURVE keys: which peers may connect.

Owns key files, the key options of a socket, and the handler that accepts public keys (ZeroMQ RFC
27, ZAP). A key file holds one pair; the secret never leaves it, the public key goes into the other
side's configuration. Must not know workers' messages.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, final

import zmq
from zmq.utils import z85

from housekeeping.state_file import make_private
from protocol.addresses import CURVE_KEY_FORM, is_curve_key
from protocol.errors import ConfigError
from protocol.transport.pump import Pump
from protocol.transport.sockets import NOBLOCK

ZAP_DOMAIN: Final = b"herma"

_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_ZAP_VERSION: Final = b"1.0"
_NUM_ZAP_PARTS: Final = 7
"""Version, request id, domain, address, identity, mechanism, and for CURVE one credential."""

_LINES: Final = re.compile(r"public (\S+)\nsecret (\S+)\n")
_NOT_IN_FILE_NAMES: Final = re.compile(r"[^A-Za-z0-9_.:@-]")
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
    """The gateway's pair and the public keys of the accepted workers, by worker name."""

    public: str
    secret: str = field(repr=False)
    worker_keys: Mapping[str, str]

    @property
    def public_keys(self) -> frozenset[str]:
        """All accepted public keys."""
        return frozenset(self.worker_keys.values())

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Make `socket` refuse every peer that ZAP does not accept, also without a ZAP handler."""
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
        """Make `socket` talk only to the holder of `server_key`."""
        socket.set(zmq.CURVE_SERVERKEY, self.server_key.encode())
        socket.set(zmq.CURVE_PUBLICKEY, self.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, self.secret.encode())


@final
class ZapHandler:
    """Answers the CURVE handshakes of all sockets of one context. The answer sets the public key as
    User-Id of the connection, so that each of its frames carries it.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        public_keys: frozenset[str],
        on_refused: Callable[[str, str], None],
    ) -> None:
        self._public_keys = public_keys
        self._on_refused = on_refused
        self._socket = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(_ZAP_ENDPOINT)
        self._pump = Pump(self._socket, self._receive)
        self.num_refused = 0

    def accept(self, public_keys: frozenset[str]) -> None:
        """Accept exactly these public keys from now on."""
        self._public_keys = public_keys

    async def run(self) -> None:
        """Answer until cancelled or closed."""
        await self._pump.run()

    def close(self) -> None:
        """Close the socket; later handshakes fail."""
        self._pump.close()

    def _receive(self) -> None:
        request = self._socket.recv_multipart(NOBLOCK)
        key = self._accepted_key(request)
        if key is None:
            self.num_refused += 1
            self._tell_refused(request)
            status, text = b"400", b"this public key is not configured"
        else:
            status, text = b"200", b"OK"
        self._socket.send_multipart(
            [_ZAP_VERSION, request[1], status, text, (key or "").encode(), b""], NOBLOCK
        )

    def _tell_refused(self, request: list[bytes]) -> None:
        if len(request) != _NUM_ZAP_PARTS or request[5] != b"CURVE":
            return  # another mechanism; `FailedHandshakes` reports it
        key, host = z85.encode(request[6]).decode("ascii"), request[3].decode("ascii", "replace")
        line = f"a process at {host or 'a socket'} was refused: its key {key} is of no worker here"
        self._on_refused(key, line)

    def _accepted_key(self, request: list[bytes]) -> str | None:
        if len(request) != _NUM_ZAP_PARTS:
            return None
        version, _, domain, _, _, mechanism, credential = request
        if (version, domain, mechanism) != (_ZAP_VERSION, ZAP_DOMAIN, b"CURVE"):
            return None
        key = z85.encode(credential).decode("ascii")
        return key if key in self._public_keys else None


@final
class FailedHandshakes:
    """Tells of peers that never reach the `ZapHandler`: those without keys, and those that trust
    another key than this gateway's. libzmq does not say where they are.
    """

    def __init__(self, socket: zmq.Socket[bytes], on_refused: Callable[[str, str], None]) -> None:
        self._watched = socket
        self._on_refused = on_refused
        self._socket = socket.get_monitor_socket(
            zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
        )
        self._pump = Pump(self._socket, self._receive)

    async def run(self) -> None:
        """Watch until cancelled or closed."""
        await self._pump.run()

    def close(self) -> None:
        """Stop watching."""
        self._watched.disable_monitor()
        self._pump.close()

    def _receive(self) -> None:
        _, address = self._socket.recv_multipart(NOBLOCK)
        line = (
            f"a process was refused at {address.decode('ascii', 'replace')}: it has no keys, or "
            "another public key of this gateway"
        )
        self._on_refused("", line)


def make_pair() -> CurvePair:
    """Generate a pair."""
    public, secret = zmq.curve_keypair()
    return CurvePair(public.decode(), secret.decode())


def write_curve_pair(path: str | Path) -> str:
    """Write a new pair to a new file that only its owner can read; returns the public key.

    Raises `ConfigError` if the file exists (a lost secret is gone for good) or cannot be created.
    """
    pair = make_pair()
    try:
        _write_pair(path, pair)
    except FileExistsError as error:
        raise ConfigError(
            f"{path} exists already and is not overwritten: its public key is in it; name another"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot write the key file {path}: {error.strerror}") from error
    return pair.public


def kept_pair(path: Path) -> CurvePair:
    """The pair in the file, which is made, with its folder, if it does not exist. If several
    processes make it at once, one succeeds and the others read its pair. Raises `ConfigError` like
    `read_curve_pair`, and if the file cannot be written.
    """
    if path.exists():
        return read_curve_pair(path)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        make_private(path.parent)
        _write_pair(fresh, make_pair())
        try:
            # Unlike a rename, a link never replaces the pair of another process.
            with suppress(FileExistsError):
                os.link(fresh, path)
        finally:
            fresh.unlink()
    except OSError as error:
        raise ConfigError(f"cannot write the key file {path}: {error.strerror}") from error
    return read_curve_pair(path)


def gateway_key_file(folder: Path) -> Path:
    """The file of the gateway's pair among the made ones."""
    return folder / "gateway.secret"


def worker_key_file(folder: Path, name: str) -> Path:
    """The file of the worker's pair among the made ones. A name with characters that are none of a
    file name gets a hash, so that two workers never share a pair.
    """
    plain = _NOT_IN_FILE_NAMES.sub("-", name)
    if plain != name:
        plain += f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return folder / f"worker-{plain}.secret"


def _write_pair(path: str | Path, pair: CurvePair) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(f"{_HEADER}public {pair.public}\nsecret {pair.secret}\n")


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
    if not is_curve_key(pair.secret) or _public_of(pair.secret) != pair.public:
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
    if not is_curve_key(key):
        raise ConfigError(f"{what} must be {CURVE_KEY_FORM}")


def _public_of(secret: str) -> str | None:
    try:
        return zmq.curve_public(secret.encode()).decode()
    except zmq.ZMQError:
        return None


def _not_a_key_file(path: str | Path) -> str:
    return f"{path} is not a key file; make one with `herma keys curve FILE`"
