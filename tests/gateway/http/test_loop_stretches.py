"""No body makes the event loop stand: the CPU time of each step of the gateway's tasks."""

import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import trio

from gateway.api import ChatRequest
from gateway.api.body_bounds import MAX_COMMAS, MAX_VALUES
from gateway.runtime import bound_arenas
from tests.fakes.served import Reply, ask
from tests.fakes.whole_gateway import whole_gateway

MAX_STEP_S: Final = 0.020
NUM_TRIES: Final = 24
REST_S: Final = 0.25
PATIENCE_S: Final = 540.0
"""Beside eight busy loops the tries of all bodies together took more than 240 s."""


class LoopClock(trio.abc.Instrument):
    """The longest step of a task of the gateway, in CPU time of the loop's thread."""

    def __init__(self) -> None:
        self.longest = (0.0, "")
        self._began: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._began is not None and not task.name.startswith(("tests.", "<test")):
            self.longest = max(self.longest, (time.thread_time() - self._began, task.name))


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}], **fields}


def tools(number: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{i}"}} for i in range(number)]


def calls(number: int) -> list[dict[str, Any]]:
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for i in range(number)
    ]
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": made},
        *({"role": "tool", "tool_call_id": f"c{i}", "content": "1"} for i in range(number)),
        {"role": "user", "content": "Hi"},
    ]


def parts(number: int) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": "x"} for _ in range(number)]
    return [{"role": "user", "content": content}]


def claude(**fields: Any) -> dict[str, Any]:
    return {**chat(**fields), "max_tokens": 5}


def claude_tools(number: int) -> list[dict[str, Any]]:
    return [{"name": f"f{i}", "input_schema": {"type": "object"}} for i in range(number)]


def flat_tools(number: int) -> list[dict[str, Any]]:
    return [{"type": "function", "name": f"f{i}", "parameters": {}} for i in range(number)]


def fields(number: int) -> dict[str, Any]:
    return {f"x{i}": 1 for i in range(number)}


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def asked_of_responses(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": "alpha", "input": "Hi", "tools": tools}


def items(number: int) -> list[dict[str, Any]]:
    return [{"type": "message", "role": "user", "content": "x"} for _ in range(number)]


WORDS: Final = "word " * 5_600_000
COUNT: Final = "/v1/messages/count_tokens"
CHATS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
MONSTROUS: Final[dict[str, tuple[str, Callable[[], dict[str, Any]]]]] = {
    "100,000 tools": (CHATS, lambda: chat(tools=tools(100_000))),
    "400,000 unknown fields": (CHATS, lambda: chat(**fields(400_000))),
    "50,000 calls": (CHATS, lambda: chat(messages=calls(50_000))),
    "200,000 parts": (CHATS, lambda: chat(messages=parts(200_000))),
    "100,000 messages": (CHATS, lambda: chat(messages=parts(1) * 100_000)),
    "100,000 tools of Messages": (MESSAGES, lambda: claude(tools=claude_tools(100_000))),
    "200,000 parts of Messages": (MESSAGES, lambda: claude(messages=parts(200_000))),
    "200,000 items": (RESPONSES, lambda: {"model": "alpha", "input": items(200_000)}),
    "lists in lists": (CHATS, lambda: chat(x=[[[]]] * 200_000)),
    "5 million numbers": (CHATS, lambda: chat(x=[0] * 5_000_000)),
    "texts to embed": ("/v1/embeddings", lambda: {"model": "alpha", "input": ["x"] * 200_000}),
    "another path": ("/v1/rerank", lambda: {"model": "alpha", "documents": ["x"] * 200_000}),
}


@pytest.fixture(autouse=True)
def _collected_heap() -> Iterator[None]:
    """The collector walks what these tests make, as in a gateway that has just started, not what
    thousands of tests before them left in this process: some 20 ms.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def longest_step(url: str, path: str, body: bytes) -> tuple[Reply, float, str]:
    """The reply, and the longest step with its task. A loaded machine empties caches, at which a
    step takes twice its CPU and more: the best of some tries counts, with rests between the later
    ones, because what empties the caches ends.
    """
    for number in range(NUM_TRIES):
        if number >= NUM_TRIES // 4:
            await trio.sleep(REST_S)
        clock = LoopClock()
        trio.lowlevel.add_instrument(clock)
        reply = await ask(url, "POST", path, body)
        trio.lowlevel.remove_instrument(clock)
        if clock.longest[0] <= MAX_STEP_S:
            break
    return reply, *clock.longest


async def test_a_monstrous_body_is_refused_without_a_stretch() -> None:
    """One error that names the cap, in the API's own form."""
    found = {}
    async with whole_gateway(patience_s=PATIENCE_S) as whole:
        for name, (path, make) in MONSTROUS.items():
            body = json.dumps(make()).encode()
            reply, step_s, task = await longest_step(whole.url, path, body)
            assert reply.status == 400, (name, reply)
            cap = MAX_COMMAS if "numbers" in name else MAX_VALUES
            assert str(cap) in reply.json["error"]["message"], (name, reply)
            found[name] = (step_s, task)
    assert not {name: one for name, one in found.items() if one[0] > MAX_STEP_S}, found


LARGE: Final[dict[str, tuple[str, Callable[[], dict[str, Any]]]]] = {
    "tools": (CHATS, lambda: chat(tools=tools(12_000))),
    "fields": (CHATS, lambda: chat(**fields(90_000))),
    "calls": (CHATS, lambda: chat(messages=calls(5_000))),
    "parts": (CHATS, lambda: chat(messages=parts(18_000))),
    "messages": (CHATS, lambda: chat(messages=parts(1) * 9_000)),
    "few tools in 200 KB": (CHATS, lambda: chat(tools=tools(4_000))),
    "tools of Messages": (MESSAGES, lambda: claude(tools=claude_tools(11_000))),
    "parts of Messages": (MESSAGES, lambda: claude(messages=parts(18_000))),
    "items": (RESPONSES, lambda: {"model": "alpha", "input": items(12_000)}),
    "tools of Responses": (
        RESPONSES,
        lambda: {"model": "alpha", "input": "Hi", "tools": flat_tools(9_000)},
    ),
    "28 MB of words": (
        CHATS,
        lambda: chat(messages=said(WORDS)),
    ),
    "28 MB without a space": (
        CHATS,
        lambda: chat(messages=said("x" * 28_000_000)),
    ),
    "7 MB of Chinese": (
        CHATS,
        lambda: chat(messages=said("你好" * 1_150_000)),
    ),
    "28 MB of Messages": (
        MESSAGES,
        lambda: claude(messages=said(WORDS)),
    ),
    "28 MB of Responses": (RESPONSES, lambda: {"model": "alpha", "input": WORDS}),
    "28 MB for completions": (
        "/v1/completions",
        lambda: {"model": "alpha", "prompt": WORDS},
    ),
    "2 million ids": ("/v1/completions", lambda: {"model": "alpha", "prompt": [5] * 2_000_000}),
    "7 MB to count": (
        "/v1/messages/count_tokens",
        lambda: claude(messages=said(WORDS[:7_000_000])),
    ),
    "7 MB to tokenize": ("/tokenize", lambda: {"model": "alpha", "prompt": WORDS[:7_000_000]}),
}


async def test_a_large_body_is_read_without_a_stretch() -> None:
    """A large body is read in short steps of the loop, whatever the result is: mostly a prompt over
    the window.
    """
    # As the process does; otherwise a body that grows is copied again and again, 25 ms for 28 MB.
    bound_arenas()
    found = {}
    async with whole_gateway(patience_s=PATIENCE_S) as whole:
        for name, (path, make) in LARGE.items():
            body = json.dumps(make(), ensure_ascii=False).encode()
            reply, step_s, task = await longest_step(whole.url, path, body)
            print(f"{name}: {reply.status}, {1000 * step_s:.1f} ms in {task}", reply.body[:90])
            assert reply.status < 500, (name, reply)
            found[name] = (step_s, task)
    assert not {name: one for name, one in found.items() if one[0] > MAX_STEP_S}, found


async def test_a_refused_prompt_is_freed_at_once() -> None:
    """A refused prompt is freed at once: its error does not keep it until the garbage collector
    runs.
    """
    gc.collect()
    others = {id(one): one for one in gc.get_objects() if isinstance(one, ChatRequest)}
    gc.disable()
    try:
        async with whole_gateway(patience_s=PATIENCE_S) as whole:
            body = json.dumps(chat(messages=said("x" * 200_000))).encode()
            reply = await ask(whole.url, "POST", CHATS, body)
            assert reply.status == 400
            # The client has its answer a moment before the request's own tasks have ended.
            for _ in range(200):
                found = [one for one in gc.get_objects() if isinstance(one, ChatRequest)]
                kept = [one for one in found if id(one) not in others]
                if not kept:
                    break
                await trio.sleep(0.01)
    finally:
        gc.enable()
    assert kept == []
