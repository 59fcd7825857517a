"""Choosing among unseen tools and filling the arguments from the user's words.

Owns single calls (mostly), two calls at once, and calls after an earlier one. The thoughts name
what is asked for, then the tool.
"""

import json
from typing import Final

from training.data.asking import draw_arguments, draw_both, draw_pair, draw_request, draw_value
from training.data.catalog import draw_familiar
from training.data.example import Call, Check, Example, Tool, calling, user
from training.data.toolbox import (
    ToolSpec,
    draw_tool,
    lengthened,
    render_tool,
    with_distractors,
)
from training.data.world import World

SKILL: Final = "tools"

_NUM_OTHERS: Final = (0, 0, 1, 1, 2, 2, 3, 3, 4, 5)


def make(world: World) -> Example:
    """A case of this skill."""
    chance = world.random()
    if chance < 0.15 and world.split == "train":
        return _familiar(world)
    if chance < 0.25:
        return _pair(world)
    return _both(world) if chance < 0.3 else _single(world)


def thoughts(topics: list[tuple[str, str]]) -> str:
    """What is asked for and which tool does it, a line for each call."""
    return "\n".join(f"The request is about: {topic}. Tool: {name}." for topic, name in topics)


def offered(world: World, spec: ToolSpec, num_others: int) -> tuple[Tool, ...]:
    """`spec` among other tools, as clients send them."""
    return render_all(world, with_distractors(world, spec, num_others))


def render_all(world: World, specs: list[ToolSpec]) -> tuple[Tool, ...]:
    """The tools as clients send them, seldom with descriptions as long as those of agents."""
    if world.chance(0.06):
        specs = [lengthened(world, one, world.between(1, 8)) for one in specs]
    return tuple(render_tool(world, one) for one in specs)


def _finished(
    world: World, spec: ToolSpec, question: str, topics: list[tuple[str, str]], calls: list[Call]
) -> Example:
    others = world.between(9, 16) if world.chance(0.02) else world.pick(_NUM_OTHERS)
    messages = (user(question), calling(calls, thoughts(topics)))
    check = Check("tool", calls=tuple(calls))
    return Example(SKILL, messages, offered(world, spec, others), check)


def _single(world: World) -> Example:
    spec = draw_tool(world)
    arguments = draw_arguments(world, spec)
    question = draw_request(world, spec, arguments)
    return _finished(world, spec, question, [(spec.topic, spec.name)], [Call(spec.name, arguments)])


def _pair(world: World) -> Example:
    """Two calls of one tool."""
    spec = draw_tool(world)
    while len(spec.params) != 1 or spec.params[0].type == "boolean":
        spec = draw_tool(world)
    name = spec.param_names[0]
    one = other = draw_value(world, spec.params[0])
    while other == one:
        other = draw_value(world, spec.params[0])
    question = draw_pair(world, spec, name, (one, other))
    calls = [Call(spec.name, {name: value}) for value in (one, other)]
    return _finished(world, spec, question, [(spec.topic, spec.name)] * 2, calls)


def _both(world: World) -> Example:
    """Two calls of two tools."""
    one, other = with_distractors(world, draw_tool(world), 1)
    asked = [(spec, draw_arguments(world, spec)) for spec in (one, other)]
    question = draw_both(world, asked)
    calls = [Call(spec.name, arguments) for spec, arguments in asked]
    topics = [(spec.topic, spec.name) for spec, _ in asked]
    extra = with_distractors(world, one, world.between(0, 3))
    known = {one.topic, other.topic}
    names = {one.name.lower(), other.name.lower()}
    left = [s for s in extra if s.topic not in known and s.name.lower() not in names]
    specs = world.shuffled([one, other, *left])
    messages = (user(question), calling(calls, thoughts(topics)))
    return Example(SKILL, messages, render_all(world, specs), Check("tool", calls=tuple(calls)))


def _familiar(world: World) -> Example:
    """A tool that many clients have, asked for in everyday words. Training only."""
    familiar = draw_familiar(world)
    others = with_distractors(world, draw_tool(world), world.between(0, 4))
    tools = [json.loads(familiar.tool), *(render_tool(world, spec) for spec in others)]
    if world.chance(0.2):
        tools = tools[:1]
    call = Call(familiar.name, familiar.arguments)
    topics = [(familiar.topic, familiar.name)]
    messages = (user(familiar.question), calling([call], thoughts(topics)))
    return Example(SKILL, messages, tuple(world.shuffled(tools)), Check("tool", calls=(call,)))
