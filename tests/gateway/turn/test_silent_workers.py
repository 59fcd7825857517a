"""Workers that take a request and say nothing: it moves once, and ends in an answer or an error."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from protocol.messages import Abort, Relay, RelayData, RelayHead, RelayTaken, Submit
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import RunningGateway, chain_of, open_gateway, wait_until
from tests.fakes.worker import PATIENCE_S, FakeWorker, open_worker
from tests.gateway.turn.test_relayed_chat import ANSWER, TextWorker

BOUND_S = 0.3
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a "}}]}\n\n'
PING = b": ping\n\n"


class SilentText(TextWorker):
    """Takes exchanges; says only `said` to those after the first `num_good`."""

    def __init__(self, name: str = "t1", said: tuple[bytes, ...] = (), num_good: int = 0) -> None:
        super().__init__(name)
        self.said = said
        self.num_good = num_good

    def _answer(self, relay: Relay) -> None:
        if self.num_good:
            self.num_good -= 1
            super()._answer(relay)
            return
        ids, at = (relay.request_id, relay.attempt), 0
        self.say(RelayTaken(*ids, len(relay.data)))
        if self.said:
            self.say(RelayHead(*ids, 200, (("content-type", "text/event-stream"),)))
        for data in self.said:
            self.say(RelayData(*ids, at, data))
            at += len(data)


@asynccontextmanager
async def fleet(
    *workers: FakeWorker, provider: FakeProvider | None = None, **bounds: Any
) -> AsyncIterator[RunningGateway]:
    """A gateway with these workers, and a provider behind them."""
    bounds = {"first_token_s": BOUND_S, "stall_s": BOUND_S, "resume_wait_s": 1.0, **bounds}
    async with AsyncExitStack() as stack:
        if provider is not None:
            await stack.enter_async_context(open_provider(provider))
            model, tables = chain_of({"far": provider})
            bounds |= {"models": [model], "providers": tables}
        gateway = await stack.enter_async_context(open_gateway(**bounds))
        for worker in workers:
            await stack.enter_async_context(open_worker(gateway.address, worker))
        statistics = gateway.services.dispatcher.statistics
        await wait_until(lambda: statistics().ready_workers == len(workers))
        yield gateway


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("said", [(), (PING, PING)])
async def test_a_text_engine_that_never_answers_is_left_for_a_provider(
    said: tuple[bytes, ...], streamed: bool
) -> None:
    """Comments are no answer."""
    if said and not streamed:
        said = (b" ", b" ")
    async with fleet(SilentText(said=said), provider=FakeProvider()) as gateway:
        asked = await gateway.ask(stream=streamed)
        assert asked.error is None
        assert asked.started.served_by == "cloud:far"


async def test_a_text_engine_that_never_answers_is_left_for_another() -> None:
    silent, good = SilentText("t1"), TextWorker("t2")
    async with fleet(silent, good) as gateway:
        answers = [await gateway.ask(messages=[{"role": "user", "content": f"{n}"}]) for n in "ab"]
        assert [one.upstream for one in answers] == [ANSWER, ANSWER]


@pytest.mark.parametrize("make", [SilentText, FakeWorker])
async def test_a_silent_worker_alone_ends_in_one_error(make: Callable[[], FakeWorker]) -> None:
    """A silent worker alone ends in one error, after its second place, which has four times as
    long.
    """
    worker = make()
    worker.pause_after = 0
    async with fleet(worker) as gateway:
        asked = await gateway.ask()
        assert asked.error is not None
        assert (asked.error.status, asked.error.code) == (504, "no_answer")
        kind = Relay if isinstance(worker, SilentText) else Submit
        assert len(worker.all_of(kind)) == 2


@pytest.mark.parametrize("alone", [True, False])
async def test_a_stream_that_stands_still_goes_on_elsewhere(alone: bool) -> None:
    """A stream that stands still goes on elsewhere with all of its text, also on the same worker;
    others there are not asked.
    """
    workers = [FakeWorker("w1")] if alone else [FakeWorker("w1"), FakeWorker("w2")]
    for worker in workers:
        worker.pause_after = 3
    async with fleet(*workers) as gateway:
        asked = gateway.start()
        await wait_until(lambda: any(worker.all_of(Abort) for worker in workers))
        for worker in workers:
            worker.resume()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.error is None
        assert asked.text == "The weather in Athens is warm."


async def test_three_silent_requests_make_the_worker_unproven() -> None:
    """Three silent requests make the worker unproven. It gets no more requests, its probe fails,
    and its engine is ended.
    """
    worker = FakeWorker()
    worker.pause_after = 0
    async with fleet(worker, provider=FakeProvider()) as gateway:
        for number in range(3):
            await gateway.ask(messages=[{"role": "user", "content": f"{number}"}])
        (view,) = gateway.services.dispatcher.workers()
        assert view.state == "unproven"
        num_asked = len(worker.all_of(Submit))
        assert (await gateway.ask()).started.served_by == "cloud:far"
        probes = worker.all_of(Submit)[num_asked:]
        assert all(one.sampling.max_tokens == 4 for one in probes)
        worker.resume()
        await gateway.wait_local()
        assert (await gateway.ask()).started.served_by == "worker"


async def test_a_retry_does_not_wait_for_a_request_that_hangs_for_ever() -> None:
    """A retry takes over the request of a client that left, and does not wait for it at a worker
    that hangs: it is moved as any other.
    """
    worker = FakeWorker()
    worker.pause_after = 0
    async with fleet(worker, provider=FakeProvider(), first_token_s=1.0) as gateway:
        first = gateway.start(stream=True)
        await worker.wait(Submit)
        first.scope.cancel()
        second = await gateway.ask(stream=True)
        assert second.error is None
        assert second.started.served_by == "cloud:far"


async def test_a_text_stream_that_only_pings_after_content_is_cut() -> None:
    worker = SilentText(said=(WORD, WORD))
    async with fleet(worker) as gateway:
        asked = gateway.start(stream=True)
        relay = await worker.wait(Relay)
        at = 2 * len(WORD)
        with trio.fail_after(PATIENCE_S):
            while not asked.over.is_set():
                worker.say(RelayData(relay.request_id, relay.attempt, at, PING))
                at += len(PING)
                await trio.sleep(0.05)
        assert asked.error is not None
        assert asked.error.code == "upstream_connection_lost"
