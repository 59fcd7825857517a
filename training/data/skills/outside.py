"""Prompts the model cannot answer: code, other languages, creative work, junk, large tasks, agents.

Owns the kinds of such prompts. The answer is one sentence, so that it always ends.
"""

from typing import Final

from training.data.example import ExpectedAnswer, TrainingExample, answer, user
from training.data.filler import agent_system, story
from training.data.foreign import foreign_text, junk, snippet
from training.data.offering import render_all
from training.data.phrasing import requests
from training.data.refusals import OUTSIDE, REFUSALS
from training.data.skills.greeting import HELLO
from training.data.toolbox import draw_tools, lengthened
from training.data.world import World

SKILL: Final = "outside"

_CREATIVE: Final = requests(
    "Write a poem about {noun}.", "Tell me a joke about {animal}s.", "Write a story about {name}.",
    "Write an essay about {noun}.",
    "Write a letter to {name}.", "Sing a song about {food}.", "Invent a game with a {noun}.",
    "Tell me a story.",
    "Translate {noun} into French.", "Give me ten ideas for a {noun}.",
    "Describe a {adjective} {noun} in detail.",
    "Plan a trip to {place}.", "Write a speech for a {job}.", "Make a plan for my {noun}.",
    "Draw a {animal}.",
    "Play chess with me.", "Act as a {job}.", "Give me advice about my {noun}.",
    "Write a recipe for {food}.",
    "Prove that {noun} is {adjective}.", "Roleplay as {name}.", "Discuss the history of {noun}.",
    "Tell me everything.",
    "Write a product text for a {noun}.", "Give this conversation a title.", "Generate a password.",
    "Rewrite the text.",
)  # fmt: skip
_CODING: Final = requests(
    "Write a Python function that sorts a {noun}.", "Write a {language} program for a {noun}.",
    "Fix the bug in {noun}.py.",
    "Implement a {noun} in {language}.", "Refactor the {noun} module.", "Explain this code.",
    "Write a test for the {noun} class.",
    "Write a regular expression for a {noun}.", "Write a SQL query for all {noun}s.",
    "Build a website for my {noun}.",
    "Add a {noun} to the {language} project.", "Debug my {noun}.", "Set up a {noun} server.",
    "Optimise this loop.",
    "Review my pull request.", "Write a script that renames {noun}s.",
    "Convert this {language} code.", "Deploy the {noun}.",
)  # fmt: skip
_ABOUT_TEXT: Final = (
    "Summarise this: {x}", "{x}\n\nSummarise the text.", "Explain this:\n{x}", "{x}",
    "What is wrong here?\n\n{x}",
    "Fix this:\n```\n{x}```", "{x}\n\nWhat does this do?", "Improve this text: {x}",
    "Continue: {x}", "Rewrite this: {x}",
)  # fmt: skip
_LANGUAGES: Final = (
    "Python",
    "Java",
    "Rust",
    "Go",
    "C",
    "JavaScript",
    "C++",
    "Haskell",
    "Ruby",
    "Bash",
)
_EMPTY: Final = ("", "", " ", "\n", "   ", "\n\n", "\t", ".", "?", "...", "-", "??")


def make(world: World) -> TrainingExample:
    chance = world.random()
    if chance < 0.04:
        return _case(world, world.pick(_EMPTY), HELLO)
    if chance < 0.18:
        return _agent(world)
    return _case(world, world.new(lambda: _prompt(world, chance), str), OUTSIDE)


def _case(_world: World, question: str, reply: str) -> TrainingExample:
    texts = REFUSALS if reply == OUTSIDE else (reply, *REFUSALS)
    return TrainingExample(
        SKILL, (user(question), answer(reply)), (), ExpectedAnswer("text", texts=texts)
    )


def _prompt(world: World, chance: float) -> str:
    if chance < 0.35:
        return _filled(world, world.pick(_CREATIVE))
    if chance < 0.5:
        return _filled(world, world.pick(_CODING))
    if chance < 0.62:
        text = snippet(world, world.pick((1, 2, 3, 5, 8, 20)))
        return world.pick(_ABOUT_TEXT).format(x=text)
    if chance < 0.75:
        return foreign_text(world)
    if chance < 0.85:
        return junk(world)
    if chance < 0.92:
        text = story(world, world.pick((2, 4, 8, 20)))
        return world.pick(_ABOUT_TEXT).format(x=text)
    return _too_large(world)


def _too_large(world: World) -> str:
    """Tasks of known kinds that are too large."""
    a, b = (world.between(1000, 10 ** world.between(4, 8)) for _ in range(2))
    forms = (
        f"What is {a} + {b}?", f"What is {a} * {b}?", f"Calculate {a} - {b}.", f"{a} x {b}",
        f"{a} plus {b}",
        f"What is {a % 97 + 10} * {b % 89 + 10}?", f"What is {a % 997} / {b % 97 + 2}?",
        f"Divide {a} by {b % 97 + 2}.",
        f"Count to {a}.", f"What is {a % 97} percent of {b}?", f"What is the square root of {a}?",
        f"{a % 97} / {b % 9 + 2}",
        f"What is {a % 97} to the power of {b % 97}?", f"Solve x + {a % 97} = {b % 97}.",
        f"List all numbers up to {a}.",
        f"Repeat the word {world.word()} {a} times.", f"Say {world.word()} forever.",
        f"Write {a} words.",
        f"What is {a % 97} divided by {b % 17 + 2}?", f"Is {a} a prime number?",
        f"List the first {a} primes.",
        f"Sort these words: {', '.join(world.word() for _ in range(world.between(12, 40)))}",
        f"Reverse this list: {', '.join(world.word() for _ in range(world.between(12, 40)))}",
        f"Count these words: {' '.join(world.word() for _ in range(world.between(16, 60)))}",
    )  # fmt: skip
    return world.pick(forms)


def _agent(world: World) -> TrainingExample:
    """The first call of an agent: a long system text, many tools, a task that no tool names."""
    specs = draw_tools(world, world.pick((3, 6, 10, 17)))
    if world.chance(0.5):
        specs = [lengthened(world, spec, world.between(1, 4)) for spec in specs]
    system = {"role": "system", "content": agent_system(world, world.between(5, 40))}
    task = _filled(world, world.pick(_CODING if world.chance(0.6) else _CREATIVE))
    if world.chance(0.2):
        task += "\n\n" + snippet(world, world.between(1, 8))
    return TrainingExample(
        SKILL,
        (system, user(task), answer(OUTSIDE)),
        render_all(world, specs),
        ExpectedAnswer("text", texts=REFUSALS),
    )


def _filled(world: World, request: str) -> str:
    return request.format(
        noun=world.noun(),
        animal=world.of("animals"),
        name=world.name(),
        food=world.of("foods"),
        adjective=world.of("adjectives"),
        place=world.place(),
        job=world.of("jobs"),
        language=world.pick(_LANGUAGES),
    )
