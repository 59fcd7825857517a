"""CURVE: key files, and who gets in."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from protocol.errors import ConfigError
from protocol.transport import (
    CurveClient,
    CurvePair,
    CurveServer,
    load_curve_client,
    load_curve_server,
    make_pair,
    read_curve_pair,
    write_curve_pair,
)
from protocol.transport import router as router_module
from tests.fakes.links import (
    ANY_PORT,
    GatewayEnd,
    WorkerEnd,
    bound_address,
    fresh_id,
    raw_socket,
    running,
    until,
)

GATEWAY = make_pair()
WORKER = make_pair()
OTHER = make_pair()
STRANGER = make_pair()


def _server(worker_keys: Mapping[str, str] | None = None) -> CurveServer:
    known = {"gpu-0": WORKER.public, "gpu-1": OTHER.public}
    return CurveServer(*GATEWAY, worker_keys=known if worker_keys is None else worker_keys)


def _client(pair: CurvePair, server_key: str = GATEWAY.public) -> CurveClient:
    return CurveClient(*pair, server_key=server_key)


async def test_a_configured_key_gets_in_under_its_name_only() -> None:
    """Frames pass both ways, and the key may use the name that it is configured for."""
    gateway = GatewayEnd(keys=_server())
    worker = WorkerEnd(gateway.address, keys=_client(WORKER))
    async with running(gateway, worker):
        worker.dealer.send(b"up")
        await until(lambda: gateway.frames == [(worker.identity, b"up")])
        gateway.router.send(worker.identity, b"down")
        await until(lambda: worker.frames == [b"down"])
        assert gateway.router.may_use_name(worker.identity, "gpu-0")
        assert not gateway.router.may_use_name(worker.identity, "gpu-1")
        assert not gateway.router.may_use_name(worker.identity, "unheard of")
        assert not gateway.router.may_use_name(fresh_id(), "gpu-0")


async def test_without_keys_any_name_may_be_used() -> None:
    """On loopback without keys there is nothing to hold against a name."""
    gateway = GatewayEnd()
    assert gateway.router.may_use_name(fresh_id(), "gpu-0")
    gateway.router.close()


async def test_an_unknown_key_stays_out() -> None:
    """A key that is not configured is refused in the handshake; the worker learns why."""
    gateway = GatewayEnd(keys=_server())
    stranger = WorkerEnd(gateway.address, keys=_client(STRANGER))
    worker = WorkerEnd(gateway.address, keys=_client(WORKER))
    async with running(gateway, stranger, worker):
        stranger.dealer.send(b"let me in")
        worker.dealer.send(b"me too")
        await until(lambda: stranger.dealer.statistics().last_failure)
        assert "public key" in str(stranger.dealer.statistics().last_failure)
        await until(lambda: gateway.frames)
        assert gateway.frames == [(worker.identity, b"me too")]
        assert gateway.router.statistics().refused_keys >= 1
        assert stranger.changes == []


async def test_a_refused_worker_gets_in_once_its_key_is_configured() -> None:
    """libzmq gives up for good after a refusal; the worker dials on and is let in later."""
    gateway = GatewayEnd(keys=_server({}))
    worker = WorkerEnd(gateway.address, keys=_client(WORKER))
    async with running(worker):
        worker.dealer.send(b"at last")
        async with running(gateway):
            await until(lambda: gateway.router.statistics().refused_keys)
        gateway = GatewayEnd(gateway.address, keys=_server())
        async with running(gateway):
            await until(lambda: gateway.frames == [(worker.identity, b"at last")])
            assert worker.dealer.statistics().last_failure is None


async def test_keys_change_while_links_are_up() -> None:
    """A key that is added gets in; the name of one that is gone is taken from its holder."""
    gateway = GatewayEnd(keys=_server({"gpu-0": WORKER.public}))
    first = WorkerEnd(gateway.address, keys=_client(WORKER))
    second = WorkerEnd(gateway.address, keys=_client(OTHER))
    async with running(gateway, first, second):
        first.dealer.send(b"up")
        second.dealer.send(b"up too")
        await until(lambda: bool(gateway.frames) and bool(gateway.router.statistics().refused_keys))
        assert gateway.frames == [(first.identity, b"up")]
        gateway.router.accept_keys({"gpu-1": OTHER.public})
        await until(lambda: len(gateway.frames) == 2)
        assert gateway.router.may_use_name(second.identity, "gpu-1")
        assert not gateway.router.may_use_name(first.identity, "gpu-0")


async def test_a_worker_talks_only_to_the_gateway_that_it_trusts() -> None:
    """A gateway with another key than configured gets nothing from the worker."""
    gateway = GatewayEnd(keys=_server())
    worker = WorkerEnd(gateway.address, keys=_client(WORKER, server_key=STRANGER.public))
    async with running(gateway, worker):
        worker.dealer.send(b"secret")
        await until(lambda: worker.dealer.statistics().last_failure)
        assert gateway.frames == []
        assert worker.dealer.statistics().waiting_frames == 1


@pytest.mark.parametrize("mechanism", ["none", "plain"])
async def test_a_peer_without_curve_stays_out(mechanism: str) -> None:
    """A peer that speaks no CURVE never reaches on_frame, on loopback either."""
    gateway = GatewayEnd(keys=_server())
    worker = WorkerEnd(gateway.address, keys=_client(WORKER))
    with raw_socket(zmq.DEALER, fresh_id()) as plain:
        if mechanism == "plain":
            plain.set(zmq.PLAIN_USERNAME, b"gpu-0")
            plain.set(zmq.PLAIN_PASSWORD, b"please")
        monitor = plain.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        plain.connect(gateway.address)
        with suppress(zmq.Again):  # it may have been refused already
            plain.send(b"in the clear", zmq.NOBLOCK)
        async with running(gateway, worker):
            await until(lambda: monitor.poll(0))
            worker.dealer.send(b"in secret")
            await until(lambda: gateway.frames)
            assert gateway.frames == [(worker.identity, b"in secret")]
        plain.disable_monitor()
        monitor.close()


async def test_nobody_gets_in_without_the_door() -> None:
    """A secured socket whose key check is missing refuses even configured keys."""
    with raw_socket(zmq.ROUTER) as doorless:
        _server().secure(doorless)
        doorless.bind(ANY_PORT)
        worker = WorkerEnd(bound_address(doorless), keys=_client(WORKER))
        async with running(worker):
            worker.dealer.send(b"anyone?")
            await until(lambda: worker.dealer.statistics().last_failure)
            assert worker.changes == []


async def test_another_key_cannot_take_over_an_identity() -> None:
    """A second configured worker that claims the first one's identity is not heard under it."""
    gateway = GatewayEnd(keys=_server())
    worker = WorkerEnd(gateway.address, keys=_client(WORKER))
    async with running(gateway, worker):
        worker.dealer.send(b"mine")
        await until(lambda: gateway.frames == [(worker.identity, b"mine")])
        thief = WorkerEnd(gateway.address, identity=worker.identity, keys=_client(OTHER))
        async with running(thief):
            thief.dealer.send(b"stolen")
            await until(lambda: gateway.router.statistics().foreign)
        assert gateway.frames == [(worker.identity, b"mine")]
        assert gateway.router.may_use_name(worker.identity, "gpu-0")


async def test_remembered_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Identities that come and go do not fill the memory: the oldest is forgotten first."""
    monkeypatch.setattr(router_module, "_MAX_PINNED_KEYS", 1)
    gateway = GatewayEnd(keys=_server())
    first = WorkerEnd(gateway.address, keys=_client(WORKER))
    second = WorkerEnd(gateway.address, keys=_client(OTHER))
    async with running(gateway, first, second):
        first.dealer.send(b"first")
        await until(lambda: gateway.router.may_use_name(first.identity, "gpu-0"))
        second.dealer.send(b"second")
        await until(lambda: gateway.router.may_use_name(second.identity, "gpu-1"))
        assert not gateway.router.may_use_name(first.identity, "gpu-0")


@pytest.mark.parametrize(
    "question",
    [
        [b"1.0", b"1", b"herma", b"127.0.0.1", b"", b"NULL"],
        [b"1.0", b"1", b"other", b"127.0.0.1", b"", b"CURVE", z85.decode(WORKER.public)],
        [b"2.0", b"1", b"herma", b"127.0.0.1", b"", b"CURVE", z85.decode(WORKER.public)],
        [b"1.0", b"1"],
    ],
)
async def test_the_door_refuses_other_questions(question: list[bytes]) -> None:
    """Another mechanism, domain or version of ZAP is answered with a refusal."""
    gateway = GatewayEnd(keys=_server())
    asker = gateway.router._context.socket(zmq.REQ)
    asker.connect("inproc://zeromq.zap.01")
    asker.send_multipart(question)
    async with running(gateway):
        await until(lambda: asker.poll(0))
        assert asker.recv_multipart()[1:3] == [b"1", b"400"]
        asker.close()


async def test_strangers_shapes_are_counted_under_curve_too() -> None:
    """Several parts and odd identities are dropped behind CURVE as they are without."""
    gateway = GatewayEnd(keys=_server())
    with raw_socket(zmq.DEALER, b"short") as odd:
        _client(WORKER).secure(odd)
        odd.connect(gateway.address)
        async with running(gateway):
            odd.send_multipart([b"a", b"b"])
            odd.send(b"c")
            await until(lambda: gateway.router.statistics().foreign == 1)
            assert gateway.router.statistics().malformed == 1
            assert gateway.frames == []


def test_a_key_file_is_private_and_reads_back(tmp_path: Path) -> None:
    """Only the owner can read a new key file; it holds the pair whose public key was printed."""
    path = tmp_path / "gateway.key"
    public = write_curve_pair(path)
    assert path.stat().st_mode & 0o777 == 0o600
    pair = read_curve_pair(path)
    assert pair.public == public
    assert zmq.curve_public(pair.secret.encode()) == public.encode()


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    """A second write to the same path is refused and keeps the first secret."""
    path = tmp_path / "gateway.key"
    public = write_curve_pair(path)
    with pytest.raises(ConfigError, match="not overwritten"):
        write_curve_pair(path)
    assert read_curve_pair(path).public == public


def test_a_key_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A missing folder is one clear error."""
    with pytest.raises(ConfigError, match=r"no-folder.*No such file"):
        write_curve_pair(tmp_path / "no-folder" / "x.key")


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """A secret with loose permissions is refused with the command that repairs it."""
    path = tmp_path / "gateway.key"
    write_curve_pair(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_curve_pair(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe binary",
        b"public abc\nsecret def\n",
        f"public {OTHER.public}\nsecret {WORKER.secret}\n".encode(),
        f"public {OTHER.public}\n".encode(),
        f"public {OTHER.public}\nsecret {'#' * 40}\n".encode(),
        b"x" * 100_000,
    ],
    ids=[
        "empty",
        "binary",
        "too-short",
        "another-pair's-secret",
        "half",
        "no-key",
        "too-long",
    ],
)
def test_a_file_without_a_pair_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is no key file, or whose halves do not belong together, is named."""
    path = tmp_path / "gateway.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"gateway\.key is not a key file"):
        read_curve_pair(path)


@pytest.mark.parametrize("name", ["missing.key", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    """A missing file or a folder in its place is one clear error."""
    with pytest.raises(ConfigError, match="cannot read the key file"):
        read_curve_pair(tmp_path / name)


def test_both_sides_load_from_files(tmp_path: Path) -> None:
    """The gateway's file with the workers' public keys, and a worker's with the gateway's."""
    gateway_public = write_curve_pair(tmp_path / "gateway.key")
    worker_public = write_curve_pair(tmp_path / "worker.key")
    server = load_curve_server(tmp_path / "gateway.key", {"gpu-0": worker_public})
    client = load_curve_client(tmp_path / "worker.key", gateway_public)
    assert server.public_keys == {worker_public}
    assert (client.public, client.server_key) == (worker_public, gateway_public)


@pytest.mark.parametrize("key", ["", "x" * 39, "x" * 41, "ä" * 40, " " * 40])
def test_malformed_public_keys_are_refused(tmp_path: Path, key: str) -> None:
    """A mistyped public key is an error at start, which says whose it is."""
    path = tmp_path / "one.key"
    write_curve_pair(path)
    with pytest.raises(ConfigError, match="gpu-7"):
        load_curve_server(path, {"gpu-7": key})
    with pytest.raises(ConfigError, match="gateway"):
        load_curve_client(path, key)


def test_secrets_are_not_shown() -> None:
    """No repr that may reach a log holds a secret."""
    for keys in (WORKER, _server(), _client(WORKER)):
        secret = keys.secret
        assert secret not in repr(keys)
        assert secret not in str(keys)
