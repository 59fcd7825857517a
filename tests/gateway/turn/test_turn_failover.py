"""State that outlives a turn (breakers, pauses, probes, detached requests) and its events."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.routing.breaker import FAILURES
from gateway.turn import health_probes as recovery_probes
from gateway.turn import retry_policy as losses
from gateway.turn.caller import Caller
from gateway.turn.retry_policy import MOST
from protocol.messages import Abort, Files, GetFiles, Load, Submit
from tests.fakes.provider import KEY, FakeProvider, open_provider
from tests.fakes.running_gateway import RunningGateway, chain_of, open_gateway, wait_until
from tests.fakes.worker import PATIENCE_S, FakeWorker, WithoutFiles, open_worker


def counts(gateway: RunningGateway, *kinds: str) -> list[int]:
    """How often each of these has happened."""
    return [gateway.services.feed.counts[kind] for kind in kinds]


async def test_a_provider_that_fails_is_asked_last() -> None:
    """After a few failures in a row nobody pays for it any more, while another answers."""
    bad, good = FakeProvider(status=500), FakeProvider()
    async with open_provider(bad), open_provider(good):
        model, tables = chain_of({"p0": bad, "p1": good})
        async with open_gateway(models=[model], providers=tables) as gateway:
            for _ in range(FAILURES + 4):
                assert (await gateway.ask()).started.served_by == "cloud:p1"
            assert len(bad.requests) == FAILURES
            assert counts(gateway, "provider failed", "breaker open") == [FAILURES, 1]
            good.status, bad.status = 500, 200
            assert (await gateway.ask()).started.served_by == "cloud:p0"
            assert counts(gateway, "breaker closed") == [1]


async def test_a_fleet_whose_breakers_are_all_open_still_answers() -> None:
    """A breaker refuses nobody: the first request after an outage finds the provider well again."""
    fake = FakeProvider(status=500)
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            for _ in range(24):
                assert (await gateway.ask()).error is not None
            fake.status = 200
            for _ in range(24):
                assert (await gateway.ask()).error is None


async def test_a_pause_that_a_provider_asks_for_is_kept() -> None:
    """A provider that asks for a pause is not asked until its end; others answer, and no breaker
    opens. Without another the client is told to wait as long.
    """
    limited, other = FakeProvider(status=429, headers={"retry-after": "60"}), FakeProvider()
    async with open_provider(limited), open_provider(other):
        model, tables = chain_of({"p0": limited, "p1": other})
        async with open_gateway(models=[model], providers=tables) as gateway:
            for _ in range(5):
                assert (await gateway.ask()).started.served_by == "cloud:p1"
            assert len(limited.requests) == 1
        model, tables = chain_of({"p0": limited})
        async with open_gateway(models=[model], providers=tables) as gateway:
            errors = [(await gateway.ask()).error for _ in range(3)]
            assert len(limited.requests) == 2
    assert [error.status for error in errors if error] == [429] * 3
    assert all(error.retry_after_s in (59, 60) for error in errors if error)


async def test_tries_of_a_fleet_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the budget spent a failure is told instead of asking the next provider."""
    # A slow machine takes longer to ask than the budget to grow by one.
    monkeypatch.setattr(losses, "FLOOR_PER_S", 0.0)
    bad, good = FakeProvider(status=500), FakeProvider()
    async with open_provider(bad), open_provider(good):
        model, tables = chain_of({"p0": bad, "p1": good})
        async with open_gateway(models=[model], providers=tables) as gateway:
            retries, now = gateway.services.retries, trio.current_time()
            assert sum(retries.may_retry("a test", now) for _ in range(int(MOST))) == MOST
            asked = await gateway.ask()
            assert asked.error is not None
            assert not good.requests
            assert counts(gateway, "retry refused") == [1]


async def test_the_way_to_the_cloud_and_back_is_told_once() -> None:
    """Providers answer until health probes came back from the worker in a row; a stream that a
    provider has begun ends there.
    """
    fake = FakeProvider()
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address) as worker,
        ):
            await gateway.wait_state("ready")
            worker.fail_engine()
            await gateway.wait_state("starting")
            for _ in range(5):
                assert (await gateway.ask()).started.served_by == "cloud:p0"
            fake.first_delay_s = 0.3
            begun = gateway.start(stream=True)
            await wait_until(lambda: len(fake.requests) == 6)
            worker.pause_after = 0
            worker.register()
            await worker.wait(Submit)
            assert (await gateway.ask()).started.served_by == "cloud:p0"
            local = gateway.start(Caller(key="alice", cloud=False))
            await worker.wait(Submit, count=2)
            worker.resume()
            await gateway.wait_local()
            assert len(worker.all_of(Submit)) == 1 + 3
            assert (await gateway.ask()).started.served_by == "worker"
            with trio.fail_after(PATIENCE_S):
                await local.over.wait()
                await begun.over.wait()
            assert local.started.served_by == "worker"
            assert begun.upstream == b"".join(fake.events("p0-large"))
            assert counts(gateway, "fallback on", "fallback off", "worker back") == [1, 1, 1]


@asynccontextmanager
async def open_with_probe(max_seqs: int) -> AsyncIterator[tuple[RunningGateway, FakeWorker]]:
    """A provider answers, and a worker that is ready again keeps a health probe waiting."""
    fake, worker = FakeProvider(), FakeWorker(max_seqs=max_seqs)
    worker.pause_after = 0
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address, worker, ready=False),
        ):
            await gateway.wait_state("starting")
            assert (await gateway.ask()).started.served_by == "cloud:p0"
            worker.register()
            await worker.wait(Submit)
            yield gateway, worker


async def test_a_probe_at_the_door_of_a_full_engine_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A probe that waits at an engine filled by another gateway is no failure; it is withdrawn, and
    tried again.
    """
    monkeypatch.setattr(recovery_probes, "PROBE_S", 1.5)
    async with open_with_probe(max_seqs=2) as (gateway, worker):
        worker.say(Load(worker.epoch, 2, 1, 100, 100, 0, 0, 1.0, 1e4))
        await worker.wait(Abort)
        await worker.wait(Submit, count=2)
        worker.load()
        worker.resume()
        await gateway.wait_local()
        assert counts(gateway, "health probe failed", "fallback off") == [0, 1]


async def test_a_probe_without_tokens_in_time_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With places free; one of which some tokens are here, and not all, has not."""
    monkeypatch.setattr(recovery_probes, "PROBE_S", 0.3)
    async with open_with_probe(max_seqs=2) as (gateway, worker):
        worker.load()
        await worker.wait(Abort)
        await wait_until(lambda: counts(gateway, "health probe failed") != [0])
        worker.pause_after = 1
        await gateway.wait_local()
        assert counts(gateway, "fallback off") == [1]


async def test_a_probe_that_is_refused_for_load_has_not_failed() -> None:
    """One worker that leaves, or is not ready yet after all, must not keep providers answering
    where others have proved themselves.
    """
    async with open_with_probe(max_seqs=2) as (gateway, worker):
        worker.rejections = ["draining", "not_ready", "busy"]
        worker.resume()
        await gateway.wait_local()
        assert not worker.rejections
        assert counts(gateway, "health probe failed", "fallback off") == [0, 1]


@asynccontextmanager
async def open_without_files() -> AsyncIterator[tuple[RunningGateway, FakeWorker]]:
    """A gateway with such a worker, ready, and a provider."""
    fake = FakeProvider()
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address, WithoutFiles()) as worker,
        ):
            await gateway.wait_state("ready")
            yield gateway, worker


async def test_a_worker_that_dies_before_its_tokenizer_came_keeps_nobody_from_the_cloud() -> None:
    """What its texts are is known by name only, and nobody is there to send them."""
    async with open_without_files() as (gateway, worker):
        worker.fail_engine()
        await gateway.wait_state("starting")
        assert (await gateway.ask()).started.served_by == "cloud:p0"


async def test_nor_one_that_dies_while_its_tokenizer_is_waited_for() -> None:
    """A worker that dies while its tokenizer is waited for is no reason to refuse: a provider
    answers the request, instead of a refusal ten seconds later.
    """
    async with open_without_files() as (gateway, worker), trio.open_nursery() as nursery:
        served_by: list[str] = []

        async def ask() -> None:
            served_by.append((await gateway.ask()).started.served_by)

        nursery.start_soon(ask)
        await wait_until(lambda: gateway.services.counters.turns_started == 1)
        worker.fail_engine()
        await wait_until(lambda: served_by == ["cloud:p0"])


async def test_nor_one_that_comes_back_with_another_tokenizer() -> None:
    """A worker comes back with another tokenizer: no worker has the old one, so a waiting request
    is answered with the new one.
    """
    worker: FakeWorker = WithoutFiles()
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        asked = gateway.start()
        await wait_until(lambda: gateway.services.counters.turns_started == 1)
        worker.fail_engine()
        worker.change_files()
        worker.register()
        await worker.wait(GetFiles, count=2)
        FakeWorker.say(worker, Files(worker.facts.files_digest, worker.files))
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.error is None
        assert asked.started.served_by == "worker"


async def test_a_worker_that_gives_nothing_is_left() -> None:
    """Within `first_token_s`; the next one answers, and it is told."""
    one, two = FakeWorker("w1"), FakeWorker("w2")
    one.pause_after = two.pause_after = 0
    async with (
        open_gateway(first_token_s=0.2) as gateway,
        open_worker(gateway.address, one),
        open_worker(gateway.address, two),
    ):
        await gateway.wait_workers(2)
        asked = gateway.start()
        await wait_until(lambda: bool(one.running or two.running))
        other = two if one.running else one
        other.pause_after = None
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.error is None
        assert asked.started.worker == other.name
        assert counts(gateway, "rerouted", "resumed") == [1, 0]


async def test_a_client_that_comes_again_goes_on_with_its_prefill() -> None:
    """One submission for two connections of one client; another key gets its own."""
    worker = FakeWorker()
    worker.pause_after = 0
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        first = gateway.start(Caller(key="alice"), stream=True)
        await worker.wait(Submit)
        first.scope.cancel()
        await wait_until(lambda: gateway.services.open_turns.num_detached == 1)
        other = gateway.start(Caller(key="bob"), stream=True)
        await worker.wait(Submit, count=2)
        second = gateway.start(Caller(key="alice"), stream=True)
        await wait_until(lambda: gateway.services.open_turns.num_detached == 0)
        worker.resume()
        with trio.fail_after(PATIENCE_S):
            await second.over.wait()
            await other.over.wait()
        assert second.text == other.text == "The weather in Athens is warm."
        assert len(worker.all_of(Submit)) == 2
        assert counts(gateway, "detached", "taken over") == [1, 1]


FAULTS = [
    {"status": 500},
    {"status": 401},
    {"status": 429},
    {"cut_after": 0},
    {"cut_after": 2},
    {"stream_error": True},
    {"words": ()},
    {"ends": False},
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stream", [True, False])
async def test_no_fault_of_a_provider_shows_addresses_or_keys(
    fault: dict[str, object], stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """No fault of a provider shows addresses or keys, to the client or in the log: the client gets
    one error, or an answer.
    """
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.WARNING, logger="httpx")  # as the gateway's process does
    fake = FakeProvider(**fault)  # type: ignore[arg-type]
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            asked = await gateway.ask(stream=stream)
        host = fake.base_url.split("/")[2]
    shown = [record.getMessage() for record in caplog.records]
    shown.append(asked.upstream.decode())
    if asked.error is not None:
        shown.append(asked.error.message)
    else:
        assert asked.upstream
    for text in shown:
        assert host not in text
        assert KEY not in text
        assert "Hi" not in text
