"""The skills, each in its own file, with its share of the training."""

from collections.abc import Callable
from typing import Final

from training.data.example import TrainingExample
from training.data.skills import (
    arithmetic,
    case,
    comparison,
    count,
    facts,
    greeting,
    json_field,
    memory,
    natural,
    no_tool,
    outside,
    repeat,
    reverse,
    sort,
    spell,
    tool_result,
    tools,
    unknown,
)
from training.data.world import World

Make = Callable[[World], TrainingExample]

MAKERS: Final[dict[str, tuple[float, Make]]] = {
    greeting.SKILL: (4, greeting.make),
    arithmetic.SKILL: (9, arithmetic.make),
    comparison.SKILL: (6, comparison.make),
    repeat.SKILL: (5, repeat.make),
    reverse.SKILL: (7, reverse.make),
    spell.SKILL: (8, spell.make),
    case.SKILL: (14, case.make),
    count.SKILL: (6, count.make),
    sort.SKILL: (7, sort.make),
    facts.SKILL: (9, facts.make),
    memory.SKILL: (5, memory.make),
    json_field.SKILL: (10, json_field.make),
    tools.SKILL: (40, tools.make),
    natural.SKILL: (45, natural.make),
    tool_result.SKILL: (8, tool_result.make),
    no_tool.SKILL: (5, no_tool.make),
    unknown.SKILL: (3, unknown.make),
    outside.SKILL: (5, outside.make),
}
"""The skill's name, its weight, and the function that makes a case."""

EARLIER: Final[tuple[Make, ...]] = (
    repeat.make,
    arithmetic.make,
    comparison.make,
    count.make,
    greeting.small_talk,
)
"""Tasks that may stand before another one."""
