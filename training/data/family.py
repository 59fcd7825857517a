"""Requests in everyday words for tools whose verbs, nouns and parameters the training never uses.

Reads words/family.txt. Every request holds words of the right tool's name, description or
parameters, so that it can be matched without knowing the words. For evaluation only.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from training.data.example import Call, ExpectedAnswer, Tool, TrainingExample, calling, user
from training.data.offering import reasoning
from training.data.pools import family_lines
from training.data.world import World

_NUM_OTHERS: Final = (1, 2, 2, 3, 3, 4, 5)


@dataclass(slots=True)
class _Param:
    """`values` are JSON values; `options` are the values of an enum."""

    name: str
    type: str
    description: str
    values: list[Any]
    options: list[str]


@dataclass(slots=True)
class _Tool:
    name: str
    description: str
    params: list[_Param] = field(default_factory=list)
    asks: list[str] = field(default_factory=list)

    def as_json(self) -> Tool:
        """The tool as clients send it. What every request gives is required."""
        properties: dict[str, Any] = {}
        for param in self.params:
            schema: dict[str, Any] = {"type": param.type, "description": param.description}
            properties[param.name] = schema | ({"enum": param.options} if param.options else {})
        required = [param.name for param in self.params if param.values]
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def draw_family_case(world: World, skill: str) -> TrainingExample:
    """One request for one tool of the family among others."""
    tool = world.pick(_tools())
    others = [one for one in _tools() if one is not tool]
    offered = world.shuffled([tool, *world.shuffled(others)[: world.pick(_NUM_OTHERS)]])
    request = world.pick(tool.asks)
    arguments = {
        param.name: world.pick(param.values)
        for param in tool.params
        if f"{{{param.name}}}" in request
    }
    question = request.format(**arguments)
    call = Call(tool.name, arguments)
    topic = tool.name.replace("_", " ")
    messages = (
        user(question[:1].upper() + question[1:]),
        calling([call], reasoning([(topic, tool.name)])),
    )
    check = ExpectedAnswer("tool", calls=(call,))
    return TrainingExample(skill, messages, tuple(one.as_json() for one in offered), check)


@lru_cache
def _tools() -> tuple[_Tool, ...]:
    tools: list[_Tool] = []
    for line in family_lines():
        if line.startswith("["):
            name, _, description = line[1:].partition("] ")
            tools.append(_Tool(name, description))
        elif line.startswith("ask: "):
            tools[-1].asks.append(line.removeprefix("ask: "))
        else:
            tools[-1].params.append(_param(line))
    return tuple(tools)


def _param(line: str) -> _Param:
    """From `NAME: TYPE: DESCRIPTION = VALUE | VALUE`; an enum's type is followed by its options."""
    head, _, tail = line.partition(" = ")
    name, type_, description = (part.strip() for part in head.split(":", 2))
    kind, *options = type_.split()
    values: list[Any] = [_value(one, kind) for one in tail.split(" | ") if one]
    if kind == "enum":
        return _Param(name, "string", description, list(options), options)
    return _Param(name, kind, description, values, [])


def _value(text: str, kind: str) -> int | float | str:
    if kind == "integer":
        return int(text)
    if kind == "number":
        return float(text) if re.search(r"\.", text) else int(text)
    return text
