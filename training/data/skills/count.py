"""Counting: things in a list, words in a sentence, letters in a word, up to about ten.

The reasoning numbers every item.
"""

from collections.abc import Sequence
from typing import Final

from training.data.example import TrainingExample, plain_case
from training.data.phrasing import phrases, requests
from training.data.world import World

SKILL: Final = "count"

_ITEMS: Final = requests(
    "Count the items: {x}", "Count these words: {x}", "Count the things in this list: {x}",
    "Count: {x}", "Tell me how many items are in this list: {x}",
) + phrases(
    "How many items are in this list: {x}?", "How many words are there: {x}?",
    "How many things do I list here: {x}?", "How long is this list: {x}?",
    "How many are these: {x}?",
)  # fmt: skip
_WORDS: Final = requests(
    'Count the words in "{x}".', "Count the words of this sentence: {x}", "Count the words: {x}",
) + phrases(
    'How many words are in "{x}"?', "How many words does this sentence have: {x}",
    "How many words are in the sentence: {x}",
)  # fmt: skip
_LETTERS: Final = requests(
    "Count the letters in {x}.", 'Count the letters of "{x}".',
    "Count the letters of the word {x}.",
) + phrases(
    "How many letters are in {x}?", "How many letters does {x} have?",
    'How long is the word "{x}"?',
    "How many letters are in the word {x}?", "How many letters has the word {x}?",
)  # fmt: skip
_ONE_LETTER: Final = requests(
    "Count the letter {y} in {x}.", 'Count the {y}s in "{x}".',
    "Count how often {y} occurs in {x}.",
) + phrases(
    "How many times does {y} occur in {x}?", "How many {y}s are in {x}?",
    "How often is {y} in {x}?",
    'How many times is the letter "{y}" in the word "{x}"?', "How many {y}'s are there in {x}?",
    "How many letters {y} does {x} have?",
)  # fmt: skip
_ONE_ITEM: Final = requests(
    "Count how often {y} is in this list: {x}", "Count {y} in: {x}",
) + phrases(
    "How many times does {y} occur in this list: {x}?", "How often do I say {y}: {x}?",
    "How many times is {y} in the list {x}?",
)  # fmt: skip


def make(world: World) -> TrainingExample:
    chance = world.random()
    if chance < 0.3:
        words = [world.word() for _ in range(world.between(1, 10))]
        separator = world.pick((", ", ", ", " "))
        return _counted(world, _ITEMS, words, separator.join(words))
    if chance < 0.45:
        words = [world.word() for _ in range(world.between(2, 10))]
        text = " ".join(words)
        if world.chance(0.5):
            text = text[:1].upper() + text[1:]
        return _counted(world, _WORDS, text.split(), text)
    if chance < 0.65:
        word = world.short_word(3, 9)
        return _counted(world, _LETTERS, word, word)
    return _one_letter(world) if chance < 0.85 else _one_item(world)


def _counted(
    world: World, questions: tuple[str, ...], items: Sequence[str], text: str
) -> TrainingExample:
    think = " ".join(f"{item} {number}" for number, item in enumerate(items, start=1))
    return plain_case(SKILL, world.pick(questions).format(x=text), str(len(items)), think)


def _one_letter(world: World) -> TrainingExample:
    word = world.short_word(3, 9)
    letter = world.pick(word) if world.chance(0.8) else world.pick("abcdefghijklmnopqrstuvwxyz")
    question = world.pick(_ONE_LETTER).format(x=word, y=letter)
    return plain_case(SKILL, question, str(word.count(letter)), _tally(word, letter))


def _one_item(world: World) -> TrainingExample:
    kinds = world.several(world.word, world.between(2, 4))
    items = [world.pick(kinds) for _ in range(world.between(2, 8))]
    question = world.pick(_ONE_ITEM).format(x=", ".join(items), y=kinds[0])
    return plain_case(SKILL, question, str(items.count(kinds[0])), _tally(items, kinds[0]))


def _tally(items: Sequence[str], wanted: str) -> str:
    """Every item with the number of matching ones so far."""
    seen = 0
    steps = [f"{wanted}:"]
    for item in items:
        seen += item == wanted
        steps.append(f"{item} {seen}")
    return " ".join(steps)
