"""Repeating text character by character: words, sentences, numbers and codes."""

from typing import Final

from training.data.entities import code
from training.data.example import TrainingExample, plain_case
from training.data.phrasing import requests
from training.data.world import World

SKILL: Final = "repeat"

_REQUESTS: Final = requests(
    "Repeat: {x}", "Repeat after me: {x}", 'Repeat "{x}".', "Say: {x}", 'Say "{x}".', "Echo: {x}",
    "Say this: {x}", "Repeat the following text: {x}", "Repeat this exactly: {x}", "Write: {x}",
    "Repeat this sentence:\n{x}", "Answer with exactly this: {x}", 'Write "{x}".', "Print: {x}",
    'Reply with "{x}".', "Reply with: {x}", "Copy this line: {x}", "Repeat these words: {x}",
    "Say after me: {x}", "Repeat\n\n{x}", "Reply only with the following: {x}", "Say {x}",
)  # fmt: skip
_SENTENCES: Final = (
    "The {adjective} {animal} sees the {noun}.", "{name} lives in {place}.", "I like {food}!",
    "{name} and {other} eat {food} in {place}.", "Is the {noun} {adjective}?", "hello {name}",
    "My {noun} is {adjective} and my {other_noun} is not.", "{name}, where is the {noun}?",
    "We need {number} {food}.", "The {job} has a {adjective} {noun}.", "{noun} {number}",
    "A {animal}, a {noun} and {number} {food}", "{name} said: the {noun} is {adjective}.",
)  # fmt: skip


def make(world: World) -> TrainingExample:
    text = _text(world)
    return plain_case(SKILL, world.pick(_REQUESTS).format(x=text), text)


def _text(world: World) -> str:
    chance = world.random()
    if chance < 0.4:
        return " ".join(world.word() for _ in range(world.between(1, 8)))
    if chance < 0.5:
        return code(world)
    if chance < 0.6:
        return ", ".join(world.word() for _ in range(world.between(2, 5)))
    return world.pick(_SENTENCES).format(
        adjective=world.of("adjectives"),
        animal=world.of("animals"),
        noun=world.noun(),
        other_noun=world.noun(),
        name=world.name(),
        other=world.name(),
        place=world.place(),
        food=world.of("foods"),
        job=world.of("jobs"),
        number=world.between(2, 999),
    )
