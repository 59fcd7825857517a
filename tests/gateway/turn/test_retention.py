"""What the gateway tells a worker about the conversation whose answer it gave."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio

from gateway.conversations import book
from protocol.messages import RETAINS, Retain, Submit
from tests.fakes.served import Reply
from tests.fakes.tool_answers import TOOL
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker

CALL = '<tool_call>\n{"name": "f", "arguments": {"count": 1}}\n</tool_call>'


def worker(text: str = "done", *capabilities: str) -> FakeWorker:
    fake = FakeWorker(text=text)
    fake.facts = msgspec.structs.replace(fake.facts, capabilities=capabilities or (RETAINS,))
    return fake


async def say(whole: WholeGateway, *said: str, **fields: Any) -> Reply:
    roles = ["user", "assistant"] * len(said)
    messages = [{"role": r, "content": text} for r, text in zip(roles, said, strict=False)]
    reply = await whole.post("/v1/chat/completions", model="alpha", messages=messages, **fields)
    assert reply.status == 200, reply
    return reply


def seen(whole: WholeGateway, kind: type[Any]) -> list[Any]:
    return [one for one in whole.worker.heard if isinstance(one, kind)]


async def retained(whole: WholeGateway, count: int) -> list[Retain]:
    """The first `count` expectations that reached the worker."""
    wait: Callable[..., Any] = whole.worker.wait
    await wait(Retain, count=count)
    return seen(whole, Retain)


async def test_an_expectation_follows_each_answer() -> None:
    """Under the name of its request; turns of one conversation have one name, others another."""
    async with whole_gateway(worker()) as whole:
        await say(whole, "one")
        await say(whole, "one", "done", "two")
        await say(whole, "something else")
        first, second, other = await retained(whole, 3)
        names = [one.request_id for one in seen(whole, Submit)]
    assert [first.request_id, second.request_id, other.request_id] == names
    assert first.conversation == second.conversation != other.conversation
    assert 0 < first.chance < 1
    assert first.within_s > 0


async def test_an_agent_with_a_call_comes_back_sooner_than_a_person() -> None:
    async with whole_gateway(worker(CALL)) as whole:
        await say(whole, "one", tools=[TOOL])
        (called,) = await retained(whole, 1)
    async with whole_gateway(worker("done")) as whole:
        await say(whole, "one", tools=[TOOL])
        (ended,) = await retained(whole, 1)
    assert called.chance > ended.chance
    assert called.within_s < ended.within_s


async def test_a_client_may_say_that_it_is_done() -> None:
    async with whole_gateway(worker()) as whole:
        await say(whole, "one", nvext={"session_control": {"action": "close"}})
        (over,) = await retained(whole, 1)
    assert over.chance == 0.0


@pytest.mark.parametrize("num_at_once", [1, 16])
async def test_conversations_that_are_forgotten_count_as_not_returned(
    num_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are forgotten while their request runs."""
    monkeypatch.setattr(book, "MAX_CONVERSATIONS", 2)
    async with whole_gateway(worker()) as whole:
        for first in range(0, 64, num_at_once):
            async with trio.open_nursery() as nursery:
                for number in range(first, first + num_at_once):
                    nursery.start_soon(say, whole, f"question {number}")
        last = (await retained(whole, 64))[-1]
    assert last.chance < 0.01


async def test_engines_that_do_not_know_it_are_left_alone() -> None:
    async with whole_gateway(worker("done", "grammars")) as whole:
        await say(whole, "one")
        await say(whole, "two")
        assert not seen(whole, Retain)
