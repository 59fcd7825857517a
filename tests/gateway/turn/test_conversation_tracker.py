"""Conversations at a whole gateway: what is counted, and what is done about loops and prefixes."""

from typing import Any

import msgspec
import pytest

from config import Config, LoopsConfig, ModelConfig, RepairConfig
from protocol.messages import Submit
from tests.fakes.served import Reply
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker, open_worker

FILLER = "Read each file before you change it, and tell what you have done. " * 8


def configure(whole: WholeGateway, **tables: Any) -> None:
    config = msgspec.structs.replace(whole.gateway.services.config, **tables)
    whole.gateway.services.conversation_tracker.reconfigure(config)


async def say(whole: WholeGateway, *said: str, system: str = FILLER, **fields: Any) -> Reply:
    roles = ["user", "assistant"] * len(said)
    messages = [{"role": "system", "content": system}]
    messages += [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    given = {"model": "alpha", "messages": messages, "max_tokens": 8, **fields}
    return await whole.post("/v1/chat/completions", **given)


async def rows(whole: WholeGateway, name: str = "") -> list[dict[str, Any]]:
    reply = await whole.get("/admin/conversations" + (f"?name={name}" if name else ""))
    assert reply.status == 200, reply
    found: list[dict[str, Any]] = msgspec.json.decode(reply.body)["conversations"]
    return found


def looping(rounds: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Mend it."}]
    for at in range(rounds):
        function = {"name": "read", "arguments": '{"path": "a.py"}'}
        call = {"id": f"c{at}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": "def f(): return 1"})
    return messages


async def ask_in_loop(whole: WholeGateway, rounds: int, **fields: Any) -> Reply:
    given = {"model": "alpha", "messages": looping(rounds), "max_tokens": 8, **fields}
    return await whole.post("/v1/chat/completions", **given)


def submits(whole: WholeGateway) -> list[Submit]:
    """What alpha's worker was asked."""
    return [message for message in whole.worker.heard if isinstance(message, Submit)]


def kinds(whole: WholeGateway) -> list[str]:
    return [msgspec.json.decode(one.json)["event"] for one in whole.gateway.services.feed.recent]


async def test_turns_of_a_conversation_are_counted_together() -> None:
    async with whole_gateway() as whole:
        await say(whole, "one")
        await say(whole, "one", "yes", "two", stream=True)
        await say(whole, "other", session_id="named")
        await say(whole, "child", session_id="low", metadata={"parent_session_id": "named"})
        found = {row["name"]: row for row in await rows(whole)}
        assert len(found) == 3
        (unnamed,) = [row for name, row in found.items() if name.startswith("~")]
        assert unnamed["turns"] == 2
        assert unnamed["prompt_tokens"] > 0
        assert unnamed["completion_tokens"] > 0
        assert unnamed["cached_tokens"] > 0
        assert [row["name"] for row in await rows(whole, "named")] == ["named", "low"]
        assert (await whole.get("/admin/conversations?name=nobody")).status == 404


async def test_prompts_that_are_scored_leave_their_conversation_again() -> None:
    """A prompt that is scored before the answer leaves its conversation again: its end is not the
    end of the request.
    """
    async with whole_gateway() as whole:
        asked = {"prompt": "one", "echo": True, "logprobs": 1, "max_tokens": 0}
        await whole.post("/v1/completions", model="alpha", session_id="named", **asked)
        (row,) = await rows(whole)
        assert row["name"] == "named"
        assert not row["is_open"]


async def test_by_default_a_loop_is_told_to_operators_alone() -> None:
    async with whole_gateway() as whole:
        for rounds in range(3, 9):
            reply = await ask_in_loop(whole, rounds)
            assert reply.status == 200
            assert b"x-herma-loop" not in dict(reply.headers)
        assert kinds(whole).count("loop") == 1
        (row,) = await rows(whole)
        assert row["loops"] == 1
        assert row["loop"].startswith("read: the same result")


async def test_each_step_is_taken_after_its_number_of_repeats() -> None:
    loops = LoopsConfig(alert=5, header=5, hint=6, end=7)
    async with whole_gateway() as whole:
        configure(whole, loops=loops)
        plain = await ask_in_loop(whole, 4)
        assert "x-herma-loop" not in headers(plain)
        for stream in (False, True):
            assert "read" in headers(await ask_in_loop(whole, 5, stream=stream))["x-herma-loop"]
        before = msgspec.json.decode((await ask_in_loop(whole, 5)).body)["usage"]["prompt_tokens"]
        hinted = msgspec.json.decode((await ask_in_loop(whole, 6)).body)["usage"]["prompt_tokens"]
        assert hinted > before + 30
        ended = await ask_in_loop(whole, 7)
        assert ended.status == 422
        error = msgspec.json.decode(ended.body)["error"]
        assert error["code"] == "conversation_loop"
        assert "read" in error["message"]


async def test_a_loop_may_be_held_and_answered_by_another_model() -> None:
    models = (ModelConfig(name="alpha"), ModelConfig(name="beta"))
    other = FakeWorker("w2", model="beta", text="Stop here.")
    async with (
        whole_gateway(models=models) as whole,
        open_worker(whole.gateway.address, other),
    ):
        await whole.gateway.wait_state("ready", "beta")
        configure(whole, loops=LoopsConfig(slow=5, slow_s=0.05, model=6, other_model="beta"))
        assert (await ask_in_loop(whole, 5)).status == 200
        (trace,) = whole.gateway.services.traces.recent()
        assert trace.turn.hold_s == 0.05
        first = submits(whole)
        reply = await ask_in_loop(whole, 6)
        assert reply.status == 200
        (choice,) = msgspec.json.decode(reply.body)["choices"]
        assert choice["message"]["content"] == "Stop here."
        assert submits(whole) == first


def headers(reply: Reply) -> dict[str, str]:
    return {
        (name.decode() if isinstance(name, bytes) else name): (
            value.decode() if isinstance(value, bytes) else value
        )
        for name, value in dict(reply.headers).items()
    }


async def test_a_broken_prefix_is_named_and_repaired() -> None:
    async with whole_gateway() as whole:

        async def three_turns(name: str) -> list[int]:
            cached = []
            for number in range(3):
                system = f"You help.\nCurrent time: 2026-11-28 10:0{number}:00\n{FILLER}{FILLER}"
                said = [f"text {at} of {name}" for at in range(2 * number + 1)]
                reply = await say(whole, *said, system=system, session_id=name)
                usage = msgspec.json.decode(reply.body)["usage"]
                cached.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
            return cached

        broken = await three_turns("one")
        (row,) = msgspec.json.decode((await whole.get("/admin/prefixes")).body)["prefixes"]
        assert (row["kind"], row["place"], row["times"]) == ("time stamp", "system", 2)
        assert row["lost_tokens"] > 100
        (talk,) = await rows(whole, "one")
        assert talk["breaks"] == 2
        repair = RepairConfig(client="*", do="move", lines="Current time: .*")
        configure(whole, repairs=(repair,))
        mended = await three_turns("two")
        assert mended[2] > broken[2] + 50
        (talk,) = await rows(whole, "two")
        assert talk["breaks"] == 0 or talk["lost_tokens"] < row["lost_tokens"] / 2


@pytest.mark.parametrize("keeps", [True, False])
async def test_no_text_of_a_prompt_is_kept_where_operators_look(keeps: bool) -> None:
    secret = "sk-" + "z" * 8 if keeps else "harmless"
    async with whole_gateway() as whole:
        await say(whole, f"use {secret}", system=f"time 10:00 {secret}\n{FILLER}", session_id="s")
        await say(
            whole, f"use {secret}", "yes", "go", system=f"time 10:01 {secret}\n{FILLER}",
            session_id="s",
        )  # fmt: skip
        for path in ("/admin/conversations", "/admin/prefixes", "/dashboard/state", "/metrics"):
            assert secret.encode() not in (await whole.get(path)).body
        assert isinstance(whole.gateway.services.config, Config)
