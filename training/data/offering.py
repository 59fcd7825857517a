"""Tools as a client offers them, and the thoughts before a call.

Owns how many tools stand beside the right one. Must not know what is asked.
"""

from training.data.example import Tool
from training.data.toolbox import ToolSpec, lengthened, render_tool, with_distractors
from training.data.world import World


def thoughts(topics: list[tuple[str, str]]) -> str:
    """What is asked for and which tool does it, a line for each call."""
    return "\n".join(f"The request is about: {topic}. Tool: {name}." for topic, name in topics)


def offered(world: World, spec: ToolSpec, num_others: int) -> tuple[Tool, ...]:
    """`spec` among other tools."""
    return render_all(world, with_distractors(world, spec, num_others))


def render_all(world: World, specs: list[ToolSpec]) -> tuple[Tool, ...]:
    """The tools, seldom with descriptions as long as those of agents."""
    if world.chance(0.06):
        specs = [lengthened(world, one, world.between(1, 8)) for one in specs]
    return tuple(render_tool(world, one) for one in specs)
