"""The retry policy: what operators learn of a lost place, and how much is tried again."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.counters import GatewayCounters
from gateway.telemetry.event_feed import EventFeed, Listener
from gateway.turn.retry_policy import FLOOR_PER_S, MAX_ERRORS, MOST, PER_REQUEST, RetryBudget
from protocol.messages import Abort, Bye, Finished, Submit, TokenItem, Tokens
from protocol.wire import encode
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.worker import PATIENCE_S, FakeWorker, open_worker


def finish(reason: Literal["abort", "error"]) -> Callable[[FakeWorker], None]:
    """End what runs there so, as an engine does that is not asked to."""

    def say(worker: FakeWorker) -> None:
        submit = worker.all_of(Submit)[-1]
        del worker.running[submit.request_id]
        worker.say(Finished(submit.request_id, submit.attempt, reason, 0, 0, 3, detail="no memory"))

    return say


def send_half_a_frame(worker: FakeWorker) -> None:
    """Then whole ones."""
    submit, offset = worker.all_of(Submit)[-1], worker.pause_after or 0
    frame = encode(Tokens(1, (TokenItem(submit.request_id, submit.attempt, offset, bytes(99)),)))
    worker.say_frame(frame[: len(frame) // 2])


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
        (send_half_a_frame, "it broke the protocol"),
        (restart, "its engine was restarted"),
        (FakeWorker.register, "its link was restarted"),
        (leave, "left: drained"),
        (FakeWorker.fail_engine, "its engine died"),
        (FakeWorker.die, ("its connection is gone", "silent for")),
    ],
)
@pytest.mark.parametrize("has_text", [True, False])
async def test_an_event_says_why_a_sequence_goes_elsewhere(
    fault: Callable[[FakeWorker], None], reason: str | tuple[str, ...], *, has_text: bool
) -> None:
    """An event says truly why a sequence goes elsewhere: a worker that is out of reach, for one, is
    one that sent nothing.
    """
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


async def test_a_first_token_that_is_late_moves_the_sequence() -> None:
    """Where another worker is; the attempt's work is aborted, and one answer fails no worker."""
    one, two = FakeWorker("w1"), FakeWorker("w2")
    one.pause_after = two.pause_after = 0
    async with (
        open_gateway(first_token_s=0.3) as gateway,
        open_worker(gateway.address, one),
        open_worker(gateway.address, two),
    ):
        await wait_until(lambda: gateway.services.dispatcher.statistics().ready_workers == 2)
        with gateway.services.feed.listen() as listener:
            asked = gateway.start()
            await wait_until(lambda: bool(one.all_of(Submit) or two.all_of(Submit)))
            holder, other = (one, two) if one.all_of(Submit) else (two, one)
            other.pause_after = None
            await holder.wait(Abort)
            with trio.fail_after(PATIENCE_S):
                await asked.over.wait()
            _, told = listener.take()
        reasons = [
            msgspec.json.decode(one.json)["reason"] for one in told if one.kind == "rerouted"
        ]
        assert reasons == ["no first token came in time"]
        assert asked.reasons == ["stop"]


def test_a_budget_is_spent_and_comes_back() -> None:
    """A spent budget comes back with time, and with requests."""
    feed, counters = EventFeed(), GatewayCounters()
    budget = RetryBudget(feed, counters)
    assert all(budget.may_retry("m", 0.0) for _ in range(int(MOST)))
    assert not budget.may_retry("m", 0.0)
    assert feed.counts["retry refused"] == 1
    counters.turns_started += round(1 / PER_REQUEST)
    assert budget.may_retry("m", 0.0)
    assert not budget.may_retry("m", 0.5 / FLOOR_PER_S)
    assert budget.may_retry("m", 1.5 / FLOOR_PER_S)


@given(st.lists(st.one_of(st.none(), st.floats(0, 10)), max_size=200))
def test_retries_are_a_share_of_requests_and_a_floor(steps: list[float | None]) -> None:
    """Never more than the first allowance, the share and what time gives."""
    counters, now, taken = GatewayCounters(), 0.0, 0
    budget = RetryBudget(EventFeed(), counters)
    for seconds in steps:
        if seconds is None:
            counters.turns_started += 1
        else:
            now += seconds
            taken += sum(budget.may_retry("m", now) for _ in range(10))
        assert taken <= MOST + counters.turns_started * PER_REQUEST + now * FLOOR_PER_S + 1e-6
