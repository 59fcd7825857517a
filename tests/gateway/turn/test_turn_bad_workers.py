"""Turns on workers that break the protocol, and what their neighbours notice of it: nothing."""

import pytest
import trio

from protocol.messages import RejectReason, Submit, TokenItem, TokenLogprobs, Tokens
from protocol.tokens import pack_tokens
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.worker import PATIENCE_S, FakeWorker, open_worker

TEXT = "The weather in Athens is warm, and the stones are white."


async def test_the_stop_token_counts_though_it_is_not_sent() -> None:
    """An answer that is nothing but its end costs one token, as engines count."""
    async with open_gateway() as gateway, open_worker(gateway.address, FakeWorker(text="")):
        await gateway.wait_state("ready")
        asked = await gateway.ask()
        assert (asked.text, asked.reasons) == ("", ["stop"])
        assert asked.usage.completion_tokens == 1


async def test_a_limit_that_is_reached_without_a_token_is_no_answer() -> None:
    """An engine that says `length` at once has failed: the request moves, and only the right answer
    reaches the client.
    """
    fake = FakeWorker("w1", text=TEXT)
    fake.pause_after = 0
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start()
        await fake.wait(Submit)
        (sequence,) = fake.running.values()
        fake.pause_after = None
        fake.finish(sequence, "length")
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert (asked.text, asked.reasons) == (TEXT, ["stop"])
        assert len(fake.all_of(Submit)) == 2


async def test_last_tokens_that_are_missing_fail_the_link() -> None:
    """The end tells how many tokens were sent: an answer is never cut short silently."""
    fake = FakeWorker("w1", text=TEXT)
    fake.pause_after = 3
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start()
        await asked.wait_text()
        (sequence,) = fake.running.values()
        fake.pause_after = None
        sequence.num_sent += 1
        fake.finish(sequence, "stop")
        await wait_until(lambda: gateway.services.counters.offset_gaps == 1)
        fake.register()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.text == TEXT


async def test_a_move_before_the_first_token_reports_the_cache_of_the_worker_that_answers() -> None:
    """What a lost worker had cached was of no use to anybody."""
    messages = [{"role": "user", "content": "white stones " * 60}]
    fake = FakeWorker("w1", text=TEXT)
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        await gateway.ask(messages=messages)
        fake.pause_after = 0
        asked = gateway.start(messages=messages)
        await wait_until(lambda: bool(asked.events))
        assert asked.started.cached_tokens > 0
        fake.pause_after = None
        fake.fail_engine()
        fake.register()
        with trio.fail_after(PATIENCE_S):
            await asked.over.wait()
        assert asked.started.cached_tokens == asked.usage.cached_tokens == 0


async def test_more_tokens_than_ordered_fail_that_request_alone() -> None:
    """A worker that never ends fills no memory; the others on it go on."""
    fake = FakeWorker("w1", text=TEXT)
    fake.pause_after = 2
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        flooded, other = gateway.start(max_tokens=4), gateway.start()
        await flooded.wait_text()
        await other.wait_text()
        submit = next(s for s in fake.all_of(Submit) if s.sampling.max_tokens == 4)
        flood = TokenItem(submit.request_id, submit.attempt, 2, pack_tokens(range(10_000)))
        fake.say(Tokens(99, (flood,)))
        await wait_until(flooded.over.is_set)
        fake.resume()
        await wait_until(other.over.is_set)
        assert flooded.error is not None
        assert flooded.error is not None
        assert flooded.error.message == "upstream connection lost"
        assert other.text == TEXT
        assert gateway.services.dispatcher.statistics().running == 0


@pytest.mark.parametrize("num_scores", [1, 3])
async def test_log_probabilities_that_are_not_one_for_each_token_are_the_workers_fault(
    num_scores: int,
) -> None:
    """The client hears what makes it ask again, not that the gateway failed."""
    fake = FakeWorker("w1", text=TEXT)
    fake.pause_after = 2
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start(logprobs=True)
        await asked.wait_text()
        (submit,) = fake.all_of(Submit)
        scores = (TokenLogprobs(-1.0),) * num_scores
        item = TokenItem(submit.request_id, submit.attempt, 2, pack_tokens((5, 6)), scores)
        fake.say(Tokens(99, (item,)))
        await wait_until(asked.over.is_set)
        assert asked.error is not None
        assert asked.error.message == "upstream connection lost"


@pytest.mark.parametrize("reason", ["too_long", "invalid", "unknown_model"])
async def test_a_worker_that_refuses_a_resumed_answer_is_not_the_clients_fault(
    reason: RejectReason,
) -> None:
    """The beginning is out, so the client hears what makes it ask again, and not a 400."""
    fake = FakeWorker("w1", text=TEXT)
    fake.pause_after = 3
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start()
        await asked.wait_text()
        fake.rejections = [reason]
        fake.fail_engine()
        fake.register()
        await wait_until(asked.over.is_set)
        assert asked.error is not None
        assert asked.error.message == "upstream connection lost"


@pytest.mark.parametrize("num_sent", [0, 3])
async def test_tokens_never_go_to_a_worker_with_another_tokenizer(num_sent: int) -> None:
    """A model that was replaced under its name while a request was held gets none of its ids."""
    fake = FakeWorker("w1", text=TEXT)
    fake.pause_after = num_sent
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start(stream=True)
        await fake.wait(Submit)
        if num_sent:
            await asked.wait_text()
        fake.fail_engine()
        fake.change_files()
        fake.register()
        await wait_until(asked.over.is_set)
        assert len(fake.all_of(Submit)) == 1
        assert asked.error is not None
        if num_sent:
            assert asked.error.message == "upstream connection lost"
        else:
            assert (asked.error.status, asked.error.retry_after_s) == (503, 1)
        fake.pause_after = None
        assert (await gateway.ask()).text == TEXT
