"""Capital and small letters.

The reasoning spells each word, then spells it in the other case.
"""

from typing import Final

from training.data.example import TrainingExample, plain_case
from training.data.phrasing import phrases, requests
from training.data.world import World

SKILL: Final = "case"

_UPPER: Final = requests(
    "Write {x} in upper case.", "Convert to upper case: {x}", 'Write "{x}" in capital letters.',
    "Put {x} in capitals.", "Make this upper case: {x}", "Upper-case this: {x}",
    "Capitalise all: {x}",
    "Turn {x} into capital letters.", "Uppercase: {x}", "Change {x} to uppercase.", "Shout: {x}",
    "Convert {x} to uppercase.", "Write in all caps: {x}",
) + phrases("What is {x} in upper case?", "What is {x} in capital letters?")  # fmt: skip
_LOWER: Final = requests(
    "Write {x} in lower case.", "Convert to lower case: {x}", 'Write "{x}" in small letters.',
    "Put {x} in small letters.", "Make this lower case: {x}", "Lower-case this: {x}",
    "Turn {x} into small letters.", "Lowercase: {x}", "Change {x} to lowercase.",
    "Convert {x} to lowercase.", "Write without capitals: {x}",
) + phrases("What is {x} in lower case?", "What is {x} in small letters?")  # fmt: skip


def make(world: World) -> TrainingExample:
    words = [world.short_word(2, 8) for _ in range(world.pick((1, 1, 2, 2, 3)))]
    if world.chance(0.6):
        given = [word.capitalize() if world.chance(0.15) else word for word in words]
        wanted, questions = [word.upper() for word in words], _UPPER
    else:
        given = [word.capitalize() if world.chance(0.25) else word.upper() for word in words]
        wanted, questions = words, _LOWER
    think = "\n".join(
        f"{' '.join(one)}: {' '.join(other)}" for one, other in zip(given, wanted, strict=True)
    )
    return plain_case(
        SKILL, world.pick(questions).format(x=" ".join(given)), " ".join(wanted), think
    )
