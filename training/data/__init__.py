"""The data that the built-in model learns from, made by our own code.

Owns the mixture and its two sides: `examples` for training, `skill_cases` for judging. Everything
follows from the seed, in every process. Names, things, towns and words of one side never occur on
the other, nor do the verbs and things that tools are named by.
"""

from collections.abc import Iterator
from typing import Final

from training.data.example import (
    Call,
    Check,
    Example,
    Split,
    Verdict,
    judge,
    judge_raw,
    split_calls,
    without_thoughts,
)
from training.data.frame import framed
from training.data.long import far_facts, long_agents, long_examples
from training.data.skills import EARLIER, MAKERS
from training.data.world import World

__all__ = [
    "SKILLS",
    "Call",
    "Check",
    "Example",
    "Split",
    "Verdict",
    "examples",
    "far_facts",
    "judge",
    "judge_raw",
    "long_agents",
    "long_examples",
    "skill_cases",
    "split_calls",
    "without_thoughts",
]

SKILLS: Final = tuple(MAKERS)


def examples(seed: int, split: Split) -> Iterator[Example]:
    """Cases of all skills by their weights, without end."""
    world = World(f"{split} {seed}", split)
    makers = [make for _, make in MAKERS.values()]
    weights = [weight for weight, _ in MAKERS.values()]
    while True:
        for make in world.rng.choices(makers, weights, k=256):
            yield _framed(world, make(world))


def skill_cases(skill: str, seed: int, count: int) -> list[Example]:
    """`count` held-out cases of one skill. KeyError for a skill that is not in `SKILLS`."""
    _, make = MAKERS[skill]
    world = World(f"eval {skill} {seed}", "eval")
    return [_framed(world, make(world)) for _ in range(count)]


def _framed(world: World, task: Example) -> Example:
    return framed(world, task, lambda world: world.pick(EARLIER)(world))
