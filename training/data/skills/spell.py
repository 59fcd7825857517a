"""Words and their letters: spelling, joining, the first, the last, the third letter.

The reasoning separates letters by spaces, so that each is one token.
"""

from typing import Final

from training.data.example import TrainingExample, plain_case
from training.data.phrasing import phrases, requests
from training.data.world import World

SKILL: Final = "spell"

_SPELL: Final = requests(
    "Spell {x}.", "Spell the word {x}.", 'Spell "{x}".', "Spell out the word {x}.",
    "List the letters of {x}.", "Write the letters of {x} one by one.",
    'Spell the word "{x}" for me.',
    "Give me the letters of {x}.", "Write {x} letter by letter.",
) + phrases("How do you spell {x}?", "How is {x} spelled?",
"What are the letters of {x}?")  # fmt: skip
_JOIN: Final = requests(
    "Join these letters to a word: {x}", "Put these letters together: {x}", "Join the letters {x}",
    "Make one word of the letters {x}", "Write these letters as one word: {x}",
) + phrases("Which word do these letters make: {x}?", "What word is spelled {x}?")  # fmt: skip
_NTH: Final = requests(
    "Tell me the {nth} letter of {x}.", 'Name the {nth} letter of "{x}".',
    "Give me the {nth} letter of {x}.",
) + phrases(
    "What is the {nth} letter of {x}?", "What is the {nth} letter of the word {x}?",
    'Which letter is the {nth} in "{x}"?', "What is the {nth} letter in {x}?",
)  # fmt: skip
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")


def make(world: World) -> TrainingExample:
    word = world.short_word(3, 8)
    spelled = " ".join(word)
    chance = world.random()
    if chance < 0.45:
        question = world.pick(_SPELL).format(x=word)
        return plain_case(SKILL, question, spelled, also=("-".join(word),))
    if chance < 0.7:
        apart = world.pick((" ", " ", "-", ", ")).join(word)
        return plain_case(SKILL, world.pick(_JOIN).format(x=apart), word)
    counted = " ".join(f"{number} {letter}" for number, letter in enumerate(word, start=1))
    place = world.between(1, min(5, len(word)))
    nth, letter = _ORDINALS[place - 1], word[place - 1]
    if world.chance(0.3):
        nth, place, letter = "last", len(word), word[-1]
    question = world.pick(_NTH).format(nth=nth, x=word)
    return plain_case(SKILL, question, letter, f"{counted}\n{nth}: {place} {letter}")
