"""Which number is larger, whether one is, who is older, the largest of several.

The reasoning compares numbers of one width from their first digit on.
"""

from typing import Final

from training.data.example import TrainingExample, plain_case
from training.data.phrasing import phrases, requests
from training.data.world import World

SKILL: Final = "comparison"

_LARGER: Final = phrases(
    "Which is larger, {a} or {b}?", "Which number is greater: {a} or {b}?",
    "What is more, {a} or {b}?",
    "Which is bigger: {a} or {b}?", "Is {a} or {b} the larger number?",
    "Which one is higher, {a} or {b}?",
    "Tell me the larger of {a} and {b}.", "What is the maximum of {a} and {b}?",
    "Of {a} and {b}, which is the greater?", "{a} or {b}: which is larger?",
    "Name the bigger number: {a}, {b}.", "Compare {a} and {b}. Which is greater?",
)  # fmt: skip
_SMALLER: Final = phrases(
    "Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?",
    "What is less, {a} or {b}?",
    "Is {a} or {b} the smaller number?", "Which one is lower, {a} or {b}?",
    "Tell me the smaller of {a} and {b}.", "What is the minimum of {a} and {b}?",
    "Of {a} and {b}, which is the smaller?", "{a} or {b}: which is smaller?",
    "Name the lesser number: {a}, {b}.", "Compare {a} and {b}. Which is smaller?",
)  # fmt: skip
_IS_LARGER: Final = phrases(
    "Is {a} larger than {b}?", "Is {a} greater than {b}?", "Is {a} bigger than {b}?",
    "Is {a} > {b}?",
    "Is {a} more than {b}?", "Is it true that {a} is larger than {b}?", "{a} > {b}?",
)  # fmt: skip
_IS_SMALLER: Final = phrases(
    "Is {a} smaller than {b}?", "Is {a} less than {b}?", "Is {a} < {b}?", "Is {a} lower than {b}?",
    "Is it true that {a} is smaller than {b}?", "{a} < {b}?",
)  # fmt: skip
_LARGEST: Final = requests(
    "Tell me the largest of {list}.", "Find the largest number: {list}",
    "Name the maximum of {list}.",
) + phrases(
    "What is the largest of {list}?", "Which is the biggest: {list}?",
    "What is the maximum of {list}?",
    "Which of {list} is the largest?", "What is the highest number in {list}?",
)  # fmt: skip
_SMALLEST: Final = requests(
    "Tell me the smallest of {list}.", "Find the smallest number: {list}",
    "Name the minimum of {list}.",
) + phrases(
    "What is the smallest of {list}?", "What is the minimum of {list}?",
    "Which is the least: {list}?",
    "Which of {list} is the smallest?", "What is the lowest number in {list}?",
)  # fmt: skip
_STORIES: Final = (
    ("{x} is {a} years old and {y} is {b} years old. Who is {which}?", "older", "younger"),
    ("{x} is {a}, {y} is {b}. Who is {which}?", "older", "younger"),
    ("{x} has {a} {things} and {y} has {b} {things}. Who has {which}?", "more", "fewer"),
    ("{x} scored {a} points, {y} scored {b} points. Who scored {which}?", "more", "less"),
    ("{x} is {a} cm tall and {y} is {b} cm tall. Who is {which}?", "taller", "shorter"),
    ("{x} weighs {a} kg, {y} weighs {b} kg. Who is {which}?", "heavier", "lighter"),
    ("{x} paid {a} euros and {y} paid {b} euros. Who paid {which}?", "more", "less"),
)


def make(world: World) -> TrainingExample:
    chance = world.random()
    if chance < 0.3:
        return _which(world)
    if chance < 0.55:
        return _whether(world)
    return _story(world) if chance < 0.75 else _extreme(world)


def _which(world: World) -> TrainingExample:
    a, b = _pair(world)
    larger = world.chance(0.5)
    question = world.pick(_LARGER if larger else _SMALLER).format(a=a, b=b)
    return plain_case(SKILL, question, str(max(a, b) if larger else min(a, b)), compared(a, b))


def _whether(world: World) -> TrainingExample:
    a, b = _pair(world)
    if world.chance(0.08):
        b = a
    larger = world.chance(0.5)
    question = world.pick(_IS_LARGER if larger else _IS_SMALLER).format(a=a, b=b)
    return plain_case(
        SKILL, question, "Yes." if (a > b if larger else a < b) else "No.", compared(a, b)
    )


def _story(world: World) -> TrainingExample:
    a, b = _pair(world)
    x, y = world.several(world.name, 2)
    story, more, less = world.pick(_STORIES)
    larger = world.chance(0.5)
    question = story.format(
        a=a, b=b, x=x, y=y, things=world.of("foods"), which=more if larger else less
    )
    return plain_case(
        SKILL, question, x if (a > b) == larger else y, f"{x} {a}, {y} {b}\n{compared(a, b)}"
    )


def _extreme(world: World) -> TrainingExample:
    limit = world.pick((20, 99, 999))
    numbers = [
        int(text)
        for text in world.several(lambda: str(world.between(0, limit)), world.between(3, 5))
    ]
    largest = world.chance(0.5)
    extreme = max(numbers) if largest else min(numbers)
    width = len(str(max(numbers)))
    think = f"{' '.join(str(n).zfill(width) for n in numbers)}\n{str(extreme).zfill(width)}"
    question = world.pick(_LARGEST if largest else _SMALLEST).format(
        list=", ".join(map(str, numbers))
    )
    return plain_case(SKILL, question, str(extreme), think)


def compared(a: int, b: int) -> str:
    """The digits side by side until they differ."""
    width = max(len(str(a)), len(str(b)))
    one, other = str(a).zfill(width), str(b).zfill(width)
    steps = []
    for x, y in zip(one, other, strict=True):
        sign = _sign(int(x), int(y))
        steps.append(f"{x} {sign} {y}")
        if sign != "=":
            break
    return f"{' '.join(one)}, {' '.join(other)}\n{', '.join(steps)}: {a} {_sign(a, b)} {b}"


def _sign(a: int, b: int) -> str:
    return "=" if a == b else ">" if a > b else "<"


def _pair(world: World) -> tuple[int, int]:
    limit = world.pick((9, 99, 999, 999, 9999))
    a = world.between(0, limit)
    b = a
    while b == a:
        near = world.chance(0.4)
        b = max(0, a + world.between(-12, 12)) if near else world.between(0, limit)
    return a, b
