"""Requests that none of the offered tools fits.

Mostly another thing, sometimes the right thing with another verb.
"""

from typing import Final

from training.data.asking import draw_arguments, draw_request
from training.data.catalog import draw_familiar
from training.data.example import ExpectedAnswer, Tool, TrainingExample, answer, user
from training.data.offering import render_all
from training.data.refusals import NO_TOOL, REFUSALS
from training.data.toolbox import draw_tool, draw_tools
from training.data.world import World

SKILL: Final = "no_tool"


def make(world: World) -> TrainingExample:
    if world.chance(0.15):
        return _without_any(world)
    offered = draw_tools(world, world.pick((1, 1, 2, 2, 3, 3, 4, 5, 6)))
    topics = {spec.topic for spec in offered}
    things = {spec.thing for spec in offered}
    while True:
        near = world.pick(offered)
        thing = near.thing if world.chance(0.15) else None
        group = near.verbs if thing is None and world.chance(0.4) else None
        wanted = draw_tool(world, group, thing)
        if wanted.topic not in topics and (thing is not None or wanted.thing not in things):
            break
    question = draw_request(world, wanted, draw_arguments(world, wanted))
    return _refused(question, wanted.topic, render_all(world, offered))


def _without_any(world: World) -> TrainingExample:
    """A task without any tools."""
    if world.split == "train" and world.chance(0.5):
        familiar = draw_familiar(world)
        while familiar.topic == "calculate":
            familiar = draw_familiar(world)
        return _refused(familiar.question, familiar.topic, ())
    wanted = draw_tool(world)
    question = draw_request(world, wanted, draw_arguments(world, wanted))
    return _refused(question, wanted.topic, ())


def _refused(question: str, topic: str, tools: tuple[Tool, ...]) -> TrainingExample:
    think = f"The request is about: {topic}. No tool fits."
    messages = (user(question), answer(NO_TOOL, think))
    return TrainingExample(SKILL, messages, tools, ExpectedAnswer("text", texts=REFUSALS))
