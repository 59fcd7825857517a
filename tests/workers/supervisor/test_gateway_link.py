"""A link to a gateway, alone, and what a relay does with its frames."""

import gc
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import zmq
from trio.testing import MockClock

from config import builtin_config
from protocol.errors import ConfigError
from protocol.ids import WorkerId
from protocol.messages import (
    PROTOCOL_VERSION,
    Bye,
    Dismiss,
    EngineFacts,
    FromWorker,
    Pong,
    Register,
    Welcome,
)
from protocol.transport import CurveClient, load_curve_client, write_curve_pair
from protocol.wire import encode
from tests.fakes.gateway_end import open_gateway_end, submission
from tests.fakes.ports import free_ports
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.worker import FakeWorker, open_worker
from workers.model_dir import ModelFiles
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.gateway_link import GatewayLink
from workers.supervisor.identity import worker_identity
from workers.supervisor.lifecycle import Lifecycle, LifeEvent
from workers.supervisor.log import WorkerLog
from workers.supervisor.progress_watch import GATEWAY_SILENCE_S


def open_sockets() -> set[int]:
    return {id(o) for o in gc.get_objects() if type(o) is zmq.Socket and not o.closed}


async def test_a_link_that_cannot_be_dialled_leaves_no_open_socket() -> None:
    """The garbage collector would wait for it to close, and the worker with it, for ever."""
    relay = FrameRelay(
        worker_identity(builtin_config().workers[0], "0"),
        log := WorkerLog("w", beside_gateway=False),
        Lifecycle(),
        on_work=lambda: None,
        on_drain=lambda _: None,
        on_siblings=lambda _: None,
        on_distrust=lambda _: None,
    )
    before = open_sockets()
    with pytest.raises(ConfigError, match="nonsense"):
        GatewayLink("nonsense", WorkerId(bytes(16)), relay, log, None)
    assert open_sockets() <= before
    log.close()


class Restless:
    """A relay whose engine starts anew whenever it is asked who it is, up to the third time."""

    is_shared = False
    is_leaving = False

    def __init__(self) -> None:
        self.epoch = 0

    def greeting(self) -> tuple[FromWorker, ...]:
        self.epoch = min(3, self.epoch + 1)
        return (Register(PROTOCOL_VERSION, "w", ("echo",), "test", "", self.epoch),)

    def join(self, link: GatewayLink, welcome: Welcome) -> None:  # noqa: ARG002 - the seam
        link.number = 1

    def leave(self, link: GatewayLink) -> None:
        link.number = None

    def from_gateway(self, link: GatewayLink, frame: bytes) -> None:  # noqa: ARG002 - the seam
        raise AssertionError(frame)

    def gateway_pauses(self) -> None:
        pass

    def update_pause(self) -> None:
        raise AssertionError("nothing was said")


async def test_what_changed_before_the_welcome_is_told_after_it() -> None:
    """Between Register and Welcome a link is none of those that are told of the engine."""
    log = WorkerLog("w", beside_gateway=False)
    async with open_gateway_end() as gateway, trio.open_nursery() as nursery:
        link = GatewayLink(gateway.address, WorkerId(bytes(16)), Restless(), log, None)
        nursery.start_soon(link.run)
        await gateway.wait(Register, lambda m: m.epoch == 3)
        assert link.number == 1
        nursery.cancel_scope.cancel()
    log.close()


class Steady(Restless):
    """A relay that is always the same."""

    def greeting(self) -> tuple[FromWorker, ...]:
        return (Register(PROTOCOL_VERSION, "w", ("echo",), "test", "", 1),)


async def test_a_gateway_is_there_as_long_as_it_pings(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A gateway is there as long as it pings, whatever else it sends; its silence is accepted for a
    bounded time.
    """
    log = WorkerLog("w", beside_gateway=False)
    async with (
        open_gateway_end(f"ipc://{tmp_path}/gateway") as gateway,
        trio.open_nursery() as nursery,
    ):
        link = GatewayLink(gateway.address, WorkerId(bytes(16)), Steady(), log, None)
        nursery.start_soon(link.run)
        await gateway.wait(Register)
        for _ in range(4):
            await trio.sleep(GATEWAY_SILENCE_S)
            assert link.number == 1
            assert len(gateway.all_of(Register)) == 1
        gateway.pings = False
        await trio.sleep(GATEWAY_SILENCE_S + 1)
        assert link.number is None or len(gateway.all_of(Register)) > 1
        nursery.cancel_scope.cancel()
    log.close()


async def test_a_welcome_that_comes_after_a_drop_is_of_the_life_before(tmp_path: Path) -> None:
    """A gateway that was slow answers two registrations. What ran for it is aborted by then, which
    the farewell has to say before the worker is there again.
    """
    log = WorkerLog("w", beside_gateway=False)
    async with (
        open_gateway_end(f"ipc://{tmp_path}/gateway") as gateway,
        trio.open_nursery() as nursery,
    ):
        link = GatewayLink(gateway.address, WorkerId(bytes(16)), Steady(), log, None)
        nursery.start_soon(link.run)
        await gateway.wait_joined()
        gateway.send(Dismiss("as if it were stuck"))
        gateway.send(Welcome(PROTOCOL_VERSION, bytes(16), 1, ()))
        await gateway.wait(Bye)
        await wait_until(lambda: link.number is not None)
        kinds = [type(message) for message in gateway.heard if not isinstance(message, Pong)]
        assert kinds == [Register, Bye, Register]
        nursery.cancel_scope.cancel()
    log.close()


class Said:
    """A log, and the lines that it has written so far."""

    def __init__(self, *, beside_gateway: bool = False) -> None:
        self._stream = io.StringIO()
        self.log = WorkerLog("w", self._stream, beside_gateway=beside_gateway)

    @property
    def lines(self) -> list[str]:
        return [line.partition("worker w: ")[2] for line in self._stream.getvalue().splitlines()]

    @property
    def has_warned(self) -> bool:
        return " WARNING worker w: " in self._stream.getvalue()


@contextmanager
def dialling(
    nursery: trio.Nursery, address: str, keys: CurveClient | None = None
) -> Iterator[tuple[GatewayLink, Said]]:
    """A running link to `address`, and what is said of it."""
    said = Said()
    link = GatewayLink(address, WorkerId(b"second-identity!"), Steady(), said.log, keys)
    nursery.start_soon(link.run)
    yield link, said
    nursery.cancel_scope.cancel()
    said.log.close()


async def test_a_worker_whose_name_is_taken_says_so_until_it_is_free() -> None:
    """A worker whose name is taken says so once in its own log, until it is free, and no word of
    silence; it goes on asking, and is welcomed.
    """
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, FakeWorker("w")) as first,
        trio.open_nursery() as nursery,
    ):
        await gateway.wait_workers(1)
        with dialling(nursery, gateway.address) as (link, said):
            counters = gateway.services.counters
            await wait_until(lambda: counters.workers_refused > 4 and bool(said.lines))
            (line,) = said.lines
            assert line == f"gateway {gateway.address}: {link.trouble}; dialling on"
            assert "does not take this worker: another live worker is called `w`" in line
            first.die()
            await wait_until(lambda: link.number is not None)
            assert not link.trouble


async def test_a_worker_with_the_key_of_another_name_is_told_so(tmp_path: Path) -> None:
    """The gateway knows the key, so the handshake succeeds and tells nothing."""
    public = write_curve_pair(tmp_path / "gateway")
    keys = {"gpu7": write_curve_pair(tmp_path / "worker")}
    async with (
        open_gateway(
            curve_secret_file=str(tmp_path / "gateway"), curve_worker_keys=keys
        ) as gateway,
        trio.open_nursery() as nursery,
    ):
        client = load_curve_client(tmp_path / "worker", public)
        with dialling(nursery, gateway.address, client) as (link, said):
            await wait_until(lambda: bool(link.trouble))
            assert "its key is not the one of `w` in curve_worker_keys" in link.trouble
            await wait_until(lambda: len(said.lines) == 1)


async def test_a_worker_without_keys_says_once_why_no_handshake_succeeds(tmp_path: Path) -> None:
    """What libzmq makes of it takes turns with every try; a connection in between is a change."""
    write_curve_pair(tmp_path / "gateway")
    address = f"tcp://127.0.0.1:{free_ports(1)}"
    async with trio.open_nursery() as nursery:
        with dialling(nursery, address) as (link, said):
            num_lines = 0
            for _ in range(2):
                secret = str(tmp_path / "gateway")
                async with open_gateway(worker_bind=address, curve_secret_file=secret):
                    await wait_until(lambda: bool(link.trouble))
                    enough = link._socket.statistics().redials + 8
                    await wait_until(partial(_has_redialled, link, enough))
                # A thread writes them.
                await wait_until(lambda: link.trouble in " ".join(said.lines[num_lines:]))  # noqa: B023
                told = said.lines[num_lines:]
                assert len(told) == len(set(told)) <= 2
                async with open_gateway(worker_bind=address):
                    await wait_until(lambda: link.number is not None)
                await wait_until(lambda: "is gone" in " ".join(said.lines[-1:]))
                num_lines = len(said.lines)


def _has_redialled(link: GatewayLink, num_times: int) -> bool:
    return link._socket.statistics().redials >= num_times


async def test_a_gateway_of_another_version_is_told_once() -> None:
    """A gateway of another version is reported once; it may welcome a worker that it does not
    understand.
    """
    async with open_gateway_end() as gateway, trio.open_nursery() as nursery:
        gateway.protocol_version = PROTOCOL_VERSION + 1
        with dialling(nursery, gateway.address) as (link, said):
            await wait_until(lambda: len(gateway.all_of(Register)) > 2)
            assert "run the same version on both" in link.trouble
            assert link.number is None
            await wait_until(lambda: len(said.lines) == 1)


async def test_who_farewells_a_gateway_is_not_refused(tmp_path: Path) -> None:
    """A link that was given up begins with `Bye`: what the gateway makes of that is no reason."""
    async with (
        open_gateway(worker_bind=f"ipc://{tmp_path}/gateway") as gateway,
        trio.open_nursery() as nursery,
    ):
        with dialling(nursery, gateway.address) as (link, said):
            await wait_until(lambda: link.number is not None)
            link._drop("as if it were stuck")
            await wait_until(lambda: link.number is not None)
            await wait_until(lambda: len(said.lines) == 3)
            assert not [line for line in said.lines if "does not take" in line]


@pytest.mark.parametrize(
    ("beside_gateway", "is_leaving", "is_told"),
    [(True, True, False), (True, False, True), (False, True, True), (False, False, True)],
)
async def test_a_gateway_that_ends_with_its_worker_is_no_fault(
    tmp_path: Path, beside_gateway: bool, is_leaving: bool, is_told: bool
) -> None:
    """Ctrl-C at `herma up` ends both, and the gateway is the first to go. Anywhere else, and in any
    other order, it is told; of sequences that there may not be no word.
    """
    said, relay = Said(beside_gateway=beside_gateway), Steady()
    async with trio.open_nursery() as nursery:
        async with open_gateway_end(f"ipc://{tmp_path}/gateway") as gateway:
            link = GatewayLink(gateway.address, WorkerId(bytes(16)), relay, said.log, None)
            nursery.start_soon(link.run)
            await wait_until(lambda: link.number is not None)
            relay.is_leaving = is_leaving
        await wait_until(lambda: link.number is None)
        assert link.trouble == "the connection is lost"
        nursery.cancel_scope.cancel()
    said.log.close()
    gone = [line for line in said.lines if "is gone" in line]
    told = f"gateway {gateway.address} is gone: the connection is lost; what ran for it is aborted"
    assert gone == [told] * is_told
    assert said.has_warned == (not beside_gateway and not is_leaving)


class Notes:
    """An engine that notes what is done with it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def put(self, link: int, payload: bytes) -> None:  # noqa: ARG002 - the seam
        self.done.append("put")

    def flush(self) -> None:
        self.done.append("flush")

    def pause(self, is_paused: bool) -> None:
        pass


async def test_work_is_noted_once_it_is_with_the_engine(tmp_path: Path) -> None:
    """The engine owes a step for each moment that brought some, and for no other."""
    engine = Notes()
    relay = FrameRelay(
        worker_identity(builtin_config().workers[0], "0"),
        log := WorkerLog("w", beside_gateway=False),
        lifecycle := Lifecycle(),
        on_work=lambda: engine.done.append("work"),
        on_drain=lambda _: None,
        on_siblings=lambda _: None,
        on_distrust=lambda _: None,
    )
    link = GatewayLink(f"ipc://{tmp_path}/gateway", WorkerId(bytes(16)), relay, log, None)
    relay.engine_starts(engine)
    relay.join(link, Welcome(PROTOCOL_VERSION, bytes(16), 1))
    facts = EngineFacts("fake", "none", "none", 512, 32, 1024, 4, 64, bytes(16))
    for event in (LifeEvent.START, LifeEvent.LOADED, LifeEvent.PROVEN):
        lifecycle.on(event)
    relay.engine_ready(facts, ModelFiles(bytes(16), {}))
    for request_id in (b"a" * 16, b"b" * 16):
        relay.from_gateway(link, encode(submission(request_id)))
    relay.gateway_pauses()
    relay.gateway_pauses()
    assert engine.done == ["put", "put", "flush", "work", "flush"]
    link.close()
    log.close()
