"""The tools of a request, and the reasoning before a call.

Owns how many tools are offered beside the right one. Must not know the request.
"""

from training.data.example import Tool
from training.data.toolbox import ToolSpec, lengthened, render_tool, with_distractors
from training.data.world import World


def reasoning(topics: list[tuple[str, str]]) -> str:
    """The request and its tool, a line for each call."""
    return "\n".join(f"The request is about: {topic}. Tool: {name}." for topic, name in topics)


def offered(world: World, spec: ToolSpec, num_others: int) -> tuple[Tool, ...]:
    """`spec` among other tools."""
    return render_all(world, with_distractors(world, spec, num_others))


def render_all(world: World, specs: list[ToolSpec]) -> tuple[Tool, ...]:
    """The tools, rarely with descriptions as long as in agents."""
    if world.chance(0.06):
        specs = [lengthened(world, one, world.between(1, 8)) for one in specs]
    return tuple(render_tool(world, one) for one in specs)
