"""Tools that nobody has seen: the training's are made of words at random, the evaluation's are the
family's, which shares none of them.
"""

import json
import re
from itertools import islice
from typing import Any

import pytest

from training.data import TrainingExample, examples, skill_cases
from training.data.open_words import gerund, past, plural
from training.data.pools import KINDS, SIDES, family_words, pool, verbs
from training.data.skills import natural
from training.data.world import World

NUM_CASES = 400
WORDS = re.compile(r"[A-Z]?[a-z]+")


def _trained() -> list[TrainingExample]:
    world = World("natural", "train")
    return [natural.make(world) for _ in range(NUM_CASES)]


def _words(text: str) -> set[str]:
    return {word.lower() for word in WORDS.findall(text)}


def _names(case: TrainingExample) -> set[str]:
    """The words of tools and parameters."""
    found: set[str] = set()
    for tool in case.tools:
        function = tool["function"]
        found |= _words(function["name"])
        for name in function["parameters"]["properties"]:
            found |= _words(name)
    return found


def test_training_and_family_share_no_word_of_a_tool() -> None:
    """Training and family share no word of a tool in all skills that have tools; every name of the
    family is one of its words.
    """
    trained = set().union(*(_names(case) for case in islice(examples(3, "train"), 4000)))
    held_out = set().union(*(_names(case) for case in skill_cases("natural", 1, 200)))
    assert held_out <= family_words()
    assert not trained & family_words()


def test_the_family_takes_no_word_from_the_lists() -> None:
    """The family takes no word from the lists, so that the other skills' cases stay the same."""
    listed = {word.lower() for kind in KINDS for side in SIDES for word in pool(kind, side)}
    listed |= {verb for side in SIDES for group in verbs(side) for verb in group}
    assert not listed & family_words()


def test_the_family_is_the_same_in_every_run() -> None:
    """100 requests by their seed, with tools that differ."""
    cases = skill_cases("natural", 2026, 100)
    assert cases == skill_cases("natural", 2026, 100)
    assert len({case.check.calls[0].name for case in cases}) > 30
    assert all(len(case.tools) > 1 for case in cases)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_call_fits_its_schema(split: str) -> None:
    """A call fits its schema: it names one of the tools, and has the required parameters with their
    types, and nothing else.
    """
    cases = _trained() if split == "train" else skill_cases("natural", 5, NUM_CASES)
    called = [case for case in cases if case.check.calls]
    assert len(called) > 0.8 * NUM_CASES
    for case in called:
        (call,) = case.check.calls
        assert call.arguments is not None
        (tool,) = (t["function"] for t in case.tools if t["function"]["name"] == call.name)
        schema = tool["parameters"]
        assert set(schema["required"]) <= set(call.arguments) <= set(schema["properties"])
        for name, value in call.arguments.items():
            _assert_fits(value, schema["properties"][name])


def _assert_fits(value: object, schema: dict[str, Any]) -> None:
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    assert isinstance(value, types[schema["type"]])
    assert isinstance(value, bool) == (schema["type"] == "boolean")
    assert value in schema.get("enum", [value])


@pytest.mark.parametrize("split", ["train", "eval"])
def test_texts_are_copied_from_the_request(split: str) -> None:
    """Texts are copied from the request: nothing is invented but truth values and numbers that are
    written as words.
    """
    cases = _trained() if split == "train" else skill_cases("natural", 5, NUM_CASES)
    for case in cases:
        asked = case.messages[-2]["content"].lower()
        for call in case.check.calls:
            for value in (call.arguments or {}).values():
                if isinstance(value, str):
                    assert value.lower() in asked
                elif not isinstance(value, bool) and value > 10:
                    assert json.dumps(value) in asked


def test_some_requests_have_no_tool() -> None:
    """Some requests have no tool, and their answers say so."""
    refused = [case for case in _trained() if not case.check.calls]
    assert 0.05 < len(refused) / NUM_CASES < 0.15
    assert {case.messages[-1]["content"].rpartition("\n")[2] for case in refused} == {
        "I have no tool for that."
    }


@pytest.mark.parametrize(
    ("word", "forms"),
    [
        ("mow", ("mows", "mowed", "mowing")),
        ("plan", ("plans", "planned", "planning")),
        ("carry", ("carries", "carried", "carrying")),
        ("bake", ("bakes", "baked", "baking")),
        ("wash", ("washes", "washed", "washing")),
        ("boil", ("boils", "boiled", "boiling")),
    ],
)
def test_forms_of_words(word: str, forms: tuple[str, str, str]) -> None:
    """Forms of words are as in English, for words that no list has."""
    assert (plural(word), past(word), gerund(word)) == forms
