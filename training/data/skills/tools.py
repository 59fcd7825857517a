"""Choosing among unseen tools and filling the arguments from the user's words.

Owns single calls (mostly), two calls at once, and calls after an earlier one. The reasoning names
the request, then the tool.
"""

from typing import Final

from training.data.asking import draw_arguments, draw_both, draw_pair, draw_request, draw_value
from training.data.catalog import draw_familiar
from training.data.example import (
    Call,
    ExpectedAnswer,
    Message,
    Split,
    TrainingExample,
    answer,
    calling,
    tool_result,
    user,
)
from training.data.offering import offered, reasoning, render_all
from training.data.skills.tool_result import draw_result
from training.data.toolbox import ToolSpec, draw_tool, render_tool, with_distractors
from training.data.world import World

SKILL: Final = "tools"

_NUM_OTHERS: Final = (0, 0, 1, 1, 2, 2, 3, 3, 4, 5)
_MANY_SHARE: Final[dict[Split, float]] = {"train": 0.03, "eval": 0.02}
"""The share of cases with dozens of tools."""


def make(world: World) -> TrainingExample:
    chance = world.random()
    if chance < 0.12 and world.split == "train":
        return _familiar(world)
    if chance < 0.2:
        return _pair(world)
    if chance < 0.25:
        return _both(world)
    return _again(world) if chance < 0.32 else _single(world)


def make_among(world: World, num_others: int) -> TrainingExample:
    """One call of one tool among `num_others`."""
    spec = draw_tool(world)
    return _asked(world, spec, offered(world, spec, num_others), ())


def _single(world: World) -> TrainingExample:
    spec = draw_tool(world)
    return _asked(world, spec, offered(world, spec, _num_others(world)), ())


def _asked(
    world: World, spec: ToolSpec, tools: tuple[dict[str, object], ...], before: tuple[Message, ...]
) -> TrainingExample:
    arguments = draw_arguments(world, spec)
    question = draw_request(world, spec, arguments)
    call = Call(spec.name, arguments)
    messages = (*before, user(question), calling([call], reasoning([(spec.topic, spec.name)])))
    return TrainingExample(SKILL, messages, tools, ExpectedAnswer("tool", calls=(call,)))


def _again(world: World) -> TrainingExample:
    """A call after an earlier one of the same or another tool."""
    first = draw_tool(world)
    specs = with_distractors(world, first, world.pick(_NUM_OTHERS))
    arguments = draw_arguments(world, first)
    result, reply = draw_result(world, first)
    before = (
        user(draw_request(world, first, arguments)),
        calling([Call(first.name, arguments)], reasoning([(first.topic, first.name)])),
        tool_result(result),
        answer(reply),
    )
    return _asked(world, world.pick(specs), render_all(world, specs), before)


def _pair(world: World) -> TrainingExample:
    """Two calls of one tool."""
    spec = draw_tool(world)
    while len(spec.params) != 1 or spec.params[0].type == "boolean":
        spec = draw_tool(world)
    name = spec.param_names[0]
    one = other = draw_value(world, spec.params[0])
    while other == one:
        other = draw_value(world, spec.params[0])
    question = draw_pair(world, spec, name, (one, other))
    calls = tuple(Call(spec.name, {name: value}) for value in (one, other))
    messages = (user(question), calling(calls, reasoning([(spec.topic, spec.name)] * 2)))
    tools = offered(world, spec, _num_others(world))
    return TrainingExample(SKILL, messages, tools, ExpectedAnswer("tool", calls=calls))


def _both(world: World) -> TrainingExample:
    """Two calls of two tools."""
    specs = with_distractors(world, draw_tool(world), world.between(1, 4))
    asked = [(spec, draw_arguments(world, spec)) for spec in world.shuffled(specs)[:2]]
    question = draw_both(world, asked)
    calls = tuple(Call(spec.name, arguments) for spec, arguments in asked)
    topics = [(spec.topic, spec.name) for spec, _ in asked]
    messages = (user(question), calling(calls, reasoning(topics)))
    return TrainingExample(
        SKILL, messages, render_all(world, specs), ExpectedAnswer("tool", calls=calls)
    )


def _familiar(world: World) -> TrainingExample:
    """A tool that many clients have, with an everyday request. Training only."""
    familiar = draw_familiar(world)
    others = with_distractors(world, draw_tool(world), world.between(0, 4))
    tools = [familiar.tool, *(render_tool(world, spec) for spec in others)]
    if world.chance(0.2):
        tools = tools[:1]
    call = Call(familiar.name, familiar.arguments)
    topics = [(familiar.topic, familiar.name)]
    messages = (user(familiar.question), calling([call], reasoning(topics)))
    return TrainingExample(
        SKILL, messages, tuple(world.shuffled(tools)), ExpectedAnswer("tool", calls=(call,))
    )


def _num_others(world: World) -> int:
    share = _MANY_SHARE[world.split]
    return world.between(9, 16) if world.chance(share) else world.pick(_NUM_OTHERS)
