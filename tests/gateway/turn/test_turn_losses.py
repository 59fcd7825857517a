"""Turns whose worker, engine or link is lost on the way."""

import pytest
import trio

from gateway.routing.breaker import FAILURES
from gateway.routing.quarantine import POISON_STRIKES, PROOF_TOKENS
from gateway.turn.retry_policy import MAX_ERRORS
from protocol.messages import (
    Abort,
    Accepted,
    Bundle,
    Bye,
    Fault,
    Finished,
    FromWorker,
    Rejected,
    Submit,
)
from protocol.tokens import count_tokens
from protocol.wire import encode
from tests.fakes.running_gateway import Asked, RunningGateway, open_gateway, wait_until
from tests.fakes.worker import PATIENCE_S, FakeWorker, open_worker

TEXT = "The weather in Athens is warm, and the stones are white."


def paused(name: str, after: int | None = None) -> FakeWorker:
    worker = FakeWorker(name, text=TEXT)
    worker.pause_after = after
    return worker


async def start_on(
    gateway: RunningGateway, one: FakeWorker, two: FakeWorker
) -> tuple[Asked, FakeWorker, FakeWorker]:
    """A turn that has text, the worker that has it, and the other one, which does not pause."""
    await gateway.wait_workers(2)
    asked = gateway.start()
    await asked.wait_text()
    holder, other = (one, two) if one.running else (two, one)
    other.pause_after = None
    return asked, holder, other


async def begun(gateway: RunningGateway) -> Asked:
    """A stream of which text is out."""
    await gateway.wait_state("ready")
    asked = gateway.start()
    await asked.wait_text()
    return asked


async def test_a_stream_of_a_model_that_only_its_worker_named_goes_on_when_that_is_back() -> None:
    """The model is not forgotten while somebody waits for it; nobody new waits by then."""
    one = paused("w1", 3)
    async with open_gateway(models=(), rejoin_wait_s=0.1) as gateway:
        async with open_worker(gateway.address, one):
            asked = await begun(gateway)
        await wait_until(lambda: gateway.services.dispatcher.statistics().queued == 1)
        await trio.sleep(1.0)
        error = (await gateway.ask()).error
        assert error is not None
        assert error.status == 503
        async with open_worker(gateway.address, paused("w1")):
            with trio.fail_after(PATIENCE_S):
                await asked.over.wait()
            assert asked.text == TEXT
        await wait_until(lambda: not gateway.services.dispatcher.models())
        error = (await gateway.ask()).error
        assert error is not None
        assert error.status == 404


@pytest.mark.parametrize("fault", ["die", "fail_engine"])
async def test_a_stream_goes_on_at_another_worker(fault: str) -> None:
    """The text equals the undisturbed one when the host or the engine dies in the middle."""
    one, two = paused("w1", 3), paused("w2", 3)
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, one),
        open_worker(gateway.address, two),
    ):
        asked, holder, other = await start_on(gateway, one, two)
        getattr(holder, fault)()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT
        assert asked.reasons == ["stop"]
        assert asked.usage.completion_tokens == len(one.script)
        resumed = other.all_of(Submit)[0]
        first = holder.all_of(Submit)[0]
        assert count_tokens(resumed.output_ids) == 3
        assert resumed.attempt == 2
        assert (resumed.seed, resumed.request_id) == (first.seed, first.request_id)
        assert asked.started.worker == other.name
        assert gateway.services.counters.sequences_resumed == 1
        assert gateway.services.dispatcher.statistics().running == 0


async def test_a_stream_is_held_until_the_only_worker_is_back() -> None:
    """With one worker the stream pauses while the engine restarts, then goes on."""
    fake = paused("w1", 4)
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        asked = await begun(gateway)
        fake.pause_after = None
        fake.fail_engine()
        await gateway.wait_state("starting")
        assert asked.text != TEXT
        assert TEXT.startswith(asked.text)
        fake.register()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT


async def test_a_stream_whose_only_worker_gives_up_ends_at_once() -> None:
    """With the words on which clients try again: nobody is coming who could go on with it. Just
    after the gateway's start others may yet come, for `rejoin_wait_s`.
    """
    fake = paused("w1", 4)
    async with open_gateway(rejoin_wait_s=0.1) as gateway, open_worker(gateway.address, fake):
        asked = await begun(gateway)
        fake.fail_engine()
        await gateway.wait_state("starting")
        fake.say(Fault("w1", fake.epoch, "stopped after 5 starts", 127, is_final=True))
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert TEXT.startswith(asked.text)
        assert asked.error is not None
        assert (asked.error.status, asked.error.code) == (502, "upstream_connection_lost")


class RefusesAndDies(FakeWorker):
    """Has no room for the first that it is sent, and its engine is gone in the same moment."""

    def say(self, message: FromWorker) -> None:
        """Send the refusal and the death in one frame."""
        if not isinstance(message, Accepted) or self.epoch > 1:
            super().say(message)
            return
        refusal = Rejected(message.request_id, message.attempt, "busy")
        fault = Fault(self.name, self.epoch, "killed", 137)
        self.epoch += 1
        super().say(Bundle((encode(refusal), encode(fault))))
        self.register(ready=False)


async def test_a_refusal_of_an_engine_that_is_gone_is_a_loss() -> None:
    """There is no place to give back: another worker is asked."""
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, RefusesAndDies("w1", text=TEXT)) as worker,
        open_worker(gateway.address, FakeWorker("w2", text=TEXT)),
    ):
        await gateway.wait_workers(2)
        while worker.epoch == 1:
            asked = await gateway.ask()
            assert asked.error is None
            assert asked.text == TEXT
            assert asked.started.worker == "w2"


async def test_a_silent_worker_is_lost_within_a_second() -> None:
    """A worker that answers no ping is given up, though its connection stands."""
    one, two = paused("w1", 3), paused("w2", 3)
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, one),
        open_worker(gateway.address, two),
    ):
        asked, holder, other = await start_on(gateway, one, two)
        holder.answers_pings = False
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT
        assert other.all_of(Submit)
        assert gateway.services.counters.workers_lost == 1


async def test_tokens_of_a_lost_worker_are_dropped() -> None:
    """A worker that was given up and speaks again adds nothing to the answer."""
    one, two = paused("w1", 3), paused("w2", 3)
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, one),
        open_worker(gateway.address, two),
    ):
        asked, holder, other = await start_on(gateway, one, two)
        other.pause_after = 5
        holder.answers_pings = False
        await other.wait(Submit)
        holder.resume()
        counters = gateway.services.counters
        await wait_until(lambda: counters.frames_from_strangers > 0)
        other.resume()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT


async def test_tokens_of_a_stale_attempt_are_dropped() -> None:
    """After a re-registration of the same worker, tokens of the earlier attempt count as stale."""
    fake = paused("w1", 3)
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        asked = await begun(gateway)
        (old,) = fake.running.values()
        fake.pause_after = 5
        fake.register()
        await fake.wait(Submit, count=2)
        fake._send_tokens(old, fake.script[3:])
        await wait_until(lambda: gateway.services.counters.items_stale > 0)
        fake.resume()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT


async def test_a_gap_in_the_tokens_fails_the_link() -> None:
    """A worker that skips tokens is given up and its work goes on elsewhere."""
    one, two = paused("w1", 3), paused("w2", 3)
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, one),
        open_worker(gateway.address, two),
    ):
        asked, holder, _other = await start_on(gateway, one, two)
        (sequence,) = holder.running.values()
        sequence.num_sent += 1
        holder.resume()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT
        assert gateway.services.counters.offset_gaps == 1


async def test_a_worker_that_left_and_came_back_is_told_nothing_twice() -> None:
    """Bye and Register on one connection: the work is submitted anew, as another attempt."""
    fake = paused("w1", 3)
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        asked = await begun(gateway)
        fake.running.clear()
        fake.pause_after = None
        fake.say(Bye("the link was lost"))
        fake.register()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT
        assert [submit.attempt for submit in fake.all_of(Submit)] == [1, 2]


async def test_an_abort_that_nobody_asked_for_is_a_loss() -> None:
    """A worker that gives a sequence up by itself does not end the answer."""
    fake = paused("w1", 3)
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        asked = await begun(gateway)
        fake.pause_after = None
        submit = fake.all_of(Submit)[0]
        fake._aborted(submit.request_id, submit.attempt)
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT


async def test_an_answer_that_was_complete_needs_no_other_worker() -> None:
    """All tokens came, only the word of the end was lost: the answer ends."""
    fake = paused("w1")
    fake.pause_after = len(fake.script) - 1
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start()
        await asked.wait_text(len(TEXT))
        (sequence,) = fake.running.values()
        fake._send_tokens(sequence, fake.script[-1:])
        fake.fail_engine()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT
        assert asked.reasons == ["stop"]
        assert len(fake.all_of(Submit)) == 1


async def test_a_request_that_kills_engines_is_given_up() -> None:
    """A request that was there at the third death is refused, and at once when it comes again, with
    a status on which clients do not retry.
    """
    fake = paused("w1", 0)
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start()
        for count in range(1, POISON_STRIKES + 1):
            await fake.wait(Submit, count=count)
            fake.fail_engine()
            fake.register()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.error is not None
        assert (asked.error.status, asked.error.code) == (422, "poisoned_request")
        again = await gateway.ask()
        assert again.error is not None
        assert again.error.code == "poisoned_request"
        assert len(fake.all_of(Submit)) == POISON_STRIKES
        assert gateway.services.feed.counts["poisoned request"] == 1
        fake.pause_after = None
        other = await gateway.ask(messages=[{"role": "user", "content": "Another"}])
        assert other.text == TEXT


@pytest.mark.parametrize("num_tokens", [PROOF_TOKENS - 1, PROOF_TOKENS])
async def test_the_death_of_a_proven_engine_is_no_strike(num_tokens: int) -> None:
    """What the request got there clears it; with one token less, it is suspected."""
    fake = paused("w1", num_tokens)
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start()
        await fake.wait(Submit)
        fake.fail_engine()
        fake.register()
        await fake.wait(Submit, count=2)
        records = gateway.services.dispatcher._core.quarantine.records
        assert bool(records) == (num_tokens < PROOF_TOKENS)
        fake.resume()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT


async def test_an_engine_that_fails_at_a_request_again_and_again_is_one_clear_error() -> None:
    """Twice it is asked again; then the client is told, and the engine's words stay in the log."""
    fake = paused("w1", 0)
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start()
        secret = "out of memory at 0x1234"
        with trio.fail_after(PATIENCE_S):
            for attempt in range(1, MAX_ERRORS + 2):
                submit = await fake.wait(Submit, count=attempt)
                assert submit.attempt == attempt
                fake.say(Finished(submit.request_id, attempt, "error", 0, 0, 0, detail=secret))
            await asked.over.wait()
        assert asked.error is not None
        assert asked.error.status == 500
        assert secret not in asked.error.message
        assert not fake.all_of(Abort)


async def test_an_engine_that_fails_once_is_not_noticed() -> None:
    """Out of memory in a step: another place goes on with the tokens that are there."""
    one, two = paused("w1", 3), paused("w2", 3)
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, one),
        open_worker(gateway.address, two),
    ):
        asked, holder, other = await start_on(gateway, one, two)
        submit = holder.all_of(Submit)[0]
        holder.say(Finished(submit.request_id, 1, "error", 0, 0, 3, detail="out of memory"))
        again = await other.wait(Submit)
        assert again.attempt == 2
        assert len(again.output_ids) == 3 * 4
        other.say(Finished(again.request_id, 2, "stop", 0, 0, 3))
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.error is None


async def test_a_short_answer_proves_its_worker_and_its_request_too() -> None:
    """The end of a short answer proves its worker and its request: the breaker closes, and the
    request is no longer on probation.
    """
    fake = FakeWorker("w1", text="Yes.")
    assert len(fake.script) < PROOF_TOKENS
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        fake.pause_after = 0
        asked = gateway.start()
        for attempt in range(1, FAILURES + 1):
            submit = await fake.wait(Submit, count=attempt)
            fake.say(Finished(submit.request_id, attempt, "error", 0, 0, 0, detail="no memory"))
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert gateway.services.feed.counts["breaker open"] == 1
        asked = gateway.start()
        await fake.wait(Submit, count=FAILURES + 1)
        fake.fail_engine()
        await wait_until(lambda: bool(gateway.services.dispatcher._core.quarantine.records))
        fake.pause_after = None
        fake.register()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == "Yes."
        assert gateway.services.feed.counts["breaker closed"] == 1
        assert not gateway.services.dispatcher._core.quarantine.records


async def test_messages_of_another_worker_change_nothing() -> None:
    """A worker cannot speak for a sequence of another one."""
    one, two = paused("w1", 3), paused("w2", 3)
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, one),
        open_worker(gateway.address, two),
    ):
        asked, holder, other = await start_on(gateway, one, two)
        submit = holder.all_of(Submit)[0]
        other.say(Accepted(submit.request_id, 1, 0))
        other.say(Finished(submit.request_id, 1, "stop", 0, 0, 0))
        await wait_until(lambda: gateway.services.counters.items_foreign == 2)
        assert not asked.over.is_set()
        holder.resume()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT
