"""What a gateway does that has nothing to do, in virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.link.attempts import Attempt
from gateway.link.peers import SILENCE_S
from gateway.link.worker_link import PING_S, REST_PING_S
from gateway.routing.lease import Lease
from protocol.ids import ID_BYTES, RequestId
from protocol.messages import Submit
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from tests.fakes.running_gateway import RunningGateway, open_gateway
from tests.fakes.served import served
from tests.fakes.worker import FakeWorker, open_worker

LONG_S = 40.0


class Moments(trio.abc.Instrument):
    """The moments at which anything ran."""

    def __init__(self) -> None:
        self.seen: set[float] = set()

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's
        self.seen.add(trio.current_time())


@asynccontextmanager
async def resting(tmp_path: Path) -> AsyncIterator[tuple[RunningGateway, FakeWorker]]:
    """All of a gateway, and a worker that its frames reach within the same moment."""
    async with (
        open_gateway(worker_bind=f"ipc://{tmp_path}/w") as gateway,
        open_worker(gateway.address) as worker,
        served(edge_app(edge_of(gateway.services)), patience_s=1000.0),
    ):
        await gateway.wait_state("ready")
        await trio.sleep(10.0)
        yield gateway, worker


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path, as sockets need."""
    return tmp_path_factory.mktemp("r")


async def test_a_gateway_at_rest_wakes_on_one_slow_beat(
    folder: Path, autojump_clock: MockClock
) -> None:
    """A gateway at rest handles its pings, its dispatcher and its server's deadlines at the same
    moments: waking the process costs more than the work itself.
    """
    moments = Moments()
    async with resting(folder):
        trio.lowlevel.add_instrument(moments)
        await trio.sleep(LONG_S)
        trio.lowlevel.remove_instrument(moments)
    assert len(moments.seen) <= LONG_S / REST_PING_S + 2


async def test_workers_are_asked_more_often_while_something_is_under_way(
    folder: Path, autojump_clock: MockClock
) -> None:
    """A ping also tells a worker how far we have read what it says."""
    async with resting(folder) as (gateway, worker):
        link, counters = gateway.services.link, gateway.services.counters
        (peer,) = link._peers
        worker.pause_after = 0
        number = RequestId(bytes(ID_BYTES))
        attempt = Attempt(
            Lease(0, peer, 0, "test"),
            number,
            1,
            expected=0,
            on_tokens=lambda _: False,
            on_accepted=lambda _: None,
        )
        rates = []
        for step in range(3):
            if step == 1:
                sampling = SamplingParams(max_tokens=4)
                link.submit(attempt, Submit(number, 1, "alpha", pack_tokens([1]), b"", sampling, 0))
            elif step == 2:
                link.forget(attempt)
            await trio.sleep(1.0)
            before = counters.frames_received
            await trio.sleep(LONG_S)
            rates.append((counters.frames_received - before) / LONG_S)
    assert rates == pytest.approx([1 / REST_PING_S, 1 / PING_S, 1 / REST_PING_S], abs=0.1)


async def test_silence_is_noticed_to_the_moment_at_rest_too(
    folder: Path, autojump_clock: MockClock
) -> None:
    """At rest pings are rarer, and silence is still noticed at the exact moment."""
    async with resting(folder) as (gateway, worker):
        (peer,) = gateway.services.link._peers.values()
        worker.answers_pings = False
        await trio.sleep_until(peer.heard_at + SILENCE_S - 0.001)
        assert gateway.services.counters.workers_lost == 0
        await trio.sleep(0.002)
        assert gateway.services.counters.workers_lost == 1
