"""Hermes Agent 0.19.0 from PyPI against a fleet, over a proxy that records what it asks.

Every request is counted: a turn that is asked again is a turn that went wrong, whatever the agent
says. Every stream is checked on its way.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.fakes.checked_http import checked_async_client
from tests.fakes.herma_process import HermaProcess
from tests.hermes.agent import HermesAgent, printed_config
from tests.hermes.recorder import Recorder, recording

pytestmark = pytest.mark.slow

MAX_PROBES = 6
QUEUE_WAIT_S = 22.0
"""The head is held for 10 s, and the first keep-alive comes 10 s later."""
STALE_S = 15
"""After so much silence this agent gives a stream up: less than the queue takes."""

WORD = "The word is stone."
CUT = "The previous response was cut off"


@asynccontextmanager
async def agent_at(
    fleet: HermaProcess, home: Path, model: str = "agent", **environ: str
) -> AsyncIterator[tuple[HermesAgent, Recorder]]:
    """An agent that is configured as `herma hermes` says, and the record of what it asks."""
    async with recording(fleet.base_url) as recorder:
        config = await printed_config(recorder.url, model)
        recorder.asked.clear()
        yield HermesAgent(home / "home", config, **environ), recorder


async def test_a_turn_is_one_request_and_few_probes(fleet: HermaProcess, tmp_path: Path) -> None:
    """The answer arrives; nothing is asked twice, and the server is recognised in six requests."""
    async with agent_at(fleet, tmp_path) as (agent, recorder):
        turn = await agent.one_shot("say the word")
    assert (turn.text, turn.went_well) == (WORD, True)
    assert len(recorder.turns) == turn.usage["api_calls"] == 1
    assert recorder.side_calls == []
    assert len(recorder.probes) <= MAX_PROBES, recorder.probes
    assert turn.usage["input_tokens"] == recorder.turns[0].prompt_tokens


async def test_a_tool_is_run_and_its_result_answered(fleet: HermaProcess, tmp_path: Path) -> None:
    """The command that the model asks for is executed; the second call finds the first's prompt in
    the cache.
    """
    async with agent_at(fleet, tmp_path) as (agent, recorder):
        turn = await agent.one_shot("run echo please")
    assert (turn.text, turn.went_well) == ("It printed herma-42.", True)
    asked, answered = recorder.turns
    assert turn.usage["api_calls"] == 2
    role, result = answered.texts[-1]
    assert role == "tool"
    assert "herma-42" in result
    assert answered.cached_tokens >= 0.9 * asked.prompt_tokens
    assert turn.usage["cache_read_tokens"] == asked.cached_tokens + answered.cached_tokens


async def test_a_resumed_session_finds_its_first_turn(fleet: HermaProcess, tmp_path: Path) -> None:
    """The second process sends the first one's history, and most of it is cached."""
    async with agent_at(fleet, tmp_path) as (agent, recorder):
        text, session = await agent.chat("first question")
        assert WORD in text
        text, resumed = await agent.chat("second question", resume=session)
    assert "The second answer." in text
    assert resumed == session
    first, second = recorder.turns
    assert [text for _, text in second.texts[-3:]] == ["first question", WORD, "second question"]
    assert second.cached_tokens >= 0.9 * first.prompt_tokens
    assert all(one.status == 200 for one in recorder.side_calls)


async def test_three_children_work_at_once(fleet: HermaProcess, tmp_path: Path) -> None:
    """One turn, three sub-agents whose requests overlap, and the turn's end: five requests."""
    async with agent_at(fleet, tmp_path) as (agent, recorder):
        turn = await agent.one_shot("delegate this")
    assert (turn.text, turn.went_well) == ("All three are done.", True)
    _, *children, _ = recorder.turns
    assert sorted(one.texts[-1][1] for one in children) == [
        "child-task one",
        "child-task three",
        "child-task two",
    ]
    ends = [one.ended_at for one in children if one.ended_at is not None]
    assert max(one.asked_at for one in children) < min(ends)


@pytest.mark.parametrize("model", ["agent", "single"])
async def test_an_engine_killed_mid_turn_is_not_noticed(
    fleet: HermaProcess, tmp_path: Path, model: str
) -> None:
    """SIGKILL after eight tokens: another worker goes on, or the only one once it is back. The
    agent has asked once, and has every word once.
    """
    async with agent_at(fleet, tmp_path, model) as (agent, recorder):
        turn = await agent.one_shot("survive this")
    words = "one two three four five six seven eight nine ten"
    assert (turn.text, turn.went_well) == (words, True)
    assert len(recorder.turns) == 1
    workers = {"agent": ("a1", "a2"), "single": ("s1",)}[model]
    lost = [line for line in fleet.output if '"event":"engine fault"' in line]
    assert any(f'"worker":"{worker}"' in line for worker in workers for line in lost), fleet.output


async def test_a_long_wait_in_the_queue_is_survived(fleet: HermaProcess, tmp_path: Path) -> None:
    """Keep-alives count as life: the stream outlives the silence that the agent allows."""
    stale = {"HERMES_LOCAL_STREAM_STALE_TIMEOUT": str(STALE_S)}
    async with (
        agent_at(fleet, tmp_path, "single", **stale) as (agent, recorder),
        trio.open_nursery() as nursery,
    ):
        await nursery.start(_hold_the_place, fleet.base_url, recorder)
        turn = await agent.one_shot("say the word")
    assert (turn.text, turn.went_well) == (WORD, True)
    (asked,) = recorder.turns
    assert asked.ended_at is not None
    assert asked.ended_at - asked.asked_at >= QUEUE_WAIT_S
    assert asked.num_keep_alives >= 1


async def _hold_the_place(
    base_url: str, recorder: Recorder, task_status: trio.TaskStatus[None]
) -> None:
    """Take the only place, and leave when the agent has waited for it; as the stream is read in
    between, cancelling is what closes it.
    """
    body = {
        "model": "single",
        "messages": [{"role": "user", "content": "never stop"}],
        "stream": True,
    }
    is_held = False
    with trio.CancelScope() as scope:
        async with (
            checked_async_client(base_url) as client,
            client.stream("POST", "/chat/completions", json=body) as reply,
        ):
            async for _ in reply.aiter_bytes():
                if not is_held:
                    is_held = True
                    task_status.started()
                asked = recorder.turns
                if asked and trio.current_time() - asked[0].asked_at > QUEUE_WAIT_S:
                    scope.cancel()


async def test_the_built_in_model_survives_an_agent(fleet: HermaProcess, tmp_path: Path) -> None:
    """20,000 tokens of an agent's prompt are beyond it, but every turn ends well: one shot, a tool,
    a session and its next turn, sub-agents.
    """
    async with agent_at(fleet, tmp_path, "herma-tiny") as (agent, recorder):
        for prompt in ("Hello! Who are you?", "run echo please", "delegate this"):
            turn = await agent.one_shot(prompt)
            assert turn.went_well, turn
        _, session = await agent.chat("What is 2 plus 3?")
        await agent.chat("And 4 plus 5?", resume=session)
    assert {one.status for one in (*recorder.turns, *recorder.side_calls)} == {200}
    assert [one for one in recorder.turns if one.checker.error] == []
    assert [text for one in recorder.turns for _, text in one.texts if CUT in text] == []
