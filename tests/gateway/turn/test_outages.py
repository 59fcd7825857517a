"""An engine begins to fail every request while a fallback is configured: how long nobody answers,
and what brings the engine back.
"""

import trio

from protocol.messages import Submit
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import RunningGateway, chain_of, open_gateway
from tests.fakes.worker import FakeWorker, open_worker

WITHOUT_S = 5.0
WITHOUT_REQUESTS = 5
"""The time without answers is at most this, or so many requests, whichever is later."""

BACK_S = 120.0
"""Beyond the longest hold of a worker that relapses."""


class Failing(FakeWorker):
    """A worker whose engine fails every request, probes included, while `is_broken`."""

    is_broken = False

    def _generate(self, request_id: bytes) -> None:
        if not self.is_broken:
            super()._generate(request_id)
            return
        self.finish(self.running[request_id], "error", "it broke")


async def ask(gateway: RunningGateway, number: int) -> tuple[bool, str]:
    """Whether the request was answered, and who did it."""
    asked = gateway.start(messages=[{"role": "user", "content": f"question {number}"}])
    with trio.fail_after(60):
        await asked.over.wait()
    served_by = asked.started.served_by if asked.error is None else ""
    return asked.error is None, served_by


async def test_an_outage_is_short_and_the_return_is_proven_by_tokens() -> None:
    """Requests that come one after the other, of which the engine fails each: unanswered are at
    most five, or those of the first five seconds. The engine is asked again once probes got tokens.
    """
    worker = Failing()
    async with open_provider(FakeProvider()) as provider:
        model, tables = chain_of({"far": provider})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address, worker),
        ):
            await gateway.wait_state("ready")
            assert (await ask(gateway, 0))[1] != "cloud:far"
            worker.is_broken = True
            began = trio.current_time()
            for number in range(1, 20):
                is_answered, _ = await ask(gateway, number)
                is_within = trio.current_time() - began <= WITHOUT_S or number <= WITHOUT_REQUESTS
                assert is_answered or is_within
            assert await ask(gateway, 20) == (True, "cloud:far")

            worker.is_broken = False
            num_heard = len(worker.all_of(Submit))
            with trio.fail_after(BACK_S):
                # Nobody announces what is awaited.
                while not gateway.services.dispatcher.statistics().ready_workers:  # noqa: ASYNC110
                    await trio.sleep(0.05)
            # No request was sent meanwhile, so these are probes, and they got tokens.
            assert len(worker.all_of(Submit)) > num_heard
            local = False
            for number in range(21, 60):
                is_answered, served_by = await ask(gateway, number)
                assert is_answered
                local = local or served_by != "cloud:far"
                await trio.sleep(0.1)
            assert local
