"""Tools that nobody has seen, asked for in everyday words.

In training the words are drawn anew for each tool, so that only the match between the request and
names, descriptions and parameters decides. In evaluation the tools are those of `family`.
"""

import re
from typing import Final

from training.data.example import Call, ExpectedAnswer, TrainingExample, answer, calling, user
from training.data.family import draw_family_case
from training.data.offering import reasoning
from training.data.open_asking import draw_open_request
from training.data.open_tools import OpenTool, draw_open_tool, render_open_tool
from training.data.refusals import NO_TOOL, REFUSALS
from training.data.world import World

SKILL: Final = "natural"

_NUM_OTHERS: Final = (0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6)
_NO_TOOL_SHARE: Final = 0.1
_MANY_SHARE: Final = 0.03
_SHORT: Final = 3


def make(world: World) -> TrainingExample:
    if world.split == "eval":
        return draw_family_case(world, SKILL)
    tool = draw_open_tool(world)
    if world.chance(_NO_TOOL_SHARE):
        return _refused(world, tool)
    question, arguments = draw_open_request(world, tool)
    offered = world.shuffled([tool, *_others(world, tool, question)])
    call = Call(tool.name, arguments)
    messages = (user(question), calling([call], reasoning([(tool.topic, tool.name)])))
    tools = tuple(render_open_tool(one) for one in offered)
    return TrainingExample(SKILL, messages, tools, ExpectedAnswer("tool", calls=(call,)))


def _refused(world: World, tool: OpenTool) -> TrainingExample:
    """The tool that is asked for is not offered."""
    question, _ = draw_open_request(world, tool, is_plain=True)
    others = _others(world, tool, question) or [draw_open_tool(world)]
    think = f"The request is about: {tool.verb} {tool.noun}. No tool fits."
    messages = (user(question), answer(NO_TOOL, think))
    tools = tuple(render_open_tool(one) for one in others)
    return TrainingExample(SKILL, messages, tools, ExpectedAnswer("text", texts=REFUSALS))


def _others(world: World, tool: OpenTool, question: str) -> list[OpenTool]:
    """Tools beside it. One may share its verb if the request has the thing, and the reverse."""
    count = world.between(7, 14) if world.chance(_MANY_SHARE) else world.pick(_NUM_OTHERS)
    others: dict[str, OpenTool] = {tool.name: tool}
    asked = set(re.findall("[a-z]+", question.lower()))
    has_verb = _has(asked, tool.verb)
    has_noun = all(_has(asked, word) for word in tool.noun.split())
    for _ in range(count):
        chance = world.random()
        verb = tool.verb if has_noun and chance < 0.12 else None
        noun = tool.noun if has_verb and 0.12 < chance < 0.24 else None
        other = draw_open_tool(world, verb, noun)
        others.setdefault(other.name, other)
    return list(others.values())[1:]


def _has(asked: set[str], word: str) -> bool:
    """Whether a form of `word` is among the words."""
    stem = word[:-1] if len(word) > _SHORT else word
    return any(one.startswith(stem) for one in asked)
