"""Long text of many kinds, mostly unlike the tasks.

Owns the text before a late question: rules, stories, one repeated paragraph, code, logs, JSON,
other alphabets, identifiers. It contains no request. Must not know skills.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from training.data.filler import agent_system, story
from training.data.foreign import foreign_text, junk, snippet
from training.data.world import World

_COMMON_TEXT: Final = (
    "the of to and in that it is was for on with as at by from this but not or have an they "
    "which one you were all her she there would their we him been has when who will no more if "
    "out so what up said about into than them can only other time new some could these two may "
    "first then do any like my now over such our me even most made after also did many must "
    "before back see through way where get much go well your know should down work year because "
    "come people just each never always again while until between every field value error result "
    "step file line"
)
_COMMON: Final = tuple(_COMMON_TEXT.split())
_HEADS: Final = (
    "Rule {n}: ", "{n}. ", "Step {n}: ", "- ", "[{n}] ", "Note {n}: ", "", "* ", "({n}) ",
    "Chapter {n}. ", "#{n} ", "Item {n}: ", "{n}) ", "## {n}\n",
)  # fmt: skip
_HEX: Final = "0123456789abcdef"
_SIGNS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LEVELS: Final = ("INFO", "DEBUG", "WARNING", "ERROR", "TRACE")


def sprawl(world: World, num_tokens: int) -> str:
    """About `num_tokens` tokens of text, of one kind or of several."""
    kinds = world.shuffled(_KINDS)[: world.pick((1, 1, 2, 3, 5))]
    parts: list[str] = []
    left = float(num_tokens)
    while left > 0:
        make, letters_per_token = world.pick(kinds)
        wanted = min(left, world.between(100, 3000)) * letters_per_token
        text = make(world, int(wanted))
        parts.append(text)
        left -= max(1.0, len(text) / letters_per_token)
    return world.pick(("\n\n", "\n", " ")).join(parts)


def prose(world: World, num_letters: int) -> str:
    """Sentences of common and of invented words."""
    return _until(num_letters, " ", lambda: _sentence(world))


def again(world: World, num_letters: int) -> str:
    """One paragraph under changing numbers, with one word replaced each time."""
    body = " ".join(_sentence(world) for _ in range(world.between(1, 4)))
    slot = world.pick(body.split(" "))
    head = world.pick(_HEADS)
    words = [world.word() for _ in range(world.between(1, 20))]
    size = len(head) + len(body) + 1
    return world.pick(("\n", " ", "\n\n")).join(
        head.replace("{n}", str(n)) + body.replace(slot, world.pick(words), 1)
        for n in range(1, 2 + num_letters // size)
    )


def _sentence(world: World) -> str:
    words = [
        world.pick(_COMMON) if world.chance(0.6) else world.word()
        for _ in range(world.between(4, 24))
    ]
    if world.chance(0.4):
        words[len(words) // 2] += world.pick((",", ",", ";", ":"))
    text = " ".join(words)
    return text[:1].upper() + text[1:] + world.pick((".", ".", ".", "!", "?"))


def _rules(world: World, num_letters: int) -> str:
    return agent_system(world, max(1, num_letters // 45))


def _story(world: World, num_letters: int) -> str:
    return story(world, max(1, num_letters // 34))


def _code(world: World, num_letters: int) -> str:
    return snippet(world, max(1, num_letters // 40))


def _foreign(world: World, num_letters: int) -> str:
    return _until(num_letters, world.pick((" ", "\n")), lambda: foreign_text(world))


def _junk(world: World, num_letters: int) -> str:
    return _until(num_letters, world.pick((" ", "\n")), lambda: junk(world))


def _identifiers(world: World, num_letters: int) -> str:
    letters = world.pick((_HEX, _SIGNS, "0123456789"))
    size = world.pick((8, 16, 32, 40, 64))
    return _until(
        num_letters,
        world.pick(("\n", " ", ", ")),
        lambda: "".join(world.pick(letters) for _ in range(size)),
    )


def _log(world: World, num_letters: int) -> str:
    def line() -> str:
        clock = f"{world.between(0, 23):02}:{world.between(0, 59):02}:{world.between(0, 59):02}"
        what = " ".join(world.pick(_COMMON) for _ in range(world.between(2, 7)))
        head = f"2026-{world.between(1, 12):02}-{world.between(1, 28):02} {clock}"
        return f"{head} {world.pick(_LEVELS)} {world.noun()}: {what} {world.between(0, 9999)}"

    return _until(num_letters, "\n", line)


def _json(world: World, num_letters: int) -> str:
    indent = world.pick((None, None, 2, 4))
    return _until(
        num_letters,
        "\n",
        lambda: json.dumps(_value(world, 3), indent=indent, ensure_ascii=world.chance(0.5)),
    )


def _value(world: World, depth: int) -> Any:  # noqa: ANN401 - any JSON value
    chance = world.random()
    if depth == 3 or (depth and chance < 0.3):
        return {world.noun(): _value(world, depth - 1) for _ in range(world.between(1, 6))}
    if depth and chance < 0.45:
        return [_value(world, depth - 1) for _ in range(world.between(0, 5))]
    if chance < 0.7:
        return world.pick((world.between(0, 99999), world.between(0, 999) / 10, True, None))
    if chance < 0.78:
        return foreign_text(world)
    return _sentence(world) if chance < 0.9 else world.word()


def _words(world: World, num_letters: int) -> str:
    return _until(num_letters, world.pick((" ", ", ", "\n")), world.word)


def _until(num_letters: int, link: str, draw: Callable[[], str]) -> str:
    """Draws of `draw`, joined, up to about `num_letters`."""
    parts: list[str] = []
    while num_letters > 0:
        parts.append(draw())
        num_letters -= len(parts[-1]) + len(link)
    return link.join(parts)


_KINDS: Final[tuple[tuple[Callable[[World, int], str], float], ...]] = (
    (_rules, 3.5),
    (_rules, 3.5),
    (_story, 3.0),
    (prose, 2.6),
    (prose, 2.6),
    (again, 2.5),
    (again, 2.5),
    (again, 2.5),
    (_code, 2.0),
    (_foreign, 0.8),
    (_junk, 1.3),
    (_identifiers, 1.1),
    (_log, 1.5),
    (_json, 2.1),
    (_json, 2.1),
    (_words, 2.4),
)
"""Each kind, repeated by its weight, with its letters per token."""
