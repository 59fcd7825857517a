"""Tools with an open vocabulary: what each parameter is for is said in words.

Owns names, descriptions and the roles of parameters. The user's words for a tool may stand in its
name, in its description or in its parameters alone. For training only. Must not know requests.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from training.data.example import Tool
from training.data.open_words import draw_noun, draw_verb, gerund, past, plural
from training.data.world import World

Role = Literal["object", "place", "person", "amount", "measure", "choice", "flag", "time", "text"]


@dataclass(frozen=True, slots=True)
class OpenParam:
    """`words` name it; `cue` is the preposition of a place or a person, which its description has
    too. `type` is JSON's.
    """

    role: Role
    words: str
    type: str
    description: str
    is_required: bool
    cue: str = ""
    options: tuple[str, ...] = ()

    @property
    def is_evident(self) -> bool:
        """Whether a request may leave out its name: its type tells, or its description."""
        if self.role in {"place", "person"}:
            return f" {self.cue} " in f" {self.description.lower().rstrip('.')} "
        return self.role not in {"measure", "text"}


@dataclass(frozen=True, slots=True)
class OpenTool:
    """`verb` and `noun` are the user's words; those of `name` may be others, if the description has
    the user's.
    """

    name: str
    topic: str
    verb: str
    noun: str
    description: str
    params: tuple[OpenParam, ...]
    names: tuple[str, ...]
    is_described: bool


_PLACE_CUES: Final = (
    "to", "to", "from", "in", "at", "on", "with", "by", "under", "near", "into", "over",
    "against", "about", "through", "behind", "across", "via", "as", "of",
)  # fmt: skip
_PERSON_CUES: Final = ("for", "to", "of", "with", "by", "from")
_OBJECT: Final = (
    "Which {n} to {v}.", "The {n} to {v}.", "The {n} that is {ed}.", "Which {n}.", "What to {v}.",
    "The name of the {n}.", "The {p} of the {n} to {v}.", "Which {p} to {v}.", "The {p} to {v}.",
    "The {n}", "{n} to {v}", "Whose {n} to {v}.", "The {n}, by its {p}.",
)  # fmt: skip
_PLACE: Final = (
    "{cue} which {p}.", "The {p} {cue} which it goes.", "The {p} {cue} which it is {ed}.",
    "Where it goes {cue}.", "What to {v} it {cue}.", "The {p} to {v} {cue}.", "The {p}.",
    "The {p} {cue} which the {n} is {ed}.", "{cue} what it is {ed}.", "Which {p} it is {cue}.",
)  # fmt: skip
_PERSON: Final = (
    "{cue} whom.", "Who it is {cue}.", "The {p} {cue} whom the {n} is {ed}.", "Who gets the {n}.",
    "Whose {n} is {ed}.", "{cue} which {p}.", "The {p} it is {cue}.", "Whose {n}.", "The {p}.",
)  # fmt: skip
_AMOUNT: Final = (
    "How many {ps}.", "The number of {ps}.", "{ps} per {n}.", "For how many {ps}.",
    "How many {ps}?", "Number of {ps} to {v}", "Up to how many {ps}.", "With how many {ps}.",
    "To how many {ps}.", "{ps}", "The {n} in {ps}.", "After how many {ps} it ends.",
    "How many {ps} to {v}.",
)  # fmt: skip
_MEASURE: Final = (
    "The {p} of the {n}.", "The {p}.", "Which {p}.", "The {p} to use.", "{p}", "The wanted {p}.",
    "By which {p}.", "The number of the {p}.",
)  # fmt: skip
_CHOICE: Final = (
    "The {p}.", "Which {p}.", "The {p} of the {n}.", "How {p} it is.", "The {p} to use.", "{p}",
)  # fmt: skip
_FLAG: Final = (
    "Whether it is {p}.", "Whether the {n} is {p}.", "With {p} or without.", "If {p} is wanted.",
)  # fmt: skip
_TIME: Final = (
    "When to {v} it.", "The {p}.", "The {p} of the {n}.", "When the {n} is {ed}.", "On which {p}.",
)  # fmt: skip
_TEXT: Final = (
    "The {p}.", "The {p} of the {n}.", "What it says.", "Which {p} to write.", "The text.",
)  # fmt: skip
_DOES: Final = (
    "{V} a {n}.", "{V} the {n}.", "{V} a {n} {tail}.", "{V} the {n} {tail}.", "{V} {ns}.",
    "{V} {ns} {tail}.", "{V}s a {n}.", "{Ing} of a {n}.", "Lets the user {v} a {n}.",
    "{V} one {n}.", "{V} a {n} with the given values.", "A {n} is {ed}.", "Use this to {v} a {n}.",
    "{V} a {n}.", "{V} a {q} {n}.", "To {v} a {n} {tail}.",
)  # fmt: skip
_TAILS: Final = (
    "of the user", "with a {o}", "in the {o}", "for a {o}", "of a {o}", "by its {o}", "on the {o}",
    "that brings the {o}", "from the {o}", "across the {o}", "against the {o}", "at the {o}",
)  # fmt: skip
_MORE: Final = (
    "Returns JSON.", "Fails if there is none.", "May take some seconds.", "Not for {o}s.",
    "Ask first if something is unclear.", "The result says whether it worked.",
)  # fmt: skip
_ROLES: Final[tuple[tuple[float, Role], ...]] = (
    (0.24, "object"), (0.44, "place"), (0.55, "person"), (0.76, "amount"), (0.84, "measure"),
    (0.92, "choice"), (0.94, "flag"), (0.97, "time"), (1.0, "text"),
)  # fmt: skip
_NUM_PARAMS: Final = (0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4)
_ONCE: Final = frozenset({"object", "person", "time", "text", "flag"})
_FIRST: Final[tuple[Role, ...]] = ("object", "object", "amount", "place", "person", "choice")


def draw_open_tool(world: World, verb: str | None = None, noun: str | None = None) -> OpenTool:
    """A tool; a given `verb` or `noun` makes it like another one."""
    verb, noun = verb or draw_verb(world), noun or draw_noun(world)
    described_verb, described_noun = verb, noun
    # The name has other words than the description, and the user knows only one of them.
    chance = world.random()
    if chance < 0.1:
        described_verb = draw_verb(world)
    elif chance < 0.2:
        described_noun = draw_noun(world)
    is_described = world.chance(0.88)
    params = _params(world, verb, noun, is_described=is_described)
    style = world.pick(("snake", "snake", "snake", "snake", "camel", "kebab", "dotted"))
    tool = OpenTool(
        name=_name(world, verb, noun, style),
        topic=f"{verb} {noun}",
        verb=verb,
        noun=noun,
        description=_description(world, described_verb, described_noun),
        params=params,
        names=tuple(_styled(param.words, style.replace("kebab", "snake")) for param in params),
        is_described=is_described,
    )
    if world.chance(0.6):
        return replace(tool, verb=described_verb, noun=described_noun)
    return tool


def render_open_tool(tool: OpenTool) -> Tool:
    """The tool as clients send it."""
    properties: dict[str, Any] = {}
    for param, name in zip(tool.params, tool.names, strict=True):
        schema: dict[str, Any] = {"type": param.type}
        if tool.is_described:
            schema["description"] = param.description
        properties[name] = schema | ({"enum": list(param.options)} if param.options else {})
    required = [
        name for param, name in zip(tool.params, tool.names, strict=True) if param.is_required
    ]
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _description(world: World, verb: str, noun: str) -> str:
    other = draw_noun(world)
    tail = world.pick(_TAILS).format(o=other)
    text = world.pick(_DOES).format(
        V=_cap(verb), v=verb, n=noun, ns=plural(noun), ed=past(verb), Ing=_cap(gerund(verb)),
        tail=tail, q=world.quality(),
    )  # fmt: skip
    return f"{text} {world.pick(_MORE).format(o=other)}" if world.chance(0.1) else text


def _params(world: World, verb: str, noun: str, *, is_described: bool) -> tuple[OpenParam, ...]:
    count = world.pick(_NUM_PARAMS)
    params: list[OpenParam] = []
    while len(params) < count:
        role = world.pick(_FIRST) if not params else _role(world)
        param = _param(world, role, verb, noun)
        if not is_described:
            words = noun if role == "object" else param.words
            param = replace(param, description="", words=words)
        is_new = role not in _ONCE or all(one.role != role for one in params)
        cues = {one.cue for one in params if one.cue}
        taken = {one.words for one in params}
        if is_new and param.cue not in cues and param.words not in taken:
            params.append(param)
    shown = world.shuffled(params) if world.chance(0.3) else params
    return tuple(sorted(shown, key=lambda one: not one.is_required)) if shown else ()


def _role(world: World) -> Role:
    chance = world.random()
    return next(role for share, role in _ROLES if chance < share)


def _param(world: World, role: Role, verb: str, noun: str) -> OpenParam:
    words, cue, type_ = draw_noun(world), "", "string"
    options: tuple[str, ...] = ()
    ways = _WAYS[role]
    match role:
        case "object":
            if world.chance(0.55):
                words, ways = noun, tuple(way for way in ways if "{p}" not in way)
        case "place":
            cue = world.pick(_PLACE_CUES)
        case "person":
            cue = world.pick(_PERSON_CUES)
        case "amount":
            type_ = "number" if world.chance(0.15) else "integer"
        case "measure":
            type_ = world.pick(("number", "integer"))
        case "choice":
            options = tuple(world.several(world.word, world.between(2, 4)))
        case "flag":
            words, type_ = world.quality(), "boolean"
        case "time" | "text":
            pass
    description = world.pick(ways).format(
        p=words, ps=plural(words), n=noun, v=verb, ed=past(verb), cue=cue
    )
    name = plural(words) if role == "amount" and world.chance(0.85) else words
    is_required = role != "flag" and world.chance(0.85)
    return OpenParam(role, name, type_, _cap(description), is_required, cue, options)


_WAYS: Final[dict[Role, tuple[str, ...]]] = {
    "object": _OBJECT,
    "place": _PLACE,
    "person": _PERSON,
    "amount": _AMOUNT,
    "measure": _MEASURE,
    "choice": _CHOICE,
    "flag": _FLAG,
    "time": _TIME,
    "text": _TEXT,
}


def _name(world: World, verb: str, noun: str, style: str) -> str:
    words = [verb, *noun.split()]
    if style == "dotted":
        return f"{'_'.join(words[1:])}.{verb}"
    if world.chance(0.1):
        words = [*words[1:], verb]
    return _styled(" ".join(words), style)


def _styled(words: str, style: str) -> str:
    parts = words.split()
    if style == "camel":
        return parts[0] + "".join(_cap(part) for part in parts[1:])
    return ("-" if style == "kebab" else "_").join(parts)


def _cap(text: str) -> str:
    return text[:1].upper() + text[1:]
