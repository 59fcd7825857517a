"""Words of a list, or letters of a word, from the last to the first.

The reasoning numbers everything, then writes it from the highest number down.
"""

from typing import Final

from training.data.example import TrainingExample, plain_case
from training.data.phrasing import phrases, requests
from training.data.world import World

SKILL: Final = "reverse"

_WORDS: Final = requests(
    "Reverse the order of these words: {x}", "Reverse the words: {x}", "Reverse this list: {x}",
    "Write these words in reverse order: {x}", "List these backwards: {x}",
    "Turn this list around: {x}",
    "Put these words in the opposite order: {x}", "Reverse the list {x}", "Reverse the items: {x}",
    "Say these words from last to first: {x}", "Give me this list in reverse order: {x}",
    "Start with the last and end with the first: {x}",
)  # fmt: skip
_LETTERS: Final = requests(
    "Reverse the word {x}.", 'Reverse the letters of "{x}".', "Spell {x} backwards.",
    'Reverse "{x}".',
    "Write the word {x} backwards.", "Write {x} from right to left.", 'Turn the word "{x}" around.',
    "Reverse the letters in {x}.", "Reverse the string {x}.", "Say {x} backwards.", "Reverse: {x}",
) + phrases(
    "What is {x} backwards?", 'What is "{x}" in reverse?', "How do you write {x} backwards?",
    "What does {x} look like when it is reversed?",
)  # fmt: skip


def make(world: World) -> TrainingExample:
    if world.chance(0.5):
        separator = world.pick((", ", ", ", " "))
        words = world.several(world.word, world.between(2, 6))
        question = world.pick(_WORDS).format(x=separator.join(words))
        return plain_case(SKILL, question, separator.join(reversed(words)), _reasoning(words))
    word = world.short_word(3, 7)
    question = world.pick(_LETTERS).format(x=word)
    return plain_case(SKILL, question, word[::-1], _reasoning(word))


def _reasoning(items: list[str] | str) -> str:
    counted = list(enumerate(items, start=1))
    forward = " ".join(f"{number} {item}" for number, item in counted)
    backward = " ".join(f"{number} {item}" for number, item in reversed(counted))
    return f"{forward}\n{backward}"
