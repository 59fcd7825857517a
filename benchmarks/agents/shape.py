"""The shape of agents' conversations: turns, lengths and pauses.

Owns the distributions and their sources. Must not know words, blocks or servers.

A conversation has a median of 43 turns and grows to a median of 142k tokens; it begins with 12k
tokens of system text and tools that all agents share, and a task of its own. 86 % of its turns come
within 1 s of the answer before, 95 % within 10 s (InferenceX#2268). How long a pause is depends on
the tool that the answer called, loosely: the pauses of each tool spread over an order of magnitude.
An answer without a call waits for a person; the last answer of a conversation calls nothing.
"""

import math
from random import Random
from typing import Final, NamedTuple

MEDIAN_TOKENS: Final = 142_000
"""The median length of the last prompt of a conversation; it follows from the constants below."""
SHARED_TOKENS: Final = 12_288
FLUCTUATION: Final = 1.35
"""A handful of agents, each with 20k to 200k tokens at a time, exceeds this multiple of its mean
hardly ever. Without room for it, what fits on average collapses for half of the time.
"""
NEXT_TASK_S: Final = 1.0
_TASK_TOKENS: Final = (1_000, 16_000)
_MEDIAN_TURNS: Final = 43
_SPREAD_TURNS: Final = 0.5
_TURNS: Final = (4, 160)
_GROWTH_TOKENS: Final = (800, 7_900)
_MAX_TOKENS: Final = 220_000
_ANSWER_TOKENS: Final = (60, 900)
_LONGEST_PAUSE_S: Final = 600.0


class Tool(NamedTuple):
    """A tool, its share of an agent's calls, and the median of its pauses in seconds. "" is an
    answer without a call.
    """

    name: str
    share: float
    median_s: float


TOOLS: Final = (
    Tool("read_file", 0.51, 0.08),
    Tool("edit_file", 0.24, 0.12),
    Tool("search", 0.13, 0.40),
    Tool("shell", 0.08, 2.0),
    Tool("run_tests", 0.03, 20.0),
    Tool("", 0.01, 60.0),
)
_SPREAD: Final = 0.9
"""The standard deviation of the logarithm of a pause."""


class TurnShape(NamedTuple):
    """A turn: its prompt and its answer in tokens, the pause before it, and the tool that its
    answer calls. `is_last`: nothing comes after it.
    """

    prompt_tokens: int
    answer_tokens: int
    pause_s: float
    tool: str
    is_last: bool


def conversation(chance: Random, size: float = 1.0) -> list[TurnShape]:
    """The turns of one conversation; all its lengths are multiplied by `size`."""
    tokens = SHARED_TOKENS + _log_uniform(chance, _TASK_TOKENS)
    num_turns = _num_turns(chance)
    turns: list[TurnShape] = []
    pause_s = NEXT_TASK_S
    for index in range(num_turns):
        if index:
            tokens = min(_MAX_TOKENS, tokens + _log_uniform(chance, _GROWTH_TOKENS))
        tool = chance.choices(TOOLS, [one.share for one in TOOLS])[0]
        is_last = index == num_turns - 1
        answer = _log_uniform(chance, _ANSWER_TOKENS)
        turns.append(
            TurnShape(
                max(1, round(size * tokens)),
                max(1, round(size * answer)),
                pause_s,
                "" if is_last else tool.name,
                is_last,
            )
        )
        pause_s = _pause_s(chance, tool)
    return turns


def num_fitting(kv_tokens: float, size: float = 1.0) -> float:
    """How many agents fit into a memory: their conversations take `FLUCTUATION` times their mean
    now and then.
    """
    chance = Random("fitting")
    turns = [turn for _ in range(64) for turn in conversation(chance, size)]
    mean = sum(turn.prompt_tokens + turn.answer_tokens for turn in turns) / len(turns)
    return kv_tokens / (FLUCTUATION * mean)


def _num_turns(chance: Random) -> int:
    drawn = math.exp(chance.gauss(math.log(_MEDIAN_TURNS), _SPREAD_TURNS))
    return min(_TURNS[1], max(_TURNS[0], round(drawn)))


def _pause_s(chance: Random, tool: Tool) -> float:
    return min(_LONGEST_PAUSE_S, math.exp(chance.gauss(math.log(tool.median_s), _SPREAD)))


def _log_uniform(chance: Random, bounds: tuple[int, int]) -> int:
    return int(math.exp(chance.uniform(*map(math.log, bounds))))
