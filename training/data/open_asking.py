"""Requests in everyday words for tools of an open vocabulary.

Owns values and how a sentence says them: a text as the object of the verb or behind the preposition
of its description, a number before its unit. Must not know schemas.
"""

import json
from typing import Any, Final

from training.data.entities import clock_time
from training.data.open_tools import OpenParam, OpenTool, Role
from training.data.open_words import draw_label, gerund, past, plural
from training.data.pools import WEEKDAYS
from training.data.world import World

Arguments = dict[str, Any]

_WITH_OBJECT: Final = (
    "{v} the {o} {n}", "{v} {o}", "{v} the {n} {o}", "{v} {n} {o}", "{v} the {o}", "{v} my {o} {n}",
    "{v} the {n} of {o}", "{v} {o}", "{v} the {n} {o}", "{v} the {n} called {o}", "{v} a {o} {n}",
)  # fmt: skip
_STATED_OBJECT: Final = (
    "the {n} {o} must be {ed}", "the {o} has to be {ed}", "the {o} {n} should be {ed}",
    "{o} must be {ed}", "{o} needs to be {ed}", "I want the {n} {o} {ed}", "I want {o} {ed}",
    "I have the {n} {o} to {v}", "the {n} {o} wants {ing}", "I need the {o} {n} {ed}",
    "the {o} {n} is ready, {v} it", "there is the {n} {o}, {v} it", "my {o} {n} needs to be {ed}",
    "let the {n} {o} be {ed}", "the {o} {n} is to be {ed}",
)  # fmt: skip
_WITHOUT: Final = (
    "{v} a {n}", "{v} the {n}", "{v} me a {n}", "{v} my {n}", "{v} {ns}", "{v} the {n}",
    "{v} a {n}", "{v} one {n}", "{v} our {n}", "{v} {n}",
)  # fmt: skip
_STATED: Final = (
    "I need a {n}", "I need to {v} a {n}", "I'd like a {n}", "I want a {n}", "we want to {v} a {n}",
    "the {n} has to be {ed}", "the {n} must be {ed}", "a {n}", "I'd love a {n}", "we need a {n}",
    "the {n} should be {ed}", "the {n} needs {ing}", "I would like to {v} a {n}", "get me a {n}",
    "I want the {n} {ed}", "there is a {n} to {v}", "I have a {n} to {v}", "give me a {n}",
    "I'd like to {v} the {n}", "it is time to {v} the {n}", "let's {v} the {n}", "how about a {n}",
    "there is a {n}, {v} it", "here is a {n} and it must be {ed}",
)  # fmt: skip
_BY_PERSON: Final = (
    "{w} wants a {n}", "{w} needs a {n}", "{w} wants the {n} {ed}", "{w} has to {v} a {n}",
    "{w} needs the {n} {ed}", "{v} {w} a {n}", "{w} would like a {n}",
)  # fmt: skip
_ASKING: Final = (
    "{x}", "{x}", "{x}", "{x}", "please {x}", "please {x}", "could you {x}", "can you {x}",
    "would you {x}", "I want you to {x}", "I need you to {x}", "now {x}", "{x} for me", "hey, {x}",
    "I want to {x}", "I'd like to {x}", "I would like you to {x}", "go and {x}",
)  # fmt: skip
_LIGHT_OBJECT: Final = (
    "give {a} to the {o} {n}", "give the {o} {n} {a}", "set the {o} {n} to {a}", "set {o} to {a}",
    "take {a} from {n} {o}", "take {a} out of the {n} {o}", "{a} for the {o} {n}",
    "use {a} for {o}", "{a} in the {o} {n}", "I want {a} in the {n} {o}", "put {a} on the {n} {o}",
    "{o} gets {a}", "the {n} {o} needs {a}", "let the {o} {n} have {a}", "bring {o} up to {a}",
    "{o}: {a}", "the {o} {n} gets {a}", "turn the {n} {o} to {a}", "{a} for {n} {o}",
    "make it {a} for {o}", "I need {a} for the {o}", "keep the {o} {n} at {a}",
    "the {o} {n} with {a}", "I want {a} {ed} from {o}", "{a} to {v} the {n} {o}",
    "I want {a} to {v} {o}",
)  # fmt: skip
_LIGHT_PERSON: Final = (
    "give {w} {a}", "{w} gets {a} for the {n}", "{w} wants a {n} for {a}", "{w} needs {a} of {n}",
    "{w} needs the {n} for {a}", "let {w} have a {n}, {a}", "{w} gets {a}",
)  # fmt: skip
_LIGHT: Final = (
    "I need {a} of {n}", "make {a} of {n}", "{a} of {n}", "I want {a} to {v} the {n}",
    "give me {a}", "{v} {a} of the {n}", "use {a}, the {n} must be {ed}", "can I have {a} of {n}",
    "I'd love {a}", "open {a}, the {n} must be {ed}", "we are {a} and want to {v} a {n}",
    "we are {a}, {v} a {n}", "we have {a} to {v}", "there are {a} to {v}", "{a} of the {n}",
    "the {n} with its {a}",
)  # fmt: skip
_BARE_AMOUNT: Final = ("{o}", "to {o}", "with {o}")
_LIGHT_SHARE: Final = 0.3
_PLACE: Final = ("{c} {o}", "{c} {o}", "{c} {o}", "{c} {o}", "{c} the {o}", "{c} {o}")
_NAMED_PLACE: Final = ("{c} the {p} {o}", "{c} {p} {o}", "{c} the {o} {p}", "{p} {o}", "{p}: {o}")
_PERSON: Final = ("{c} {o}",)
_NAMED_PERSON: Final = ("{c} {p} {o}", "{c} the {p} {o}", "the {p} is {o}", "{p} {o}")
_AMOUNT: Final = (
    "{o} {p}", "{o} {p}", "for {o} {p}", "with {o} {p}", "up to {o} {p}", "to {o} {p}",
    "of {o} {p}", "at {o} {p}", "{o} {p}", "with its {o} {p}", "in {o} {p}", "{o} {p} each",
)  # fmt: skip
_MEASURE: Final = (
    "with {p} {o}", "with a {p} of {o}", "{p} {o}", "at a {p} of {o}", "the {p} is {o}",
    "on {p} {o}", "with the {p} {o}", "{p}: {o}", "at {p} {o}", "{p} number {o}",
    "on {p} number {o}",
)  # fmt: skip
_CHOICE: Final = (
    "{o}", "{p} {o}", "with {o} {p}", "with {p} {o}", "it is {o}", "with {o}", "the {p} is {o}",
    "{o} {p}", "in {o}",
)  # fmt: skip
_YES: Final = ("{p}", "with {p}", "{p} on", "{p} please", "and {p}", "it should be {p}")
_NO: Final = ("not {p}", "without {p}", "{p} off", "no {p}", "but not {p}")
_TIME: Final = ("{c} {o}", "{c} {o}", "{p} {o}", "{c} {o} please")
_TEXT: Final = (
    'saying "{o}"', 'with the {p} "{o}"', '{p} "{o}"', '"{o}"', 'that says "{o}"', 'with "{o}"',
)  # fmt: skip
_BEFORE: Final = (
    "We have guests.", "I am late.", "It is cold here.", "Good morning!", "Hi!", "Thanks for that.",
    "It is urgent.", "I have no time today.", "One more thing.", "Hello,", "So,", "All right.",
)  # fmt: skip
_NUMBERS: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
)  # fmt: skip
_SPELLED: Final = 0.05


def draw_open_request(
    world: World, tool: OpenTool, *, is_plain: bool = False
) -> tuple[str, Arguments]:
    """A request and the arguments that it gives. `is_plain`: it has verb and thing unchanged."""
    given = [
        (param, name, _value(world, param))
        for param, name in zip(tool.params, tool.names, strict=True)
        if param.is_required or world.chance(0.4)
    ]
    arguments = {name: value for _, name, value in given}
    said = _Said(world, tool, [(param, value) for param, _, value in given])
    lead = said.plain() if is_plain else said.lead()
    mentions = [said.mention(param, value) for param, value in said.rest]
    return _finish(world, _joined(world, lead, world.shuffled(mentions))), arguments


class _Said:
    """What a request says; `rest` are the arguments that its lead leaves."""

    def __init__(self, world: World, tool: OpenTool, given: list[tuple[OpenParam, Any]]) -> None:
        self.rest = given
        self._world = world
        self._tool = tool
        self._num_amounts = sum(param.role == "amount" for param, _ in given)
        verb, noun = tool.verb, tool.noun
        self._words = {"v": verb, "ed": past(verb), "ing": gerund(verb)}
        self._words |= {"n": noun, "ns": plural(noun)}

    def plain(self) -> str:
        """With verb and thing."""
        tool = self._tool
        return self._world.pick(_ASKING).format(x=f"{tool.verb} the {tool.noun}")

    def lead(self) -> str:
        """The part with verb or thing, and with the arguments that belong to it."""
        world, pick = self._world, self._world.pick
        roles = {param.role for param, _ in self.rest}
        if "amount" in roles and world.chance(_LIGHT_SHARE):
            return self._light(roles)
        if "object" in roles:
            self._say("object", "o")
            if world.chance(0.35):
                return self._fill(_STATED_OBJECT)
            return pick(_ASKING).format(x=self._fill(_WITH_OBJECT))
        if "person" in roles and world.chance(0.3):
            self._say("person", "w")
            return self._fill(_BY_PERSON)
        if world.chance(0.45):
            return self._fill(_STATED)
        return pick(_ASKING).format(x=self._fill(_WITHOUT))

    def mention(self, param: OpenParam, value: object) -> str:
        """The words for one argument."""
        words = {"p": param.words, "c": param.cue, "o": _spoken(self._world, value)}
        if param.role == "time":
            words["c"] = "at" if ":" in str(value) else "on"
        if param.role == "amount" and value == 1:
            words["p"] = param.words.removesuffix("s")
        return self._world.pick(self._ways(param, value)).format(**words)

    def _ways(self, param: OpenParam, value: object) -> tuple[str, ...]:
        world = self._world
        if param.role == "flag":
            return _YES if value else _NO
        if param.role == "amount" and self._num_amounts == 1 and world.chance(0.06):
            return _BARE_AMOUNT
        if param.role in _NAMED and (not param.is_evident or world.chance(0.25)):
            return _NAMED[param.role]
        return _MENTIONS[param.role]

    def _light(self, roles: set[Role]) -> str:
        """With a number and another verb, or none."""
        param, value = self._take("amount")
        self._words["a"] = f"{_spoken(self._world, value)} {param.words}"
        if "object" in roles:
            self._say("object", "o")
            return self._fill(_LIGHT_OBJECT)
        if "person" in roles and self._world.chance(0.7):
            self._say("person", "w")
            return self._fill(_LIGHT_PERSON)
        return self._fill(_LIGHT)

    def _say(self, role: str, key: str) -> None:
        self._words[key] = str(self._take(role)[1])

    def _take(self, role: str) -> tuple[OpenParam, Any]:
        taken = next(one for one in self.rest if one[0].role == role)
        self.rest = [one for one in self.rest if one is not taken]
        return taken

    def _fill(self, ways: tuple[str, ...]) -> str:
        return self._world.pick(ways).format(**self._words)


def _spoken(world: World, value: object) -> str:
    if isinstance(value, str):
        return value
    is_small = isinstance(value, int) and 0 < value < len(_NUMBERS)
    if isinstance(value, int) and is_small and world.chance(_SPELLED):
        return _NUMBERS[value]
    return json.dumps(value)


def _value(world: World, param: OpenParam) -> Any:  # noqa: ANN401 - any JSON value
    match param.role:
        case "amount" | "measure":
            return _number(world, is_whole=param.type == "integer")
        case "choice":
            return world.pick(param.options)
        case "flag":
            return world.chance(0.7)
        case "person":
            return f"{world.name()} {world.name()}" if world.chance(0.15) else world.name()
        case "time":
            return clock_time(world) if world.chance(0.4) else _day(world)
        case "text":
            return " ".join(world.word() for _ in range(world.between(1, 5)))
        case _:
            return draw_label(world)


def _number(world: World, *, is_whole: bool) -> int | float:
    whole = world.between(1, world.pick((9, 12, 30, 99, 300, 1999)))
    if is_whole or world.chance(0.4):
        return whole
    return whole + world.pick((0.5, 0.25, 0.75, 0.1, 0.8))


def _day(world: World) -> str:
    return world.pick(
        (
            world.pick(WEEKDAYS),
            world.pick(("today", "tomorrow", "tonight")),
            f"2026-{world.between(1, 12):02}-{world.between(1, 28):02}",
        )
    )


_MENTIONS: Final[dict[str, tuple[str, ...]]] = {
    "object": ("{p} {o}", "the {p} {o}"),
    "place": _PLACE,
    "person": _PERSON,
    "amount": _AMOUNT,
    "measure": _MEASURE,
    "choice": _CHOICE,
    "time": _TIME,
    "text": _TEXT,
}


_NAMED: Final[dict[str, tuple[str, ...]]] = {"place": _NAMED_PLACE, "person": _NAMED_PERSON}


def _joined(world: World, lead: str, mentions: list[str]) -> str:
    """Mostly the lead first; rarely one mention, or all, before it."""
    chance = world.random()
    if mentions and chance < 0.12:
        first, *mentions = mentions
        comma = world.pick((", ", ", ", " "))
        lead = f"{first}{comma}{lead}"
    elif mentions and chance < 0.18:
        return f"{world.pick((' ', ', ')).join([*mentions, lead])}"
    text = lead
    for number, mention in enumerate(mentions):
        is_last = number == len(mentions) - 1
        link = world.pick((" ", " ", ", ", " and " if number and is_last else " "))
        text += link + mention
    return text


def _finish(world: World, text: str) -> str:
    if world.chance(0.12):
        text = text + world.pick((" please", ", please"))
    if world.chance(0.85):
        text = text[:1].upper() + text[1:]
    if world.chance(0.8):
        is_question = text[:4].lower() in {"coul", "can ", "woul", "how "}
        text += "?" if is_question else world.pick((".", ".", ".", "!"))
    return f"{world.pick(_BEFORE)} {text}" if world.chance(0.06) else text
