"""Addresses: what is taken, public or misspelt is one clear error."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.ids import WorkerId
from protocol.transport import CurveServer, DealerSocket, LocalRouter, RouterSocket, make_pair
from tests.fakes.links import ANY_PORT, GatewayEnd, WorkerEnd, running, until


@pytest.fixture(name="router")
def _router() -> Iterator[RouterSocket]:
    router = RouterSocket(lambda _peer, _frame: None, lambda _peer: None)
    yield router
    router.close()


@pytest.fixture(name="dealer")
def _dealer() -> Iterator[DealerSocket]:
    dealer = DealerSocket(WorkerId(bytes(16)), lambda _frame: None)
    yield dealer
    dealer.close()


def _error_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("address", [ANY_PORT, "tcp://localhost:0", "ipc://@herma-test-bind"])
def test_the_bound_address_is_told(router: RouterSocket, address: str) -> None:
    """bind returns an address that can be dialled."""
    bound = router.bind(address)
    assert "*" not in bound
    assert not bound.endswith(":0")


def test_a_taken_port_is_one_clear_line(router: RouterSocket) -> None:
    """A port in use is a ConfigError that names it and says what to do."""
    other = GatewayEnd()
    with pytest.raises(ConfigError, match="already taken") as error:
        router.bind(other.address)
    assert other.address in _error_line(error)
    other.router.close()


def test_a_taken_ipc_path_is_not_stolen(router: RouterSocket, tmp_path: Path) -> None:
    """An ipc path with a living listener is refused, although libzmq would take it over."""
    other = GatewayEnd(f"ipc://{tmp_path}/herma.sock")
    with pytest.raises(ConfigError, match="already taken"):
        router.bind(other.address)
    other.router.close()


async def test_a_stale_ipc_path_is_taken_over(tmp_path: Path) -> None:
    """The socket file of a killed process does not keep the next one from starting."""
    path = tmp_path / "herma.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    gateway = GatewayEnd(f"ipc://{path}")
    worker = WorkerEnd(gateway.address)
    async with running(gateway, worker):
        worker.dealer.send(b"over ipc")
        await until(lambda: gateway.frames == [(worker.identity, b"over ipc")])


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:*", "tcp://*:8090", "tcp://[::]:*", "tcp://eth0:8090"]
)
def test_a_public_bind_without_keys_is_refused(router: RouterSocket, address: str) -> None:
    """Other machines cannot connect unless CURVE keys are configured."""
    with pytest.raises(ConfigError, match="CURVE") as error:
        router.bind(address)
    assert address in _error_line(error)


def test_a_public_bind_with_keys_is_allowed() -> None:
    """With keys any address may be bound."""
    keys = CurveServer(*make_pair(), worker_keys={})
    router = RouterSocket(lambda _peer, _frame: None, lambda _peer: None, keys=keys)
    assert router.bind("tcp://0.0.0.0:*").startswith("tcp://0.0.0.0:")
    router.close()


MISSPELT = [
    "",
    "127.0.0.1:8090",
    "tcp://127.0.0.1",
    "tcp://:8090",
    "tcp://127.0.0.1:99999",
    "tcp://127.0.0.1:http",
    "http://127.0.0.1:8090",
    "inproc://herma",
    "ipc://",
]


@pytest.mark.parametrize("address", [*MISSPELT, "ipc:///no/such/folder/x", f"ipc:///{'x' * 200}"])
def test_a_misspelt_bind_address_is_one_clear_line(router: RouterSocket, address: str) -> None:
    """An address that cannot be bound is a ConfigError that shows the right form."""
    with pytest.raises(ConfigError, match="tcp://HOST:PORT") as error:
        router.bind(address)
    assert address in _error_line(error)


@pytest.mark.parametrize(
    "address", [*MISSPELT, "tcp://127.0.0.1:*", "tcp://127.0.0.1:0", f"ipc:///{'x' * 200}"]
)
def test_a_misspelt_dial_address_is_one_clear_line(dealer: DealerSocket, address: str) -> None:
    """An address that cannot be dialled is a ConfigError that shows the right form."""
    with pytest.raises(ConfigError, match="tcp://HOST:PORT") as error:
        dealer.connect(address)
    assert address in _error_line(error)


def test_dialling_a_public_address_without_keys_is_refused(dealer: DealerSocket) -> None:
    """A worker sends no prompt answers in the clear to another machine."""
    with pytest.raises(ConfigError, match="CURVE"):
        dealer.connect("tcp://gateway.example:8090")


async def test_ipv6_loopback_works() -> None:
    """A link over IPv6 loopback works: both ends speak IPv6 where the address asks for it."""
    gateway = GatewayEnd("tcp://[::1]:*")
    worker = WorkerEnd(gateway.address)
    async with running(gateway, worker):
        worker.dealer.send(b"over v6")
        await until(lambda: gateway.frames == [(worker.identity, b"over v6")])


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("missing/socket", "No such file or directory; make its directory"),
        ("file", "there is a file that is no socket: remove it"),
        ("", "there is a file that is no socket: remove it"),
        ("x" * 108, "bytes; 107 are the limit"),
    ],
)
def test_a_path_where_no_socket_can_be_is_one_line(path: str, remedy: str, tmp_path: Path) -> None:
    """A path where no socket can be is one line with what to do; what is there stays."""
    (tmp_path / "file").write_text("kept")
    router = LocalRouter(lambda _peer, _frame: None, lambda _peer: None)
    with pytest.raises(ConfigError, match=remedy) as error:
        router.bind(f"ipc://{tmp_path}/{path}".rstrip("/"))
    _error_line(error)
    assert (tmp_path / "file").read_text() == "kept"
