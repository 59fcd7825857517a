"""Workers that break the protocol about a request: another worker goes on with it, and the client
gets each token once.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec
import pytest
import trio

from protocol.messages import (
    Abort,
    Bundle,
    Finished,
    RejectReason,
    Relay,
    RelayHead,
    Submit,
    TokenItem,
    TokenLogprobs,
    Tokens,
)
from protocol.tokens import pack_tokens, unpack_tokens
from protocol.wire import encode, tag_of
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import Asked, chain_of, open_gateway, wait_until
from tests.fakes.text_files import make_tokenizer
from tests.fakes.worker import PATIENCE_S, FakeSequence, FakeWorker, open_worker
from tests.gateway.turn.test_relayed_chat import ANSWER, TextWorker

TEXT = "The weather in Athens is warm, and the stones are white."
LOST = "upstream connection lost"
UNKNOWN_TAG = 127


def _next_tokens(sequence: FakeSequence, ids: bytes = pack_tokens((5, 6))) -> TokenItem:
    submit = sequence.submit
    return TokenItem(submit.request_id, submit.attempt, sequence.num_sent, ids)


def torn_ids(sequence: FakeSequence) -> bytes:
    return encode(Tokens(99, (_next_tokens(sequence, pack_tokens((5, 6))[:-1]),)))


def scores_of_others(sequence: FakeSequence) -> bytes:
    scores = (TokenLogprobs(-1.0),) * 3
    item = msgspec.structs.replace(_next_tokens(sequence), logprobs=scores)
    return encode(Tokens(99, (item,)))


def flood(sequence: FakeSequence) -> bytes:
    return encode(Tokens(99, (_next_tokens(sequence, pack_tokens(range(100_000))),)))


def cut_tokens(sequence: FakeSequence) -> bytes:
    return encode(Tokens(99, (_next_tokens(sequence),)))[:-1]


def cut_behind_the_id(sequence: FakeSequence) -> bytes:
    frame = encode(Tokens(99, (_next_tokens(sequence),)))
    return frame[: frame.index(sequence.submit.request_id) + 16]


def another_type(sequence: FakeSequence) -> bytes:
    submit = sequence.submit
    item = [submit.request_id, submit.attempt, "two", b"", []]
    return msgspec.msgpack.encode([tag_of(Tokens), 99, [item]])


def cut_end(sequence: FakeSequence) -> bytes:
    submit = sequence.submit
    end = Finished(submit.request_id, submit.attempt, "stop", 1, 0, sequence.num_sent + 1, 1)
    return encode(end)[:-1]


def cut_in_a_bundle(sequence: FakeSequence) -> bytes:
    return encode(Bundle((cut_tokens(sequence),)))


def cut_bundle(sequence: FakeSequence) -> bytes:
    return encode(Bundle((encode(Tokens(99, (_next_tokens(sequence),))),)))[:-1]


def nested_bundle(sequence: FakeSequence) -> bytes:
    return encode(Bundle((encode(Bundle((cut_tokens(sequence),))),)))


Way = Callable[[FakeSequence], bytes]
READABLE = (torn_ids, scores_of_others, flood)
UNREADABLE = (
    cut_tokens,
    cut_behind_the_id,
    another_type,
    cut_end,
    cut_in_a_bundle,
    cut_bundle,
    nested_bundle,
)


def _workers(*names: str, num_sent: int = 0) -> list[FakeWorker]:
    """Workers that pause behind so many tokens."""
    workers = [FakeWorker(name, text=TEXT) for name in names]
    for worker in workers:
        worker.pause_after = num_sent
    return workers


async def _over(asked: Asked) -> None:
    with trio.fail_after(PATIENCE_S):
        await asked.over.wait()


async def _holder(workers: list[FakeWorker]) -> FakeWorker:
    """The worker that has the only request."""
    await wait_until(lambda: any(worker.running for worker in workers))
    (holder,) = (worker for worker in workers if worker.running)
    return holder


@pytest.mark.parametrize("num_sent", [0, 3, 9])
@pytest.mark.parametrize("way", [*READABLE, *UNREADABLE])
async def test_another_worker_goes_on(way: Way, num_sent: int) -> None:
    """At once, behind the tokens so far; what the first one still sends is not taken."""
    workers = _workers("w1", "w2", num_sent=num_sent)
    one, two = workers
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, one),
        open_worker(gateway.address, two),
    ):
        await gateway.wait_workers(2)
        asked = gateway.start(stream=True)
        holder = await _holder(workers)
        other = two if holder is one else one
        if num_sent:
            await asked.wait_text(len("The weather"))
        (sequence,) = holder.running.values()
        assert sequence.num_sent == num_sent
        other.pause_after = None
        with gateway.services.feed.listen() as events:
            holder.say_frame(way(sequence))
            holder.resume()
            await _over(asked)
            told = [msgspec.json.decode(one.json) for one in events.take()[1]]
        moved = [(one["event"], one["reason"]) for one in told if "reason" in one]
        assert moved == [("resumed" if num_sent else "rerouted", "it broke the protocol")]
        assert asked.error is None
        assert (asked.text, asked.reasons) == (TEXT, ["stop"])
        assert asked.usage.completion_tokens == len(holder.script)
        (resumed,) = other.all_of(Submit)
        assert list(unpack_tokens(resumed.output_ids)) == holder.script[:num_sent]
        assert len(holder.all_of(Submit)) == 1
        assert gateway.services.counters.workers_lost == 0
        assert gateway.services.dispatcher.statistics().running == 0


@pytest.mark.parametrize("reason", ["too_long", "invalid", "unknown_model"])
async def test_an_answer_that_one_worker_refuses_goes_on_at_another(reason: RejectReason) -> None:
    """Also at the one that began it and has a new engine."""
    workers = _workers("w1", "w2", num_sent=3)
    one, two = workers
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, one),
        open_worker(gateway.address, two),
    ):
        await gateway.wait_workers(2)
        asked = gateway.start()
        holder = await _holder(workers)
        other = two if holder is one else one
        await asked.wait_text()
        other.rejections = [reason]
        holder.pause_after = None
        with gateway.services.feed.listen() as events:
            holder.fail_engine()
            holder.register()
            await _over(asked)
            told = [msgspec.json.decode(one.json) for one in events.take()[1]]
        reasons = [one["reason"] for one in told if one["event"] == "resumed"]
        assert reasons == ["its engine died", "it refused the rest of an answer"]
        assert (asked.error, asked.text, asked.reasons) == (None, TEXT, ["stop"])
        assert len(other.all_of(Submit)) == 1
        assert len(holder.all_of(Submit)) == 2


@pytest.mark.parametrize("num_sent", [0, 3])
@pytest.mark.parametrize("way", [torn_ids, scores_of_others])
async def test_without_another_worker_the_client_asks_again(way: Way, num_sent: int) -> None:
    """At once, also when the worker is no longer trusted: the request would wait for it in vain."""
    (worker,) = _workers("w1", num_sent=num_sent)
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_workers(1)
        for number in range(3):
            asked = gateway.start(messages=[{"role": "user", "content": f"{number}"}])
            await worker.wait(Submit, count=number + 1)
            if num_sent:
                await asked.wait_text()
            (sequence,) = worker.running.values()
            worker.say_frame(way(sequence))
            await _over(asked)
            assert asked.error is not None
            assert asked.error.message == LOST
            await worker.wait(Abort, count=number + 1)
        (view,) = gateway.services.dispatcher.workers()
        assert view.state == "unproven"


@pytest.mark.parametrize("num_sent", [0, 3, 9])
@pytest.mark.parametrize("way", UNREADABLE)
async def test_the_only_worker_goes_on_behind_an_unreadable_frame(way: Way, num_sent: int) -> None:
    """It is asked again, as behind any error of an engine."""
    (worker,) = _workers("w1", num_sent=num_sent)
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_workers(1)
        asked = gateway.start(stream=True)
        await worker.wait(Submit)
        if num_sent:
            await asked.wait_text(len("The weather"))
        (sequence,) = worker.running.values()
        worker.pause_after = None
        worker.say_frame(way(sequence))
        await _over(asked)
        assert (asked.error, asked.text, asked.reasons) == (None, TEXT, ["stop"])
        assert asked.usage.completion_tokens == len(worker.script)
        assert len(worker.all_of(Submit)) == 2


async def test_the_third_unreadable_frame_ends_the_request() -> None:
    """It counts each time; the client gets one error, not a wait."""
    (worker,) = _workers("w1", num_sent=3)
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_workers(1)
        asked = gateway.start(stream=True)
        for number in range(3):
            await worker.wait(Submit, count=number + 1)
            await asked.wait_text()
            (sequence,) = worker.running.values()
            worker.say_frame(cut_tokens(sequence))
            await worker.wait(Abort, count=number + 1)
        await _over(asked)
        assert asked.error is not None
        assert asked.error.status == 500
        assert asked.text == worker_text(worker, 3)


def worker_text(worker: FakeWorker, num_tokens: int) -> str:
    """The text of the worker's first tokens."""
    return make_tokenizer().decode(worker.script[:num_tokens])


async def test_workers_that_all_break_the_protocol_are_asked_once_each() -> None:
    workers = _workers("w1", "w2", "w3")
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(open_gateway())
        for worker in workers:
            await stack.enter_async_context(open_worker(gateway.address, worker))
        await gateway.wait_workers(3)
        asked = gateway.start()
        for _ in workers:
            holder = await _holder(workers)
            (sequence,) = holder.running.values()
            holder.say_frame(torn_ids(sequence))
            await holder.wait(Abort)
        await _over(asked)
        assert asked.error is not None
        assert asked.error.message == LOST
        assert [len(worker.all_of(Submit)) for worker in workers] == [1, 1, 1]


@pytest.mark.parametrize("way", [torn_ids, cut_tokens])
async def test_a_provider_answers_what_has_not_begun(way: Way) -> None:
    (worker,) = _workers("w1")
    async with open_provider(FakeProvider()) as provider:
        model, tables = chain_of({"far": provider})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address, worker),
        ):
            await gateway.wait_local()
            asked = gateway.start(stream=True)
            await worker.wait(Submit)
            (sequence,) = worker.running.values()
            worker.say_frame(way(sequence))
            await _over(asked)
            assert asked.error is None
            assert asked.started.served_by == "cloud:far"


async def test_surplus_tokens_behind_a_whole_answer_take_nothing_away() -> None:
    """All tokens that were ordered have come."""
    (worker,) = _workers("w1", num_sent=3)
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_workers(1)
        asked = gateway.start(max_tokens=3)
        await asked.wait_text()
        (sequence,) = worker.running.values()
        worker.say_frame(flood(sequence))
        await _over(asked)
        assert (asked.error, asked.reasons) == (None, ["length"])
        assert asked.usage.completion_tokens == 3


async def test_what_may_be_of_a_newer_worker_or_of_another_moves_nothing() -> None:
    """A message that is not known names the request, and so does a worker that does not have it."""
    workers = _workers("w1", "w2", num_sent=3)
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, workers[0]),
        open_worker(gateway.address, workers[1]),
    ):
        await gateway.wait_workers(2)
        asked = gateway.start()
        holder = await _holder(workers)
        await asked.wait_text()
        (sequence,) = holder.running.values()
        (other,) = (worker for worker in workers if worker is not holder)
        submit = sequence.submit
        holder.say_frame(
            msgspec.msgpack.encode([UNKNOWN_TAG, submit.request_id, submit.attempt, 5])
        )
        other.say_frame(cut_tokens(sequence))
        other.say_frame(cut_end(sequence))
        await wait_until(lambda: gateway.services.counters.frames_garbage == 3)
        holder.resume()
        await _over(asked)
        assert (asked.error, asked.text) == (None, TEXT)
        assert not other.all_of(Submit)


class _CutHeads(TextWorker):
    """A text engine's worker that answers with frames that cannot be read."""

    def _answer(self, relay: Relay) -> None:
        ids = relay.request_id, relay.attempt
        self.say_frame(encode(RelayHead(*ids, 200, ()))[:-1])


async def test_an_exchange_with_a_text_engine_moves_as_well() -> None:
    broken, good = _CutHeads("t1"), TextWorker("t2")
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address, broken),
        open_worker(gateway.address, good),
    ):
        await gateway.wait_workers(2)
        answers = [await gateway.ask(messages=[{"role": "user", "content": f"{n}"}]) for n in "ab"]
        assert [one.upstream for one in answers] == [ANSWER, ANSWER]
        assert broken.all_of(Relay)
