"""Agents that work at one server for a while, and what they saw.

Owns the messages of a conversation, the loop of an agent, and the figures. Must not know options or
tables.

An agent asks, waits for the answer, pauses as long as its tool takes, and asks again with the
answer and the tool's result behind its prompt; when a conversation is over it begins another one.
So a slow server gets less work, as from real agents. Histories hold drawn words in place of the
server's answers, so that all servers read the same prompts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import trio

from benchmarks.agents.shape import SHARED_TOKENS, conversation
from benchmarks.http.answer import HttpAnswer
from benchmarks.http.client import ServerConnections
from benchmarks.http.figures import RoundFigures, percentile, round_figures
from benchmarks.http.workload import (
    Message,
    PromptGenerator,
    PromptWords,
    TokenScale,
    WorkloadRequest,
)

_RESULT_SHARE: Final = 0.02
"""The most that the template around the messages takes, as a share of a prompt's tokens."""


@dataclass(frozen=True, slots=True)
class AgentPace:
    """`num_agents` agents for `seconds`, after `warm_s` that do not count. `size` multiplies all
    lengths; an answer has no more than `output_tokens`.
    """

    num_agents: int
    seconds: float
    warm_s: float
    size: float
    seed: int
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """What the agents saw. `tokens_per_s` counts answers, `total_per_s` prompts as well.
    `hit_rate` is None if the server reports no cached tokens; times are in milliseconds.
    """

    num_agents: int
    num_turns: int
    tokens_per_s: float
    total_per_s: float
    hit_rate: float | None
    first_ms_p50: float | None
    first_ms_p90: float | None
    gap_ms_p99: float | None
    num_errors: int
    errors: dict[str, int]


class AgentLoad:
    """One run of `load` at the server of `client`, whose tokens are counted by `scale`."""

    def __init__(
        self,
        client: ServerConnections,
        load: AgentPace,
        scale: TokenScale,
        count_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._load = load
        self._scale = scale
        self._count_answer = count_answer
        self._counted: list[HttpAnswer] = []
        self._began_at = 0.0

    async def run(self) -> AgentFigures:
        """Let the agents work. Their answers that run at the end are cut off and not counted."""
        load = self._load
        shared = self._prompts("shared").text(load.size * SHARED_TOKENS)
        self._began_at = time.perf_counter() + load.warm_s
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._client.end_stalled)
            for number in range(load.num_agents):
                nursery.start_soon(self._work, number, {"role": "system", "content": shared})
            await trio.sleep(load.warm_s + load.seconds)
            nursery.cancel_scope.cancel()
        return figures(load.num_agents, self._counted, load.seconds)

    async def _work(self, number: int, shared: Message) -> None:
        """One agent. It begins somewhere on the way through its first conversation."""
        chance = Random(f"agents/{self._load.seed}/{number}")
        prompts = self._prompts(f"agent {number}")
        # Not all at one moment, as agents do not know of each other.
        await trio.sleep(chance.uniform(0.0, min(10.0, self._load.warm_s)))
        is_first = True
        while True:
            shape = conversation(chance, self._load.size)
            skipped = chance.randrange(len(shape)) if is_first else 0
            is_first = False
            messages, held = [shared], self._load.size * SHARED_TOKENS
            for index, turn in enumerate(shape):
                new = max(1.0, (1 - _RESULT_SHARE) * turn.prompt_tokens - held)
                messages.append({"role": "user", "content": prompts.text(new)})
                held += new
                if index >= skipped:
                    await trio.sleep(turn.pause_s if index > skipped else 0.0)
                    most = self._load.output_tokens or turn.answer_tokens
                    await self._ask(tuple(messages), min(turn.answer_tokens, most))
                messages.append({"role": "assistant", "content": prompts.text(turn.answer_tokens)})
                held += turn.answer_tokens

    async def _ask(self, messages: tuple[Message, ...], output_tokens: int) -> None:
        answer = await self._client.answer(WorkloadRequest(messages), output_tokens)
        self._count_answer()
        if answer.sent_at >= self._began_at:
            self._counted.append(answer)
        if answer.error_kind is not None:
            await trio.sleep(1.0)  # as clients do before they try again

    def _prompts(self, name: str) -> PromptGenerator:
        return PromptGenerator(PromptWords(), self._scale, f"{self._load.seed}/{name}")


def figures(num_agents: int, answers: Sequence[HttpAnswer], seconds: float) -> AgentFigures:
    """The figures of the answers that ended within `seconds`."""
    all_of_them: RoundFigures = round_figures(answers, 0)
    prompt, cached = all_of_them.prompt_tokens, all_of_them.cached_tokens
    return AgentFigures(
        num_agents=num_agents,
        num_turns=all_of_them.num_answers,
        tokens_per_s=all_of_them.tokens / seconds,
        total_per_s=(prompt + all_of_them.tokens) / seconds,
        hit_rate=cached / prompt if cached is not None and prompt else None,
        first_ms_p50=percentile(all_of_them.firsts_ms, 0.5),
        first_ms_p90=percentile(all_of_them.firsts_ms, 0.9),
        gap_ms_p99=percentile(all_of_them.gaps_ms, 0.99),
        num_errors=sum(all_of_them.errors.values()),
        errors=dict(Counter(all_of_them.errors)),
    )


def as_row(ratio: float, server: str, found: AgentFigures) -> dict[str, Any]:
    """The row of the result file."""
    fields = {name: getattr(found, name) for name in AgentFigures.__slots__}
    return {"ratio": ratio, "server": server, **fields}
