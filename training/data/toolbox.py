"""Tools that no list holds: a verb, a thing and parameters become a name and a schema.

Owns how tools are named, described and what their parameters are called. Must not know requests.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from training.data.example import Tool
from training.data.pools import verbs
from training.data.world import World

ParamType = Literal["string", "integer", "number", "boolean", "enum"]


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter. `words` is its name in words; `kind` says which values and phrases fit."""

    words: str
    kind: str
    type: ParamType
    is_required: bool
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool: `verbs` mean the same, and the first stands for all in the reasoning."""

    name: str
    verbs: tuple[str, ...]
    thing: str
    params: tuple[Param, ...]
    param_names: tuple[str, ...]
    description: str

    @property
    def topic(self) -> str:
        """The reasoning's name for a request for this tool."""
        return f"{self.verbs[0]} {self.thing}"


_NATURAL: Final[tuple[tuple[str, str, ParamType, tuple[str, ...]], ...]] = (
    ("city", "city", "string", ()),
    ("city", "city", "string", ()),
    ("location", "city", "string", ()),
    ("person", "person", "string", ()),
    ("recipient", "person", "string", ()),
    ("customer", "person", "string", ()),
    ("name", "named", "string", ()),
    ("title", "named", "string", ()),
    ("date", "date", "string", ()),
    ("day", "date", "string", ()),
    ("time", "time", "string", ()),
    ("message", "quote", "string", ()),
    ("text", "quote", "string", ()),
    ("note", "quote", "string", ()),
    ("email", "email", "string", ()),
    ("path", "path", "string", ()),
    ("id", "id", "string", ()),
    ("color", "color", "string", ()),
    ("days", "days", "integer", ()),
    ("minutes", "minutes", "integer", ()),
    ("people", "people", "integer", ()),
    ("quantity", "generic", "integer", ()),
    ("limit", "generic", "integer", ()),
    ("price", "euros", "number", ()),
    ("amount", "euros", "number", ()),
    ("unit", "enum", "enum", ("celsius", "fahrenheit")),
    ("unit", "enum", "enum", ("metric", "imperial")),
    ("priority", "enum", "enum", ("low", "normal", "high")),
    ("size", "enum", "enum", ("small", "medium", "large")),
    ("format", "enum", "enum", ("pdf", "csv", "json")),
    ("urgent", "flag", "boolean", ()),
    ("force", "flag", "boolean", ()),
)
_TYPES: Final[tuple[ParamType, ...]] = (
    "string", "string", "string", "integer", "integer", "number", "boolean", "enum", "enum",
)  # fmt: skip
_TAILS: Final = (
    ".", ".", ".", "", " for the user.", " of the user.", " in the system.", " of a customer.",
    " and give back the result.", " at once.", " by the given values.", " with all details.",
)  # fmt: skip
_GUIDANCE: Final = (
    "Use this when the user asks for it.", "Do not call it twice with the same arguments.",
    "The result is JSON.", "Long results are cut.", "Returns an error if nothing is found.",
    "Needs a working connection.", "Ask the user first if something is unclear.",
    "Prefer it to others.",
    "Paths are absolute.", "The output is limited to 2000 lines.", "It may take some seconds.",
)  # fmt: skip
_PARAM_DESCRIPTIONS: Final = (
    "The {p}.", "The {p}", "{p}", "The {p} of the {thing}.", "The {p} to use.", "Which {p} to use.",
    "The {p} of the {thing}, as the user gives it.", "The wanted {p}.", "{p} of the {thing}",
)  # fmt: skip


_UNKNOWN_VERB: Final = 0.3
"""This share of the training's tools is named by a verb without meaning, so that only the match
between the request's words and the tool's name decides.
"""


def draw_tool(
    world: World, group: tuple[str, ...] | None = None, thing: str | None = None
) -> ToolSpec:
    """A tool; `group` and `thing` fix its function, for similar tools."""
    group = group or _draw_verbs(world)
    thing = thing or draw_thing(world)
    params = _params(world)
    verb = world.pick(group)
    style = _style(world)
    return ToolSpec(
        name=_tool_name(world, verb, thing, style),
        verbs=group,
        thing=thing,
        params=params,
        param_names=tuple(_param_name(param.words, style) for param in params),
        description=_description(world, world.pick(group) if world.chance(0.2) else verb, thing),
    )


def draw_thing(world: World) -> str:
    """The object of a tool: a thing of one word, sometimes two."""
    if world.chance(0.15):
        return f"{world.noun()} {world.noun()}"
    return world.noun()


def render_tool(world: World, spec: ToolSpec) -> Tool:
    """The tool as clients send it."""
    properties: dict[str, Any] = {}
    described = world.chance(0.7)
    for param, name in zip(spec.params, spec.param_names, strict=True):
        schema: dict[str, Any] = {"type": "string" if param.type == "enum" else param.type}
        if param.options:
            schema["enum"] = list(param.options)
        if described:
            words = world.pick(_PARAM_DESCRIPTIONS).format(p=param.words, thing=spec.thing)
            schema["description"] = words[:1].upper() + words[1:]
        properties[name] = schema
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    required = [
        name for param, name in zip(spec.params, spec.param_names, strict=True) if param.is_required
    ]
    if required or world.chance(0.5):
        parameters["required"] = required
    if world.chance(0.1):
        parameters["additionalProperties"] = False
    function = {"name": spec.name, "description": spec.description, "parameters": parameters}
    return {"type": "function", "function": function}


def with_distractors(world: World, spec: ToolSpec, count: int) -> list[ToolSpec]:
    """`spec` among `count` other tools, some of which share its verb or its thing."""
    specs = {spec.name.lower(): spec}
    topics = {spec.topic}
    while len(specs) <= count:
        chance = world.random()
        group = spec.verbs if chance < 0.3 else None
        other = draw_tool(world, group, spec.thing if 0.3 < chance < 0.5 else None)
        if other.topic not in topics and other.name.lower() not in specs:
            specs[other.name.lower()] = other
            topics.add(other.topic)
    return world.shuffled(list(specs.values()))


def draw_tools(world: World, count: int) -> list[ToolSpec]:
    """`count` tools that do different things."""
    return with_distractors(world, draw_tool(world), count - 1)


def lengthened(world: World, spec: ToolSpec, num_sentences: int) -> ToolSpec:
    """The same tool with a description as long as in agents."""
    guidance = " ".join(world.pick(_GUIDANCE) for _ in range(num_sentences))
    description = spec.description.rstrip(".") + ". " + guidance
    return ToolSpec(spec.name, spec.verbs, spec.thing, spec.params, spec.param_names, description)


def _draw_verbs(world: World) -> tuple[str, ...]:
    """Verbs that mean the same; "get" is by far the most frequent, as in real tools."""
    groups = verbs(world.split)
    chance = world.random()
    if world.split == "train" and world.chance(_UNKNOWN_VERB):
        return (world.joined(9),)
    if chance < 0.15:
        return groups[0]
    return groups[int(world.random() * 24)] if chance < 0.5 else world.pick(groups)


def _params(world: World) -> tuple[Param, ...]:
    count = world.pick((0, 1, 1, 1, 2, 2, 2, 3, 3, 4))
    params: list[Param] = []
    names: set[str] = set()
    kinds: set[str] = set()
    while len(params) < count:
        param = _param(world, is_required=world.chance(0.7))
        natural = param.kind not in {"generic", "enum", "flag"}
        if param.words in names or (natural and param.kind in kinds):
            continue
        names.add(param.words)
        kinds.add(param.kind)
        params.append(param)
    return tuple(sorted(params, key=lambda param: not param.is_required)) if count else ()


def _param(world: World, *, is_required: bool) -> Param:
    if world.chance(0.5):
        words, kind, type_, options = world.pick(_NATURAL)
        return Param(words, kind, type_, is_required, options)
    words = world.noun() if world.chance(0.8) else f"{world.quality()} {world.noun()}"
    type_ = world.pick(_TYPES)
    if type_ == "enum":
        options = tuple(world.several(world.word, world.between(2, 4)))
        return Param(words, "enum", type_, is_required, options)
    return Param(words, "flag" if type_ == "boolean" else "generic", type_, is_required)


def _style(world: World) -> str:
    chance = world.random()
    for style, share in (("snake", 0.6), ("camel", 0.8), ("kebab", 0.9), ("dotted", 0.97)):
        if chance < share:
            return style
    return "pascal"


def _tool_name(world: World, verb: str, thing: str, style: str) -> str:
    words = [verb, *thing.split()]
    if style == "dotted":
        return f"{'_'.join(words[1:])}.{verb}"
    if world.chance(0.12):
        words = [*words[1:], verb]
    if style == "camel":
        return words[0] + "".join(word.capitalize() for word in words[1:])
    if style == "pascal":
        return "".join(word.capitalize() for word in words)
    return ("-" if style == "kebab" else "_").join(words)


def _param_name(words: str, style: str) -> str:
    parts = words.split()
    if style in {"camel", "pascal"}:
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    return "_".join(parts)


def _description(world: World, verb: str, thing: str) -> str:
    article = world.pick(("a", "the", "the", ""))
    described = f"{verb.capitalize()} {article} {thing}".replace("  ", " ") + world.pick(_TAILS)
    return f"{described} {world.pick(_GUIDANCE)}" if world.chance(0.1) else described
