"""A user's request for a tool, and the arguments in it.

Owns values and the phrases that mention them. Must not know schemas beyond a parameter's kind.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from training.data.entities import clock_time, code
from training.data.pools import COLORS, WEEKDAYS
from training.data.toolbox import Param, ToolSpec
from training.data.world import World

_LEADS: Final = (
    "{verb} {thing}", "{verb} {thing}", "please {verb} {thing}", "can you {verb} {thing}",
    "could you {verb} {thing}", "I want to {verb} {thing}", "I need you to {verb} {thing}",
    "would you {verb} {thing}", "I would like to {verb} {thing}", "help me to {verb} {thing}",
    "it is time to {verb} {thing}", "let's {verb} {thing}", "you should {verb} {thing}",
    "now {verb} {thing}", "hey, {verb} {thing}", "I'd like you to {verb} {thing}",
)  # fmt: skip
_GET_LEADS: Final = (
    "what is {thing}", "what's {thing}", "tell me {thing}", "give me {thing}", "show me {thing}",
    "do you know {thing}", "I need {thing}", "can you tell me {thing}", "how is {thing}",
    "let me see {thing}", "I want to know {thing}", "could you give me {thing}",
)  # fmt: skip
_MENTIONS: Final = {
    "city": ("in {v}", "in {v}", "for {v}", "in the city of {v}", "near {v}"),
    "person": ("for {v}", "to {v}", "for {v}"),
    "named": ("called {v}", "named {v}", "with the {p} {v}", "with {p} {v}"),
    "date": ("on {v}", "for {v}", "on {v}"),
    "time": ("at {v}", "at {v} o'clock"),
    "quote": ('with the {p} "{v}"', 'saying "{v}"', 'with {p} "{v}"', '{p}: "{v}"'),
    "email": ("to {v}", "for {v}", "with the address {v}"),
    "path": ("at {v}", "in {v}", "from {v}", "under {v}"),
    "id": ("with the id {v}", "with id {v}", "number {v}", "{v}"),
    "color": ("in {v}", "in the color {v}", "colored {v}"),
    "days": ("for {v} days", "over {v} days", "for the next {v} days"),
    "minutes": ("for {v} minutes", "in {v} minutes", "of {v} minutes"),
    "people": ("for {v} people", "with {v} people"),
    "euros": ("for {v} euros", "at {v} euros", "with {v} euros", "of {v} euros"),
    "generic": (
        "with {p} {v}", "with the {p} {v}", "{p} {v}", "{p}: {v}", "with a {p} of {v}", "{p} = {v}",
        "using {v} as the {p}", "where the {p} is {v}", "and set the {p} to {v}", "with {v} as {p}",
    ),
    "enum": ("with {p} {v}", "with {v} {p}", "{p} {v}", "in {v} {p}", "{p}: {v}", "using {p} {v}"),
    "yes": ("with {p} on", "with {p}", "{p}: yes", "with {p} enabled", "and turn {p} on"),
    "no": ("with {p} off", "without {p}", "{p}: no", "with {p} disabled", "and turn {p} off"),
}  # fmt: skip


def draw_arguments(world: World, spec: ToolSpec) -> dict[str, Any]:
    """Arguments in the order of the schema; optional ones are present half of the time."""
    return {
        name: draw_value(world, param)
        for param, name in zip(spec.params, spec.param_names, strict=True)
        if param.is_required or world.chance(0.5)
    }


def draw_request(world: World, spec: ToolSpec, arguments: dict[str, Any]) -> str:
    """A sentence that asks for the call."""
    by_name = dict(zip(spec.param_names, spec.params, strict=True))
    kinds = {param.kind for param in by_name.values()}
    mentions = [
        _mention(world, by_name[name], value, is_shared=kinds >= {"city", "person"})
        for name, value in arguments.items()
    ]
    return _finish(world, _joined(world, _lead(world, spec), world.shuffled(mentions)))


def draw_pair(world: World, spec: ToolSpec, name: str, values: tuple[Any, Any]) -> str:
    """A sentence that asks for two calls that differ in one argument."""
    param = spec.params[spec.param_names.index(name)]
    one, other = (_mention(world, param, value) for value in values)
    link = world.pick((" and ", " and then ", ", and also ", " and "))
    return _finish(world, f"{_lead(world, spec)} {one}{link}{other}")


def draw_both(world: World, asked: list[tuple[ToolSpec, dict[str, Any]]]) -> str:
    """A sentence that asks for two calls of different tools."""
    parts = [draw_request(world, spec, arguments).rstrip(".?!") for spec, arguments in asked]
    parts[1] = parts[1][:1].lower() + parts[1][1:]
    return parts[0] + world.pick((" and ", ", and then ", ". Then ", " and also ")) + parts[1] + "."


def draw_value(world: World, param: Param) -> Any:  # noqa: ANN401 - any JSON value
    """A value of the parameter's type."""
    match param.type:
        case "enum":
            return world.pick(param.options)
        case "boolean":
            return world.chance(0.5)
        case "integer":
            return world.between(1, world.pick((9, 30, 99, 999)))
        case "number":
            whole = world.between(1, world.pick((9, 99, 999)))
            return whole + world.pick((0.5, 0.25, 0.75, 0.1)) if world.chance(0.5) else whole
        case _:
            return _TEXTS.get(param.kind, _free_text)(world)


def _free_text(world: World) -> str:
    chance = world.random()
    if chance < 0.5:
        return world.word()
    if chance < 0.7:
        return world.name()
    return code(world) if chance < 0.8 else f"{world.quality()} {world.noun()}"


def _date(world: World) -> str:
    day = f"2026-{world.between(1, 12):02}-{world.between(1, 28):02}"
    return world.pick(WEEKDAYS) if world.chance(0.6) else day


def _path(world: World) -> str:
    return f"/{world.of('nouns')}/{world.noun()}" + world.pick((".txt", ".md", "", ".csv"))


_TEXTS: Final[dict[str, Callable[[World], str]]] = {
    "city": World.place,
    "person": World.name,
    "named": lambda world: world.word().capitalize() if world.chance(0.5) else world.name(),
    "date": _date,
    "time": clock_time,
    "quote": lambda world: " ".join(world.word() for _ in range(world.between(2, 5))),
    "email": lambda world: f"{world.name().lower()}@{world.word()}.com",
    "path": _path,
    "id": code,
    "color": lambda world: world.pick(COLORS),
}


def _lead(world: World, spec: ToolSpec) -> str:
    verb = world.pick(spec.verbs)
    thing = world.pick(("the", "the", "a", "my", "")) + f" {spec.thing}"
    if spec.verbs[0] == "get" and world.chance(0.6):
        return world.pick(_GET_LEADS).format(thing=f"the {spec.thing}")
    return world.pick(_LEADS).format(verb=verb, thing=thing.strip())


def _mention(world: World, param: Param, value: object, *, is_shared: bool = False) -> str:
    """Words for one argument. `is_shared`: "for" could mean a town or a person, so the town gets
    "in".
    """
    if param.type == "boolean":
        return world.pick(_MENTIONS["yes" if value else "no"]).format(p=param.words)
    written = value if isinstance(value, str) else json.dumps(value)
    if param.kind == "generic" and isinstance(value, str) and world.chance(0.15):
        written = f'"{value}"'
    ways = _MENTIONS[param.kind]
    way = ways[0] if is_shared and param.kind == "city" else world.pick(ways)
    return way.format(p=param.words, v=written)


def _joined(world: World, lead: str, mentions: list[str]) -> str:
    if not mentions:
        return lead
    link = world.pick((" ", ", "))
    text = f"{lead}{link}{link.join(mentions[:-1])}" if len(mentions) > 1 else lead
    last = mentions[-1]
    if len(mentions) > 1 and not last.startswith("and ") and world.chance(0.4):
        last = f"and {last}"
    return f"{text} {last}" if last.startswith("and ") else f"{text}{link}{last}"


def _finish(world: World, text: str) -> str:
    chance = world.random()
    if chance < 0.75:
        text = text[:1].upper() + text[1:]
    if chance < 0.65:
        return text + ("?" if text[:4].lower() in {"can ", "coul", "what", "do y", "woul"} else ".")
    return text + " please" if chance > 0.95 else text
