"""The link to the workers: who is let in, what is counted, what is asked."""

import os
from typing import Any

import msgspec
import pytest
import trio

from gateway.app import build_services, running
from gateway.link.peers import SILENCE_S
from gateway.link.worker_link import PING_S
from protocol.errors import ConfigError
from protocol.ids import RequestId, WorkerId
from protocol.messages import (
    PROTOCOL_VERSION,
    RETAINS,
    Dismiss,
    GetFiles,
    Progress,
    Register,
    Retain,
    Snapshot,
    Submit,
    Welcome,
)
from protocol.transport import RouterSocket
from protocol.wire import encode
from tests.fakes.ports import free_ports
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.worker import FakeWorker, open_worker


async def test_garbage_is_counted_and_changes_nothing_else() -> None:
    """Random bytes, truncated frames and messages of the other direction change nothing."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        frames = [b"", b"\xc1", os.urandom(64), b"\x94\x24\x01", b"\xff" * 1000]
        for frame in frames:
            worker.say_frame(frame)
        counters = gateway.services.counters
        await wait_until(lambda: counters.frames_garbage == len(frames))
        assert (await gateway.ask()).reasons == ["stop"]
        assert counters.workers_lost == 0


async def test_strangers_are_counted() -> None:
    """Frames of a peer that never registered reach nobody."""
    async with open_gateway() as gateway:
        stranger = FakeWorker("stranger")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stranger.run)
            stranger.connect(gateway.address)
            stranger.say(Progress(1, "loading", 0.5))
            await wait_until(lambda: gateway.services.counters.frames_from_strangers == 1)
            nursery.cancel_scope.cancel()
        assert gateway.services.dispatcher.statistics().workers == 0


async def test_a_second_holder_of_a_name_waits_for_the_first_to_leave() -> None:
    """A second holder of a name is refused while the first lives, and accepted when it asks again
    afterwards.
    """
    second = FakeWorker("w1", identity=b"second-identity!")
    async with open_gateway() as gateway, open_worker(gateway.address) as first:
        await gateway.wait_state("ready")
        async with open_worker(gateway.address, second):
            assert "another live worker is called `w1`" in (await second.wait(Dismiss)).reason
            await gateway.ask()
            assert first.all_of(Submit)
            assert not second.all_of(Submit)
            first.die()
            await gateway.wait_workers(0)
            second.register()
            await gateway.wait_workers(1)
            await gateway.ask()
            assert second.all_of(Submit)


async def test_another_protocol_version_is_refused_by_name() -> None:
    """The worker is not taken, and learns our version from the refusal."""
    async with open_gateway() as gateway, open_worker(gateway.address, ready=False) as worker:
        await worker.wait(Welcome)
        worker.say(Register(99, "w1", ("alpha",), "fake", "0", 1, worker.facts))
        assert f"gateway speaks {PROTOCOL_VERSION}" in (await worker.wait(Dismiss)).reason
        assert gateway.services.dispatcher.statistics().workers == 0


async def test_nothing_waits_for_a_worker_that_is_refused() -> None:
    """A worker that is refused may never come again, so messages that wait for its next frames are
    dropped.
    """
    worker = FakeWorker("w1")
    worker.facts = msgspec.structs.replace(worker.facts, capabilities=(RETAINS,))
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        link, (worker_id,) = gateway.services.link, tuple(gateway.services.link._peers)
        link.retain(worker_id, Retain(RequestId(bytes(16)), 1, bytes(16), 0.5, 1.0))
        (peer,) = link._peers.values()
        assert peer.expectations
        other = Register(99, "w1", ("alpha",), "fake", "0", 1, worker.facts)
        link._on_frame(worker_id, encode(other))
        assert not link._peers


async def test_a_refusal_that_quotes_a_huge_name_fits_into_a_frame() -> None:
    """Escaped it would not: one worker's nonsense must not end the link to all others."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        other = FakeWorker("\n" * 25 * 2**20, identity=b"another-identity")
        async with open_worker(gateway.address, other):
            refused = await other.wait(Dismiss)
        assert "is not 1 to 128 characters" not in refused.reason
        assert len(refused.reason) < 1000
        await gateway.ask()
        assert worker.all_of(Submit)


async def test_files_are_asked_once_and_kept() -> None:
    """A restarted engine and a second worker with the same files are not asked again."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        await gateway.ask()
        worker.fail_engine()
        worker.register()
        async with open_worker(gateway.address, FakeWorker("w2")) as other:
            await gateway.wait_workers(2)
            await gateway.ask()
            assert len(worker.all_of(GetFiles)) + len(other.all_of(GetFiles)) == 1


async def test_a_gateway_that_was_held_up_gives_no_worker_up() -> None:
    """A pause of the gateway's own loop does not count as the workers' silence."""
    async with open_gateway() as gateway, open_worker(gateway.address):
        await gateway.wait_state("ready")
        peers = gateway.services.link._peers
        (peer,) = peers.values()
        for _ in range(3):
            # As if the watch had slept 5 s: its own clock is moved, nobody was heard meanwhile.
            peer.heard_at -= 5.0
            peers.excuse(5.0, trio.current_time())
        await gateway.ask()
        assert gateway.services.counters.workers_lost == 0


async def test_a_worker_with_unread_frames_is_not_silent() -> None:
    """A silent worker is given up, but not while the gateway has frames that it has not read."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        counters = gateway.services.counters
        worker.answers_pings = False
        behind = Behind(gateway.services.link._router)
        gateway.services.link._router = behind  # type: ignore[assignment]
        await trio.sleep(SILENCE_S + 5 * PING_S)
        assert counters.workers_lost == 0
        behind.is_over = True
        await wait_until(lambda: counters.workers_lost == 1)
        await worker.wait(Dismiss)


class Behind:
    """A router with frames unread, until it `is_over`."""

    def __init__(self, router: RouterSocket) -> None:
        self.is_over = False
        self._router = router

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    def is_behind(self) -> bool:
        return not self.is_over


async def test_broken_files_are_one_clear_error() -> None:
    """A model whose tokenizer cannot be read answers 500 that names the file."""
    fake = FakeWorker(files={"tokenizer.json": b"{"})
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = await gateway.ask()
        assert asked.error is not None
        assert asked.error.status == 500
        assert "tokenizer.json" in asked.error.message


async def test_files_over_the_limit_are_not_kept() -> None:
    """More than 32 MiB of text files are refused; the link lives."""
    async with open_gateway() as gateway:
        too_many = {"tokenizer.json": bytes(33 * 2**20)}
        with pytest.raises(ConfigError, match="32 MiB"):
            gateway.services.files.put(WorkerId(16 * b"s"), b"x" * 16, too_many)


async def test_a_taken_worker_port_is_one_clear_error() -> None:
    """Binding an address twice raises `ConfigError`."""
    async with open_gateway() as gateway:
        config = gateway.services.config
        second = msgspec.structs.replace(
            config, gateway=msgspec.structs.replace(config.gateway, worker_bind=gateway.address)
        )
        with pytest.raises(BaseExceptionGroup) as caught:
            async with running(build_services(second, {})):
                pass
        assert caught.group_contains(ConfigError)


async def test_a_gateway_that_comes_back_has_its_workers_again() -> None:
    """Workers dial in again by themselves, and the cache index is rebuilt from a snapshot."""
    messages = [{"role": "user", "content": "white stones " * 100}]
    fake = FakeWorker()
    address = f"tcp://127.0.0.1:{free_ports(1)}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.run)
        fake.register()
        fake.connect(address)
        for expected in (0, 1):
            async with open_gateway(worker_bind=address) as gateway:
                await gateway.wait_state("ready")
                await wait_until(lambda: len(fake.all_of(Snapshot)) > 0)
                asked = await gateway.ask(messages=messages)
                assert (asked.usage.cached_tokens > 0) == bool(expected)
                fake.heard.clear()
        nursery.cancel_scope.cancel()
