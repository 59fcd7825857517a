"""The data that the built-in model learns from."""

import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from training.data import SKILLS, TrainingExample, examples, judge, skill_cases
from training.data.pools import KINDS, is_mine, pool, verbs
from training.data.world import World

NUM_CASES = 150
CONTROL = re.compile(r"<\|im_|<\|endoftext|</?tool_call>|</?tool_response>")


def _cases(skill: str) -> list[TrainingExample]:
    return skill_cases(skill, seed=11, count=NUM_CASES)


def _digest(seed: int) -> str:
    some = itertools.islice(examples(seed, "train"), 300)
    return hashlib.sha256(repr(list(some)).encode()).hexdigest()


def _answered(case: TrainingExample) -> tuple[str, list[dict[str, Any]]]:
    last = case.messages[-1]
    return last["content"], last.get("tool_calls", [])


def test_the_same_seed_gives_the_same_data_in_every_process() -> None:
    """The same seed gives the same data in every process: nothing depends on its hashing, or on
    what was drawn before.
    """
    code = (
        "import hashlib, itertools; from training.data import examples;"
        "some = itertools.islice(examples(5, 'train'), 300);"
        "print(hashlib.sha256(repr(list(some)).encode()).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert other.stdout.strip() == _digest(5)
    assert _digest(5) != _digest(6)


@pytest.mark.parametrize("skill", SKILLS)
def test_every_case_is_well_formed(skill: str) -> None:
    """A case ends with the assistant's answer to a user or a tool, has at most one system text,
    which comes first, and spells no control token."""
    for case in _cases(skill):
        roles = [message["role"] for message in case.messages]
        assert case.skill == skill
        assert roles[-1] == "assistant"
        assert roles[-2] in {"user", "tool"}
        assert "system" not in roles[1:]
        assert not CONTROL.search(json.dumps([case.messages, case.tools]))


@pytest.mark.parametrize("skill", SKILLS)
def test_the_answer_to_learn_is_the_one_judged_right(skill: str) -> None:
    """The judge accepts every answer that the model is taught, and no other case's answer."""
    cases = _cases(skill)
    for case in cases:
        text, calls = _answered(case)
        assert judge(case.check, text, calls).ok
    assert not judge(cases[0].check, "something else").ok


@pytest.mark.parametrize("skill", SKILLS)
def test_cases_differ(skill: str) -> None:
    """Nearly all cases of a skill are different, and other seeds give other cases."""
    texts = [repr(case.messages) for case in _cases(skill)]
    assert len(set(texts)) > 0.9 * NUM_CASES
    assert texts != [repr(case.messages) for case in skill_cases(skill, 12, NUM_CASES)]


def test_all_skills_are_mixed() -> None:
    """The stream of training cases holds every skill."""
    counts = Counter(case.skill for case in itertools.islice(examples(1, "train"), 3000))
    assert set(counts) == set(SKILLS)
    assert min(counts.values()) > 30


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_on_one_side_only(kind: str) -> None:
    """No word of evaluation is drawn in training, and both sides have enough of them."""
    train, held_out = pool(kind, "train"), pool(kind, "eval")
    assert not {word.lower() for word in train} & {word.lower() for word in held_out}
    assert len(held_out) >= 10


def test_pseudo_words_are_on_one_side_only() -> None:
    """Words that no list holds obey the same rule."""
    for split in ("train", "eval"):
        world = World("x", split)
        assert all(is_mine(world.pseudo(), split) for _ in range(500))


def test_tool_names_of_evaluation_were_never_trained() -> None:
    """Not one offered tool of evaluation is named as one of training; some verbs are new too."""
    trained = {
        tool["function"]["name"]
        for case in itertools.islice(examples(2, "train"), 6000)
        for tool in case.tools
    }
    held_out = {tool["function"]["name"] for case in _cases("tools") for tool in case.tools}
    assert not trained & held_out
    assert set(verbs("eval")) - set(verbs("train"))


def test_arguments_fit_the_schema() -> None:
    """A call names an offered tool, gives what is required and nothing that is unknown, each of
    its type."""
    for case in _cases("tools"):
        tools = {tool["function"]["name"]: tool["function"] for tool in case.tools}
        assert len(tools) == len(case.tools)
        for call in case.check.calls:
            assert call.arguments is not None
            schema = tools[call.name]["parameters"]
            assert set(schema.get("required", ())) <= set(call.arguments)
            for name, value in call.arguments.items():
                _assert_fits(value, schema["properties"][name])


def _assert_fits(value: object, schema: dict[str, Any]) -> None:
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    assert isinstance(value, types[schema["type"]])
    assert isinstance(value, bool) == (schema["type"] == "boolean")
    assert "enum" not in schema or value in schema["enum"]


def test_values_of_arguments_stand_in_the_request() -> None:
    """What fills a text or a number is to be copied, never invented."""
    for case in _cases("tools"):
        asked = next(m["content"] for m in reversed(case.messages) if m["role"] == "user")
        for call in case.check.calls:
            for value in (call.arguments or {}).values():
                if not isinstance(value, bool):
                    assert (value if isinstance(value, str) else json.dumps(value)) in asked


def test_sums_are_right() -> None:
    """The taught result of every sum is its result."""
    for case in _cases("arithmetic"):
        sum_, _, result = _answered(case)[0].rpartition("\n")[2].partition(" = ")
        a, sign, b = sum_.split()
        values = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}
        assert values[sign] == int(result)


def test_reasoning_of_earlier_turns_is_marked() -> None:
    """A call in the history keeps its reasoning, which marks it as not to be trained on."""
    for case in _cases("tool_result"):
        calls = [m for m in case.messages[:-1] if m.get("tool_calls")]
        assert calls
        assert all(m["content"].startswith("<think>") for m in calls)


def test_an_unknown_skill_is_refused() -> None:
    """There is no skill without a maker."""
    with pytest.raises(KeyError):
        skill_cases("juggling", 0, 1)
