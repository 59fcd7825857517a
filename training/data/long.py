"""Conversations of many thousand tokens that end in a short answer.

Owns where the length comes from: the system text, the tools' descriptions, a text from the user.
The questions are those of the skills, some in the middle and one at the end, so that after any kind
of long context the model still answers in a sentence and stops.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from training.data.example import Message, Split, Tool, TrainingExample, answer, user
from training.data.filler import agent_system
from training.data.offering import render_all
from training.data.refusals import OUTSIDE
from training.data.skills import EARLIER, MAKERS, facts, memory, outside, tools
from training.data.sprawl import again, prose, sprawl
from training.data.toolbox import draw_tools
from training.data.world import World

_LETTERS_PER_TOKEN: Final = 2.6
_ABOUT: Final = ("Summarise this: {x}", "{x}", "Explain this:\n{x}", "{x}\n\nWhat is this?")
_LIKELY: Final = 0.9
"""Share of the tokens that is text; the rest is the conversation around it."""

_SHORT: Final = (*EARLIER, memory.make, facts.make)
"""Requests of an agent's user that need no tool."""

_ALONE: Final = frozenset({memory.SKILL, facts.SKILL})
"""Skills whose answer depends on the whole conversation."""


def long_examples(seed: int, split: Split, least: int, most: int) -> Iterator[TrainingExample]:
    """Cases of about `least` to `most` tokens, endless."""
    world = World(f"{split} long {seed}", split)
    while True:
        yield _any(world, int(_LIKELY * world.between(least, most)))


def far_facts(seed: int, count: int, num_tokens: int) -> list[TrainingExample]:
    """Held-out questions about facts somewhere in a text of about `num_tokens` tokens."""
    world = World(f"eval far {seed}", "eval")
    return [_facts_in(world, num_tokens, 1) for _ in range(count)]


def long_agents(seed: int, count: int, num_tokens: int) -> list[TrainingExample]:
    """Held-out requests of agents: 17 tools, long descriptions, rules, then any task."""
    world = World(f"eval agents {seed}", "eval")
    return [_agent(world, num_tokens, 16) for _ in range(count)]


def _any(world: World, num_tokens: int) -> TrainingExample:
    chance = world.random()
    if chance < 0.25:
        return _facts_in(world, num_tokens, world.between(1, 8))
    if chance < 0.65:
        return _agent(world, num_tokens, world.between(7, 19))
    makers = [make for _, make in MAKERS.values()]
    task = world.rng.choices(makers, [weight for weight, _ in MAKERS.values()])[0](world)
    return _surrounded(world, task, num_tokens)


def _facts_in(world: World, num_tokens: int, num_questions: int) -> TrainingExample:
    def bury(sentences: list[str]) -> str:
        return _mixed(world, sprawl(world, num_tokens), sentences)

    return facts.make_far(world, bury, num_questions)


def _agent(world: World, num_tokens: int, num_others: int) -> TrainingExample:
    """An agent's request: the task fits one tool, or none."""
    if world.chance(0.45):
        task = tools.make_among(world, num_others)
    else:
        specs = draw_tools(world, num_others + 1)
        task = world.pick((outside.make, *_SHORT))(world)
        task = replace(task, tools=render_all(world, specs))
    if task.skill not in _ALONE and task.messages[0]["role"] != "system":
        task = replace(task, messages=_history(world, world.between(0, 5)) + task.messages)
    share = world.pick((0.2, 0.4, 0.5, 0.6, 0.8))
    longer = _longer_tools(world, task.tools, int(share * num_tokens))
    left = num_tokens - int(len(json.dumps(longer)) / _LETTERS_PER_TOKEN)
    text = world.pick((again, prose, _rules, _sprawled))(
        world, max(0, int(left * _LETTERS_PER_TOKEN))
    )
    return replace(task, tools=longer, messages=_with_system(task.messages, text))


def _rules(world: World, num_letters: int) -> str:
    return agent_system(world, max(1, num_letters // 45))


def _sprawled(world: World, num_letters: int) -> str:
    return sprawl(world, int(num_letters / _LETTERS_PER_TOKEN))


def _surrounded(world: World, task: TrainingExample, num_tokens: int) -> TrainingExample:
    """`task` behind a long system text, a long text of the user's, or both, and other tasks."""
    share = world.pick((0.0, 0.3, 0.6, 1.0))
    system = sprawl(world, int(share * num_tokens)) if share else ""
    messages = task.messages
    head = messages[:1] if messages[0]["role"] == "system" else ()
    before = _history(world, world.between(0, 6)) if task.skill not in _ALONE else ()
    if share < 1.0:
        text = world.pick(_ABOUT).format(x=sprawl(world, int((1.0 - share) * num_tokens)))
        turn = (user(text), answer(OUTSIDE))
        if task.skill == "memory":
            messages = (*messages[:-2], *turn, *messages[-2:])
        else:
            before = (*before, *turn) if world.chance(0.5) else (*turn, *before)
    messages = (*head, *before, *messages[len(head) :])
    return replace(task, messages=_with_system(messages, system))


def _history(world: World, count: int) -> tuple[Message, ...]:
    earlier = [world.pick(EARLIER)(world) for _ in range(count)]
    return tuple(
        message for task in earlier for message in task.messages if message["role"] != "system"
    )


def _with_system(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Put `text` first, joined with an existing system text."""
    if not text:
        return messages
    if messages[0]["role"] == "system":
        text, messages = f"{text}\n\n{messages[0]['content']}", messages[1:]
    return ({"role": "system", "content": text}, *messages)


def _longer_tools(world: World, given: tuple[Tool, ...], num_tokens: int) -> tuple[Tool, ...]:
    """The same tools with longer descriptions, the same addition for all or a different one for
    each.
    """
    size = max(40, int(num_tokens * _LETTERS_PER_TOKEN / max(1, len(given))))
    shared = prose(world, size // 2) if world.chance(0.5) else ""
    times = world.pick((1, 1, 2, 5)) if shared else 1
    return tuple(_longer_tool(world, tool, shared, times, size) for tool in given)


def _longer_tool(world: World, tool: Tool, shared: str, times: int, size: int) -> Tool:
    function: dict[str, Any] = dict(tool["function"])
    text = (shared[: max(40, size // (times + 1))] + " ") * times if shared else prose(world, size)
    function["description"] = f"{function['description'].rstrip('.')}. {text}".strip()
    more = f" {shared[: size // 4]}"
    if shared and world.chance(0.7):
        parameters = function["parameters"]
        properties = {
            name: {**schema, "description": schema.get("description", name) + more}
            for name, schema in parameters["properties"].items()
        }
        function["parameters"] = {**parameters, "properties": properties}
    return {**tool, "function": function}


def _mixed(world: World, text: str, sentences: list[str]) -> str:
    """`text` with the sentences inserted, each after the end of a sentence or a line."""
    pieces = text.replace("\n", "\n\0").replace(". ", ". \0").split("\0")
    places = sorted(world.between(0, len(pieces)) for _ in sentences)
    for place, sentence in reversed(list(zip(places, sentences, strict=True))):
        pieces.insert(place, f"{sentence} ")
    return "".join(pieces)
