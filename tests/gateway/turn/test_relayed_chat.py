"""Chats on text-level engines: placing, refusals, failover, and the way back from providers."""

from collections.abc import Sequence

import msgspec
import pytest
import trio

from protocol.messages import (
    Dismiss,
    Load,
    Rejected,
    Relay,
    RelayData,
    RelayEnd,
    RelayFacts,
    RelayHead,
    RelayTaken,
)
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.worker import FakeWorker, open_worker

ANSWER = msgspec.json.encode(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Warm."}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }
)


class TextWorker(FakeWorker):
    """Answers each exchange as `statuses` say, then with 200."""

    def __init__(self, name: str = "t1", statuses: Sequence[int | str] = ()) -> None:
        super().__init__(name)
        self.facts = msgspec.structs.replace(
            self.facts, relay=RelayFacts("there", ("x_refused",)), files_digest=bytes(16)
        )
        self.statuses = list(statuses)

    def _hear(self, frame: bytes) -> None:
        num_heard = len(self.heard)
        super()._hear(frame)
        for message in self.heard[num_heard:]:
            if isinstance(message, Relay):
                self._answer(message)

    def _answer(self, relay: Relay) -> None:
        ids = relay.request_id, relay.attempt
        status = self.statuses.pop(0) if self.statuses else 200
        if isinstance(status, str):
            self.say(Rejected(*ids, "busy", status))
            self.say(Load(self.epoch, 0, 0, 100, 100, 1, 0, 1.0, 1e4))
            return
        body = ANSWER if status == 200 else b'{"error": {"message": "no"}}'
        self.say(RelayTaken(*ids, len(relay.data)))
        self.say(RelayHead(*ids, status, (("content-type", "application/json"),)))
        self.say(RelayData(*ids, 0, body))
        self.say(RelayEnd(*ids, len(body)))


async def test_an_answer_and_its_count() -> None:
    """The engine's own bytes; the usage counts for this gateway too."""
    async with open_gateway() as gateway, open_worker(gateway.address, TextWorker()) as worker:
        await gateway.wait_local()
        asked = await gateway.ask(x_refused=1, x_kept=2)
        assert asked.upstream == ANSWER
        assert (asked.started.worker, asked.started.served_by) == ("t1", "worker")
        assert gateway.services.counters.completion_tokens == 2
        body = msgspec.json.decode((await worker.wait(Relay)).data)
        assert (body["model"], body["x_kept"]) == ("there", 2)
        assert "x_refused" not in body


@pytest.mark.parametrize("first", ["4 requests run", 503, 429, 500])
async def test_a_full_or_failing_engine_is_asked_again(first: int | str) -> None:
    """Nobody sees it: load is no failure, and one failure is none of the client's."""
    worker = TextWorker(statuses=[first])
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_local()
        asked = await gateway.ask()
        assert asked.upstream == ANSWER
        assert len(worker.all_of(Relay)) == 2


async def test_a_refusal_is_the_engines_own() -> None:
    """A 400 passes with its body; a path that the engine lacks is a 404 that says so."""
    worker = TextWorker(statuses=[400, 404])
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_local()
        assert b"no" in (await gateway.ask()).upstream
        error = (await gateway.ask()).error
        assert error is not None
        assert (error.status, error.code) == (404, "path_not_served")


async def test_tokens_and_text_do_not_mix() -> None:
    """The second worker of the model is refused, with the reason."""
    async with open_gateway() as gateway, open_worker(gateway.address):
        await gateway.wait_local()
        async with open_worker(gateway.address, TextWorker()) as other:
            dismissed = await other.wait(Dismiss)
            assert "takes tokens and the other text" in dismissed.reason


async def test_the_way_back_from_a_provider() -> None:
    """Health probes in text prove the worker; then it answers."""
    async with open_provider(FakeProvider()) as provider:
        model, tables = chain_of({"far": provider})
        async with open_gateway(models=[model], providers=tables) as gateway:
            first = await gateway.ask()
            assert first.started.served_by == "cloud:far"
            async with open_worker(gateway.address, TextWorker()) as worker:
                await worker.wait(Relay, count=3)
                with trio.fail_after(10):
                    while (await gateway.ask()).started.served_by != "worker":  # noqa: ASYNC110
                        await trio.sleep(0.05)


@pytest.mark.parametrize("status", [404, 429])
async def test_another_engine_is_asked_where_one_does_not_serve(status: int) -> None:
    """Beside a well one nobody sees it, whichever is asked first."""
    bad, well = TextWorker("bad", statuses=[status] * 50), TextWorker("well")
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, bad),
        open_worker(gateway.address, well),
    ):
        await gateway.wait_workers(2)
        for _ in range(4):
            asked = await gateway.ask()
            assert (asked.error, asked.started.worker) == (None, "well")


async def test_an_engine_that_is_full_for_ever_is_not_awaited_for_ever() -> None:
    """The client is told when to ask again; with a provider that one answers."""
    full = TextWorker(statuses=[429] * 10_000)
    async with open_gateway(resume_wait_s=0.3) as gateway, open_worker(gateway.address, full):
        await gateway.wait_local()
        error = (await gateway.ask()).error
        assert error is not None
        assert error.retry_after_s
        assert error.status in {429, 503}
    async with open_provider(FakeProvider()) as provider:
        model, tables = chain_of({"far": provider})
        full = TextWorker(statuses=[429] * 10_000)
        async with (
            open_gateway(models=[model], providers=tables, resume_wait_s=0.3) as gateway,
            open_worker(gateway.address, full),
        ):
            await gateway.wait_local()
            assert (await gateway.ask()).started.served_by == "cloud:far"
