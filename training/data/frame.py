"""The context of a task: system texts, irrelevant tools, earlier turns.

Owns their frequency. Must not change the task or its answer.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from training.data.example import TrainingExample
from training.data.filler import agent_system, short_system
from training.data.offering import render_all
from training.data.toolbox import draw_tools
from training.data.world import World

_ALONE: Final = frozenset({"memory", "facts"})
"""Skills whose answer depends on the whole conversation."""

_WITHOUT_TOOLS: Final = frozenset({"tools", "natural", "tool_result", "no_tool"})
"""Skills with a context of their own."""


def framed(
    world: World, task: TrainingExample, earlier: Callable[[World], TrainingExample]
) -> TrainingExample:
    """`task`, sometimes with a system text, with tools, or after a turn that `earlier` draws."""
    is_bare = task.messages[0]["role"] != "system"
    if is_bare and task.skill not in _ALONE and world.chance(0.1):
        task = replace(task, messages=_history(world, earlier) + task.messages)
    if task.skill not in _WITHOUT_TOOLS and not task.tools and world.chance(0.08):
        count = world.between(10, 17) if world.chance(0.06) else world.between(1, 5)
        task = replace(task, tools=render_all(world, draw_tools(world, count)))
    if is_bare:
        system = _system(world)
        if system:
            message = {"role": "system", "content": system}
            task = replace(task, messages=(message, *task.messages))
    return task


def _history(
    world: World, earlier: Callable[[World], TrainingExample]
) -> tuple[dict[str, object], ...]:
    """One or two earlier tasks, without their own system texts."""
    tasks = [earlier(world) for _ in range(world.pick((1, 1, 2)))]
    return tuple(
        message for task in tasks for message in task.messages if message["role"] != "system"
    )


def _system(world: World) -> str:
    chance = world.random()
    if chance < 0.55:
        return ""
    if chance < 0.93:
        return short_system(world)
    if chance < 0.985:
        return agent_system(world, world.between(3, 20))
    return agent_system(world, world.between(60, 250))
