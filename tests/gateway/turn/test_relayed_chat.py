"""Chats on text-level engines: placing, refusals, failover, and the way back from providers."""

from collections.abc import Sequence

import msgspec
import pytest
import trio

from config import ModelConfig
from gateway.turn.caller import Caller
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
        self.words = "no"
        self.body = ANSWER

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
        refusal = msgspec.json.encode({"error": {"message": self.words}})
        body = self.body if status == 200 else refusal
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


async def test_an_engine_gets_the_forms_of_its_model() -> None:
    """Servers of Mistral's models refuse ids of calls that others made, some the newer field."""
    model = ModelConfig(name="alpha", cap_field="max_tokens", call_ids="nine")
    async with (
        open_gateway(models=[model]) as gateway,
        open_worker(gateway.address, TextWorker()) as worker,
    ):
        await gateway.wait_local()
        function = {"name": "f", "arguments": "{}"}
        call = {"id": "call_1", "type": "function", "function": function}
        messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
        ]
        await gateway.ask(messages=messages, max_completion_tokens=5)
        body = msgspec.json.decode((await worker.wait(Relay)).data)
    assert (body.get("max_tokens"), body.get("max_completion_tokens")) == (5, None)
    named = body["messages"][1]["tool_calls"][0]["id"]
    assert len(named) == 9
    assert body["messages"][2]["tool_call_id"] == named


class StreamingWorker(TextWorker):
    """Answers with a stream of two words."""

    def _answer(self, relay: Relay) -> None:
        ids = relay.request_id, relay.attempt
        chunks = [{"delta": {"content": word}, "finish_reason": None} for word in ("Warm", ".")]
        chunks.append({"delta": {}, "finish_reason": "stop"})
        events = [
            b"data: %b\n\n" % msgspec.json.encode({"choices": [{"index": 0, **one}]})
            for one in chunks
        ]
        data = b"".join([*events, b"data: [DONE]\n\n"])
        self.say(RelayTaken(*ids, len(relay.data)))
        self.say(RelayHead(*ids, 200, (("content-type", "text/event-stream"),)))
        self.say(RelayData(*ids, 0, data))
        self.say(RelayEnd(*ids, len(data)))


async def test_tokens_of_a_stream_are_counted_while_they_pass() -> None:
    """An engine that gives text tells its count at the end, if at all."""
    caller = Caller()
    async with open_gateway() as gateway, open_worker(gateway.address, StreamingWorker()):
        await gateway.wait_local()
        asked = await gateway.ask(caller, stream=True)
    assert asked.upstream.count(b"data: {") == 3
    assert caller.trace.output_tokens == 3


@pytest.mark.parametrize("first", ["4 requests run", 503, 429, 500])
async def test_a_full_or_failing_engine_is_asked_again(first: int | str) -> None:
    """A full or failing engine is asked again without the client's knowledge: load is no failure,
    and the client sees no single failure.
    """
    worker = TextWorker(statuses=[first])
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_local()
        asked = await gateway.ask()
        assert asked.upstream == ANSWER
        assert len(worker.all_of(Relay)) == 2


async def test_a_refusal_is_the_engines_own() -> None:
    """A 400 passes with its body."""
    worker = TextWorker(statuses=[400])
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_local()
        assert b"no" in (await gateway.ask()).upstream


async def test_an_engine_that_has_lost_its_model_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An engine that was started anew with another model has failed. The client's request is right
    and the path answered the probes, so the 404 counts against the engine. Events and log say what
    has happened.
    """
    worker = TextWorker(statuses=[404] * 9)
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_local()
        with gateway.services.feed.listen() as listener:
            error = (await gateway.ask()).error
            _, told = listener.take()
    assert error is not None
    assert (error.status, error.code) == (500, None)
    assert "t1 has no model `there` any more" in caplog.text
    reasons = {msgspec.json.decode(one.json)["reason"] for one in told if one.kind == "rerouted"}
    assert reasons == {"its engine failed on the request"}


async def test_the_log_has_the_words_of_an_engine_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Under the request's name, to which the client is referred."""
    worker = TextWorker(statuses=[500] * 9)
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_local()
        error = (await gateway.ask()).error
    assert error is not None
    assert "the gateway's log says why" in error.message
    assert "ends in an engine's error: t1 failed with status 500: no" in caplog.text


async def test_a_picture_that_the_model_cannot_see_is_no_failure_of_its_engine() -> None:
    """llama.cpp says 500 to it, so three clients with a screenshot took the worker from all."""
    worker = TextWorker(statuses=[500] * 9)
    worker.words = "image input is not supported - hint: you may need to provide the mmproj"
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_local()
        for text in ("a", "b", "c", "d"):
            asked = await gateway.ask(messages=[{"role": "user", "content": text}])
            refused = msgspec.json.decode(asked.upstream)["error"]
            assert refused["code"] == "unsupported_content_part"
            assert refused["message"] == worker.words
        assert len(worker.all_of(Relay)) == 4
        assert "worker unproven" not in {one.kind for one in gateway.services.feed.recent}


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
                with trio.fail_after(60):
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
