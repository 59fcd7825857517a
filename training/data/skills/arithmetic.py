"""Sums and differences up to three digits, products with one digit, column by column.

The reasoning makes them learnable: the digits from the last to the first, and each column with its
carry, so that every step is one line of a small table.
"""

from typing import Final

from training.data.example import TrainingExample, plain_case
from training.data.phrasing import phrases, requests
from training.data.world import World

SKILL: Final = "arithmetic"

_SIGNS: Final = {
    "+": ("+", "+", "+", "plus", "plus"),
    "-": ("-", "-", "-", "minus", "−"),
    "*": ("*", "*", "x", "×", "times", "multiplied by"),
}
_BARE: Final = phrases(
    "What is {sum}?", "What's {sum}?", "{sum}", "{sum} = ?", "{sum} =", "How much is {sum}?",
    "What does {sum} make?", "Do you know what {sum} is?", "Can you tell me what {sum} is?",
    "I need to know how much {sum} is.", "What is the result of {sum}?", "{sum}?", "{sum}, please.",
)  # fmt: skip
_COMMANDS: Final = requests(
    "Calculate {sum}.", "Compute {sum}.", "Work out {sum}.", "Solve {sum}.", "Tell me {sum}.",
    "Calculate: {sum}", "Give me the result of {sum}.", "Evaluate {sum}.",
)  # fmt: skip
_QUESTIONS: Final = _BARE + _COMMANDS
_WORDED: Final = {
    "+": phrases(
        "What is the sum of {a} and {b}?", "Add {a} and {b}.", "Add {a} to {b}.",
        "Sum {a} and {b}.",
        "What do I get if I add {a} and {b}?",
    ),
    "-": phrases(
        "What is the difference of {a} and {b}?", "What is {a} less {b}?", "Take {b} from {a}.",
        "Subtract {b} from {a}.", "What is left of {a} without {b}?",
    ),
    "*": phrases(
        "What is the product of {a} and {b}?", "Multiply {a} by {b}.", "Multiply {a} and {b}.",
        "What do I get if I multiply {a} and {b}?",
    ),
}  # fmt: skip
_STORIES: Final = {
    "+": phrases(
        "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
        "There are {a} {things} in one box and {b} in another. How many {things} are there in all?",
        "{name} sold {a} {things} on Monday and {b} on Friday. How many {things} is that in all?",
        "I have {a} {things} and get {b} more. How many {things} do I have?",
    ),
    "-": phrases(
        "{name} has {a} {things} and gives away {b}. How many {things} are left?",
        "There were {a} {things} and {b} were sold. How many {things} remain?",
        "I had {a} {things} and lost {b}. How many {things} do I have left?",
        "{name} owns {a} {things} and eats {b}. How many {things} are left?",
    ),
    "*": phrases(
        "{name} has {a} boxes with {b} {things} each. How many {things} are there in all?",
        "One bag holds {b} {things}. How many {things} are in {a} bags?",
        "I buy {a} packs of {b} {things}. How many {things} do I get?",
        "There are {a} rows of {b} {things}. How many {things} are there?",
    ),
}


def make(world: World) -> TrainingExample:
    a, sign, b = world.new(lambda: _draw(world), lambda drawn: "{} {} {}".format(*drawn))
    chance = world.random()
    if chance < 0.15:
        a, b = (b, a) if sign == "-" and a < b else (a, b)
        things = world.of("foods") if world.chance(0.5) else f"{world.noun()}s"
        story = world.pick(_STORIES[sign])
        question = story.format(a=a, b=b, name=world.name(), things=things)
    elif chance < 0.3:
        question = world.pick(_WORDED[sign]).format(a=a, b=b)
    else:
        question = world.pick(_QUESTIONS).format(sum=_written(world, a, sign, b))
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return plain_case(
        SKILL, question, f"{a} {sign} {b} = {result}", _reasoning(a, sign, b), (str(result),)
    )


def _draw(world: World) -> tuple[int, str, int]:
    sign = world.pick("+++--**")
    if sign == "*":
        one, other = _number(world), world.between(0, 9)
        return (one, sign, other) if world.chance(0.6) else (other, sign, one)
    a, b = _number(world), _number(world)
    if sign == "-" and a < b and world.chance(0.7):
        a, b = b, a
    return a, sign, b


def _number(world: World) -> int:
    return world.between(0, world.pick((9, 20, 99, 99, 999, 999)))


def _written(world: World, a: int, sign: str, b: int) -> str:
    word = world.pick(_SIGNS[sign])
    if len(word) == 1 and world.chance(0.25):
        return f"{a}{word}{b}"
    return f"{a} {word} {b}"


def _reasoning(a: int, sign: str, b: int) -> str:
    first = f"{a} {sign} {b}"
    if sign == "*":
        return "\n".join([first, *_product(max(a, b), min(a, b))])
    if sign == "+":
        return "\n".join([first, *_columns(a, b, "+")])
    lines = _columns(a, b, "-")
    if a < b:
        lines += ["swap", *_columns(b, a, "-"), "minus"]
    return "\n".join([first, *lines])


def _columns(a: int, b: int, sign: str) -> list[str]:
    width = max(len(str(a)), len(str(b)))
    tops, bottoms = (_from_last(number, width) for number in (a, b))
    lines = [f"{' '.join(tops)} {sign} {' '.join(bottoms)}"]
    carry = 0
    for top, bottom in zip(tops, bottoms, strict=True):
        if sign == "+":
            total = int(top) + int(bottom) + carry
            lines.append(f"{top} + {bottom} + {carry} = {total}: {total % 10} carry {total // 10}")
            carry = total // 10
        else:
            left = int(top) - int(bottom) - carry
            borrow = int(left < 0)
            lines.append(f"{top} - {bottom} - {carry} = {left % 10} borrow {borrow}")
            carry = borrow
    return lines


def _product(number: int, factor: int) -> list[str]:
    digits = _from_last(number, 1)
    lines = [f"{' '.join(digits)} * {factor}"]
    carry = 0
    for digit in digits:
        total = int(digit) * factor + carry
        lines.append(f"{digit} * {factor} + {carry} = {total}: {total % 10} carry {total // 10}")
        carry = total // 10
    return lines


def _from_last(number: int, width: int) -> list[str]:
    return list(reversed(str(number).zfill(width)))
