"""Words by the alphabet and numbers by size, up to six.

The reasoning writes out what is compared (first letters, numbers of one width), then the same in
order. Words of one list begin with different letters.
"""

from typing import Final

from training.data.example import TrainingExample, plain_case
from training.data.phrasing import requests
from training.data.world import World

SKILL: Final = "sort"

_WORDS: Final = requests(
    "Sort these words: {x}", "Sort alphabetically: {x}",
    "Put these words in alphabetical order: {x}",
    "Order these words from A to Z: {x}", "Sort this list: {x}", "Alphabetise: {x}",
    "Arrange these words by the alphabet: {x}", "Sort the words {x}",
    "List these in alphabetical order: {x}",
    "Sort {x} alphabetically.", "Bring these words into alphabetical order: {x}", "Sort: {x}",
)  # fmt: skip
_WORDS_DOWN: Final = requests(
    "Sort these words from Z to A: {x}", "Put these words in reverse alphabetical order: {x}",
    "Order these words from Z to A: {x}", "Sort from Z to A: {x}",
)  # fmt: skip
_NUMBERS: Final = requests(
    "Sort these numbers: {x}", "Sort the numbers {x}", "Sort in ascending order: {x}", "Sort: {x}",
    "Put these numbers in order: {x}", "Order these numbers from smallest to largest: {x}",
    "Arrange the numbers {x} from low to high.", "Sort from small to large: {x}",
    "Sort this list: {x}",
    "List these numbers by size, the smallest first: {x}", "Bring these numbers into order: {x}",
)  # fmt: skip
_NUMBERS_DOWN: Final = requests(
    "Sort in descending order: {x}", "Order these numbers from largest to smallest: {x}",
    "Sort these numbers from high to low: {x}", "Sort from large to small: {x}",
    "List these numbers by size, the largest first: {x}",
)  # fmt: skip


def make(world: World) -> TrainingExample:
    return _words(world) if world.chance(0.55) else _numbers(world)


def _words(world: World) -> TrainingExample:
    by_letter: dict[str, str] = {}
    count = world.between(2, 6)
    while len(by_letter) < count:
        word = world.name() if world.chance(0.1) else world.word()
        by_letter.setdefault(word[0].lower(), word)
    letters = list(by_letter)
    down = world.chance(0.2)
    ordered = sorted(letters, reverse=down)
    think = (
        f"{', '.join(f'{letter} {by_letter[letter]}' for letter in letters)}\n"
        f"{' '.join(ordered)}\n"
        f"{', '.join(f'{letter} {by_letter[letter]}' for letter in ordered)}"
    )
    separator = world.pick((", ", ", ", ", ", " "))
    given = separator.join(by_letter[letter] for letter in letters)
    wanted = ", ".join(by_letter[letter] for letter in ordered)
    question = world.pick(_WORDS_DOWN if down else _WORDS).format(x=given)
    return plain_case(SKILL, question, wanted, think)


def _numbers(world: World) -> TrainingExample:
    limit = world.pick((9, 99, 99, 999))
    count = world.between(2, 6 if limit < 999 else 4)
    numbers = [int(text) for text in world.several(lambda: str(world.between(0, limit)), count)]
    down = world.chance(0.3)
    ordered = sorted(numbers, reverse=down)
    width = len(str(max(numbers)))
    given, wanted = (" ".join(str(n).zfill(width) for n in some) for some in (numbers, ordered))
    separator = world.pick((", ", ", ", " "))
    question = world.pick(_NUMBERS_DOWN if down else _NUMBERS).format(
        x=separator.join(map(str, numbers))
    )
    return plain_case(SKILL, question, ", ".join(map(str, ordered)), f"{given}\n{wanted}")
