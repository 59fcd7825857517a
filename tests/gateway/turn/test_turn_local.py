"""Turns on workers: real frames over loopback."""

import gc
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from gateway.api.chat_parser import parse_chat_request
from gateway.api.events import ChoiceFinished, ToolCallStart, TurnEvent, Usage
from gateway.api.request import ChatRequest
from gateway.link.attempts import Attempt
from gateway.routing.breaker import FAILURES
from gateway.turn.caller import Caller
from gateway.turn.sequence_run import SequenceRun
from gateway.turn.turn import answer_request
from protocol.messages import Abort, Submit
from protocol.tokens import count_tokens
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.worker import FakeWorker, open_worker, prompt_ids

TEXT = "The weather in Athens is warm."


async def test_a_turn_is_answered_by_a_worker() -> None:
    """Text, end, usage and the facts of the route come as events, in order."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        asked = await gateway.ask()
        assert asked.text == TEXT
        assert asked.reasons == ["stop"]
        assert asked.started.served_by == "worker"
        assert asked.started.worker == "w1"
        submit = await worker.wait(Submit)
        assert asked.usage.prompt_tokens == len(prompt_ids(submit))
        assert asked.usage.completion_tokens == len(worker.script)
        assert not worker.all_of(Abort)
        assert gateway.services.dispatcher.statistics().running == 0


def _request(**fields: Any) -> ChatRequest:
    body = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return parse_chat_request(msgspec.json.encode(body))


async def test_the_end_is_told_while_its_frame_is_taken_apart() -> None:
    """The client need not wait until the turn wakes, which is when its place is free again."""
    running: list[int] = []

    def note(event: TurnEvent) -> None:
        if isinstance(event, ChoiceFinished | Usage):
            running.append(gateway.services.dispatcher.statistics().running)

    async with open_gateway() as gateway, open_worker(gateway.address):
        await gateway.wait_state("ready")
        await answer_request(gateway.services, _request(), Caller(), note)
        assert running == [1, 1]
        assert gateway.services.dispatcher.statistics().running == 0
        assert gateway.services.counters.completion_tokens > 0


async def test_who_cannot_take_the_end_fails_alone() -> None:
    """The frame's other parts, the link and the worker's name are none the worse for it: three of
    them in a row were taken for failures of the worker.
    """
    refused: list[str] = []

    def refuse(event: TurnEvent) -> None:
        if isinstance(event, ChoiceFinished):
            raise ValueError("no room for the end")  # noqa: TRY004 - of a type that nobody expects

    async def ask() -> None:
        with pytest.raises(ValueError, match="no room") as raised:
            await answer_request(gateway.services, _request(), Caller(), refuse)
        refused.append(str(raised.value))

    fake = FakeWorker("w1", text=TEXT)
    fake.pause_after = 2
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        async with trio.open_nursery() as nursery:
            for _ in range(FAILURES):
                nursery.start_soon(ask)
            await wait_until(
                lambda: [each.num_sent for each in fake.running.values()] == [2] * FAILURES
            )
            fake.resume()
        assert len(refused) == FAILURES
        assert not gateway.services.feed.counts["breaker open"]
        assert (await gateway.ask()).reasons == ["stop"]
        assert gateway.services.counters.workers_lost == 0


async def test_the_second_turn_reports_what_the_cache_held() -> None:
    """A prompt that was seen before has cached tokens, as the worker counts them."""
    async with open_gateway() as gateway, open_worker(gateway.address):
        await gateway.wait_state("ready")
        messages = [{"role": "user", "content": "white stones " * 100}]
        assert (await gateway.ask(messages=messages)).usage.cached_tokens == 0
        again = await gateway.ask(messages=messages)
        assert again.usage.cached_tokens >= again.usage.prompt_tokens - 32
        assert again.started.cached_tokens == again.usage.cached_tokens


async def test_a_private_cache_is_salted() -> None:
    """A key with a private cache sends its own salt; others share the empty one."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        await gateway.ask()
        await gateway.ask(Caller(key="alice", private_cache=True))
        shared, private = worker.all_of(Submit)
        assert shared.salt == b""
        assert private.salt != b""


async def test_max_tokens_is_clamped_to_the_window() -> None:
    """More output than the window leaves, or none named, means the rest of the window."""
    fake = FakeWorker(context_length=256)
    async with open_gateway() as gateway, open_worker(gateway.address, fake) as worker:
        await gateway.wait_state("ready")
        await gateway.ask(max_tokens=65536)
        await gateway.ask()
        await gateway.ask(max_tokens=3)
        clamped, rest, three = worker.all_of(Submit)
        left = 256 - count_tokens(clamped.prompt_ids)
        assert clamped.sampling.max_tokens == rest.sampling.max_tokens == left
        assert three.sampling.max_tokens == 3


async def test_a_short_answer_ends_by_length() -> None:
    """The worker's reason reaches the client."""
    async with open_gateway() as gateway, open_worker(gateway.address):
        await gateway.wait_state("ready")
        asked = await gateway.ask(max_tokens=2)
        assert asked.reasons == ["length"]
        assert asked.usage.completion_tokens == 2


async def test_a_prompt_over_the_window_is_refused_in_the_known_words() -> None:
    """400 context_length_exceeded, with both numbers in the text that clients parse."""
    fake = FakeWorker(context_length=64)
    async with open_gateway() as gateway, open_worker(gateway.address, fake) as worker:
        await gateway.wait_state("ready")
        asked = await gateway.ask(messages=[{"role": "user", "content": "warm stones " * 3000}])
        assert asked.error is not None
        assert asked.error.status == 400
        assert asked.error.code == "context_length_exceeded"
        assert asked.error.message.startswith(
            "This model's maximum context length is 64 tokens. However, your messages resulted in "
        )
        assert not worker.all_of(Submit)


async def test_an_unknown_model_is_not_found() -> None:
    """404 model_not_found."""
    async with open_gateway() as gateway:
        asked = await gateway.ask(model="nobody")
        assert asked.error is not None
        assert (asked.error.status, asked.error.code) == (404, "model_not_found")


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 2}])
async def test_a_turn_that_is_over_leaves_nothing_to_the_collector(fields: dict[str, Any]) -> None:
    """What is made for a request goes with it: the collector, which stops all streams, looks for
    nothing.
    """
    async with open_gateway() as gateway, open_worker(gateway.address):
        await gateway.wait_state("ready")
        await gateway.ask(**fields)
        gc.collect()
        of_others = _of_turns()
        gc.disable()
        try:
            asked = await gateway.ask(**fields)
            await trio.testing.wait_all_tasks_blocked()
            left = [thing for thing in _of_turns() if thing not in of_others]
        finally:
            gc.enable()
        assert asked.reasons
        assert not left


def _of_turns() -> list[object]:
    # Not `isinstance`: proxies of other packages answer it, some with a warning.
    return [thing for thing in gc.get_objects() if type(thing) in (SequenceRun, Attempt)]


@pytest.mark.parametrize("before", ["The weather in", "The weather in Rome is warm. " * 9 + "In"])
async def test_a_stop_string_ends_the_work(before: str) -> None:
    """The text ends before the stop string and the worker is told to abort, be it with its first
    tokens or long after they have proven it.
    """
    worker = FakeWorker(text=before + " Athens is warm.")
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        worker.pause_after = len(worker.script) - 1
        asked = await gateway.ask(stop=" Athens")
        assert asked.text == before
        assert asked.reasons == ["stop"]
        abort = await worker.wait(Abort)
        assert abort.request_id == worker.all_of(Submit)[0].request_id
        assert not worker.running


async def test_a_cancelled_turn_aborts_its_work() -> None:
    """A client that leaves frees the worker and the place."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        worker.pause_after = 2
        asked = gateway.start()
        await worker.wait(Submit)
        await asked.wait_text()
        asked.scope.cancel()
        abort = await worker.wait(Abort)
        assert abort.request_id == worker.all_of(Submit)[0].request_id
        assert gateway.services.dispatcher.statistics().running == 0
        assert gateway.services.counters.turns_cancelled == 1
        assert gateway.services.open_turns.count == 0


async def test_a_turn_cancelled_in_its_prefill_leaves_no_attempt() -> None:
    """A turn cancelled in its prefill leaves no attempt and no deadline."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        worker.pause_after = 0
        asked = gateway.start()
        await worker.wait(Submit)
        (attempt,) = gateway.services.link._attempts._attempts.values()
        assert attempt.silence is not None
        asked.scope.cancel()
        await worker.wait(Abort)
        assert not gateway.services.link._attempts


async def test_a_cancelled_turn_of_several_choices_aborts_them_all() -> None:
    """Nothing of it stays, here or on the worker, and it is counted once."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        worker.pause_after = 2
        asked = gateway.start(n=3)
        await worker.wait(Submit, count=3)
        asked.scope.cancel()
        await worker.wait(Abort, count=3)
        await asked.over.wait()
        statistics = gateway.services.dispatcher.statistics()
        assert (statistics.running, statistics.queued) == (0, 0)
        assert gateway.services.counters.turns_cancelled == 1
        assert not gateway.services.link._attempts


async def test_choices_run_on_one_worker_with_seeds_of_their_own() -> None:
    """n choices: the first keeps the request's seed, all go to one worker, usage counts all."""
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address) as one,
        open_worker(gateway.address, FakeWorker("w2")) as two,
    ):
        await gateway.wait_workers(2)
        asked = await gateway.ask(n=3, seed=5)
        assert [asked.text_of(index) for index in range(3)] == [TEXT] * 3
        assert asked.reasons == ["stop"] * 3
        served = [worker for worker in (one, two) if worker.all_of(Submit)]
        assert len(served) == 1
        submits = served[0].all_of(Submit)
        seeds = [submit.seed for submit in submits]
        assert seeds[0] == 5
        assert len(set(seeds)) == 3
        assert asked.usage.completion_tokens == 3 * len(one.script)
        again = await gateway.ask(n=3, seed=5)
        assert again.reasons == ["stop"] * 3
        later = [submit.seed for worker in (one, two) for submit in worker.all_of(Submit)]
        assert sorted(later) == sorted(seeds * 2)


async def test_others_begin_though_the_first_choice_has_no_token() -> None:
    """Other choices begin though the first has no token: its end counts as the beginning that they
    wait for.
    """
    fake = FakeWorker("w1", text="")
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = await gateway.ask(n=2)
        assert asked.reasons == ["stop"] * 2
        assert asked.usage.completion_tokens == 2


async def test_seeds_are_drawn_for_those_who_give_none() -> None:
    """Two requests without a seed get different ones."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        await gateway.ask()
        await gateway.ask()
        first, second = worker.all_of(Submit)
        assert first.seed != second.seed


async def test_busy_is_asked_again_and_is_no_failure() -> None:
    """A worker that refuses for load is asked again once it has room."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        worker.rejections = ["busy", "busy"]
        counters = gateway.services.counters

        def requeued(times: int) -> bool:
            return counters.busy_requeued == times

        asked = gateway.start()
        for at in (1, 2):
            await wait_until(partial(requeued, at))
            worker.load()
        with trio.fail_after(60):
            await asked.over.wait()
        assert asked.text == TEXT
        assert [submit.attempt for submit in worker.all_of(Submit)] == [1, 2, 3]


async def test_a_request_is_held_until_the_engine_is_ready() -> None:
    """A model whose worker is starting answers once it has started, without the client's help."""
    fake = FakeWorker()
    async with open_gateway() as gateway, open_worker(gateway.address, fake, ready=False):
        await gateway.wait_state("starting")
        asked = gateway.start()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not asked.events
        fake.register()
        with trio.fail_after(60):
            await asked.over.wait()
        assert asked.text == TEXT


async def test_log_probabilities_reach_the_client() -> None:
    """Each token of the text carries its log-probability and its alternatives."""
    async with open_gateway() as gateway, open_worker(gateway.address):
        await gateway.wait_state("ready")
        asked = await gateway.ask(logprobs=True, top_logprobs=1)
        entries = [entry for event in asked.events for entry in getattr(event, "logprobs", ())]
        assert "".join(entry.token for entry in entries) == TEXT
        assert all(len(entry.top_logprobs) == 1 for entry in entries)


async def test_a_tool_call_comes_as_one() -> None:
    """A tool call comes as one: with tools in the request, a complete block in the text is a tool
    call.
    """
    block = '<tool_call>\n{"name": "get_weather", "arguments": {"path": "x"}}\n</tool_call>'
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    fake = FakeWorker(text=block)
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = await gateway.ask(tools=[tool])
        assert asked.reasons == ["tool_calls"]
        assert asked.text == ""
        plain = await gateway.ask()
        assert plain.text == block


@pytest.mark.parametrize(("fields", "num_calls"), [({}, 2), ({"parallel_tool_calls": False}, 1)])
async def test_an_answer_has_one_call_if_the_client_wants_one(
    fields: dict[str, bool], num_calls: int
) -> None:
    """Clients that say so look at the first call only; the worker is told to stop behind it."""
    block = '<tool_call>\n{"name": "get_weather", "arguments": {"path": "x"}}\n</tool_call>'
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    async with open_gateway() as gateway, open_worker(gateway.address, FakeWorker(text=block * 2)):
        await gateway.wait_state("ready")
        asked = await gateway.ask(tools=[tool], **fields)
        assert sum(isinstance(event, ToolCallStart) for event in asked.events) == num_calls
        assert (asked.reasons, asked.text) == (["tool_calls"], "")
