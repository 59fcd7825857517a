"""A shutdown that cannot wait: wherever turns are, their clients can still be told."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.link.model_files import WAIT_S
from protocol.messages import Abort, Files, Submit
from tests.fakes.provider import FakeProvider
from tests.fakes.running_gateway import Asked, RunningGateway, chain_of, open_gateway, wait_until
from tests.fakes.worker import PATIENCE_S, FakeWorker, open_worker


async def _cut(gateway: RunningGateway, *turns: Asked) -> None:
    open_turns = gateway.services.open_turns
    assert open_turns.count >= len(turns)
    with trio.fail_after(PATIENCE_S):
        assert await open_turns.cut() == len(turns)
        for turn in turns:
            await turn.over.wait()
            assert turn.error is not None
            assert turn.error.message == "upstream connection lost: the gateway is stopping"
            assert turn.error.code == "upstream_connection_lost"
    assert open_turns.count == 0


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 3}])
async def test_turns_at_a_worker_are_cut(fields: dict[str, Any]) -> None:
    """Whole, streamed, or of several choices: each is told, and its work is aborted."""
    num_choices = fields.get("n", 1)
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        worker.pause_after = 2
        asked = gateway.start(**fields)
        await worker.wait(Submit, count=num_choices)
        await asked.wait_text()
        await _cut(gateway, asked)
        await worker.wait(Abort, count=num_choices)
        assert gateway.services.dispatcher.statistics().running == 0


async def test_a_turn_whose_first_choice_is_over_is_cut() -> None:
    """A turn whose first choice is over, and which waits for the others, is cut too."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        worker.pause_after = 2
        asked = gateway.start(n=2)
        await worker.wait(Submit, count=2)
        await asked.wait_text()
        worker.finish(next(iter(worker.running.values())), "stop")
        await wait_until(lambda: bool(asked.reasons))
        await _cut(gateway, asked)


async def test_turns_that_queue_are_cut() -> None:
    """One for a worker's place, the other for the model's first worker."""
    async with open_gateway() as gateway:
        asked = gateway.start()
        await wait_until(lambda: gateway.services.dispatcher.statistics().queued == 1)
        await _cut(gateway, asked)
        assert gateway.services.dispatcher.statistics().queued == 0
        async with open_worker(gateway.address, FakeWorker(max_seqs=1)) as worker:
            await gateway.wait_state("ready")
            worker.pause_after = 2
            turns = [gateway.start(max_tokens=5_000, stream=True) for _ in range(4)]
            await wait_until(lambda: gateway.services.dispatcher.statistics().queued > 0)
            await _cut(gateway, *turns)


async def test_a_turn_that_waits_for_the_tokenizer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that waits for the tokenizer is cut; its worker is ready, and does not send the
    files.
    """
    worker = FakeWorker()
    say = worker.say
    monkeypatch.setattr(worker, "say", lambda told: None if isinstance(told, Files) else say(told))
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        turns = [gateway.start(), gateway.start(stream=True)]
        await wait_until(lambda: gateway.services.open_turns.count == 2)
        await wait_all_tasks_blocked(0.02)
        began_at = trio.current_time()
        await _cut(gateway, *turns)
        assert trio.current_time() - began_at < WAIT_S


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_at_a_provider_are_cut(*, stream: bool) -> None:
    """What waits for a socket is cut too."""
    fake = FakeProvider(delay_s=60)
    async with trio.open_nursery() as nursery:
        await nursery.start(fake.serve)
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            asked = gateway.start(stream=stream)
            await wait_until(lambda: bool(fake.requests))
            await _cut(gateway, asked)
        nursery.cancel_scope.cancel()


async def test_a_turn_that_cannot_be_reached_is_cut_later() -> None:
    """One that does neither wait for a bell nor in an interruptible block is tried again."""
    async with open_gateway() as gateway:
        open_turns = gateway.services.open_turns

        async def busy() -> None:
            task = open_turns.open()
            await trio.sleep(0.2)
            open_turns.close(task)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy)
            await wait_all_tasks_blocked()
            await open_turns.cut()
            assert open_turns.count == 0
