"""What operators are told of a lost place: why, and of which request."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest
import trio

from gateway.telemetry.event_feed import Listener
from gateway.turn.retry_policy import MAX_ERRORS
from protocol.messages import Bye, Finished, Submit
from tests.fakes.running_gateway import open_gateway
from tests.fakes.worker import PATIENCE_S, FakeWorker, open_worker


def finish(reason: Literal["abort", "error"]) -> Callable[[FakeWorker], None]:
    """End what runs there so, as an engine does that is not asked to."""

    def say(worker: FakeWorker) -> None:
        submit = worker.all_of(Submit)[-1]
        del worker.running[submit.request_id]
        worker.say(Finished(submit.request_id, submit.attempt, reason, 0, 0, 3, detail="no memory"))

    return say


def restart(worker: FakeWorker) -> None:
    """Start the engine anew at once, as `herma worker restart --force` does."""
    worker.running.clear()
    worker.epoch += 1
    worker.register(ready=False)
    worker.register()


def leave(worker: FakeWorker) -> None:
    worker.running.clear()
    worker.say(Bye("drained"))
    worker.register()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (finish("error"), "its engine failed on the request"),
        (finish("abort"), "it gave the work up"),
        (restart, "its engine was started anew"),
        (FakeWorker.register, "its link began anew"),
        (leave, "left: drained"),
        (FakeWorker.fail_engine, "its engine died"),
        (FakeWorker.die, ("its connection is gone", "silent for")),
    ],
)
@pytest.mark.parametrize("has_text", [True, False])
async def test_an_event_says_why_a_sequence_goes_elsewhere(
    fault: Callable[[FakeWorker], None], reason: str | tuple[str, ...], *, has_text: bool
) -> None:
    """In truth: out of reach, for one, is who has said nothing."""
    fake = FakeWorker("w1")
    fake.pause_after = 3 if has_text else 0
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        with gateway.services.feed.listen() as events:
            asked = gateway.start()
            await fake.wait(Submit)
            if has_text:
                await asked.wait_text()
            fault(fake)
            told = await _told(events, "resumed" if has_text else "rerouted")
        assert told["reason"].startswith(reason)
        assert told["worker"] == "w1"


async def _told(events: Listener, kind: str) -> Any:
    """The first event of that kind."""
    with trio.fail_after(PATIENCE_S):
        while True:
            await events.wait()
            for event in events.take()[1]:
                if event.kind == kind:
                    return msgspec.json.decode(event.json)


async def test_the_log_says_why_under_the_name_that_the_client_was_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The one that the events have, too."""
    fake = FakeWorker("w1")
    fake.pause_after = 0
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start()
        for attempt in range(1, MAX_ERRORS + 2):
            await fake.wait(Submit, count=attempt)
            finish("error")(fake)
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        name = fake.all_of(Submit)[0].request_id.hex()[:8]
        assert asked.error is not None
        assert f"(request {name})" in asked.error.message
        assert f"request {name} ends in an engine's error: no memory" in caplog.text
