"""Long conversations: as long as was asked for, well formed, and with an answer that is right."""

import itertools
import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from training.data import TrainingExample, far_facts, judge, long_agents, long_examples
from training.data.sprawl import sprawl
from training.data.world import World
from training.render import load_template, render, render_prompt

TOKENIZER = Path(__file__).parents[2] / "config/builtin/herma-tiny/tokenizer.json"
LEAST, MOST = 2000, 6000
CONTROL = re.compile(r"<\|im_|<\|endoftext|</?tool_call>|</?tool_response>")


def _some(seed: int, count: int) -> list[TrainingExample]:
    return list(itertools.islice(long_examples(seed, "train", LEAST, MOST), count))


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


def test_cases_are_about_as_long_as_was_asked_for(tokenizer: Tokenizer) -> None:
    """None is far shorter or longer than the bounds, and both short and long ones are there."""
    template = load_template()
    texts = ["".join(text for text, _ in render(case, template)) for case in _some(1, 60)]
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts)]
    assert min(lengths) > LEAST / 2
    assert max(lengths) < MOST * 1.6
    assert min(lengths) < 2 * LEAST
    assert max(lengths) > 0.8 * MOST


def test_cases_are_well_formed_and_their_answers_right() -> None:
    """One system text at most, at the start; no control tokens; the judge takes the answer."""
    for case in _some(2, 60):
        roles = [message["role"] for message in case.messages]
        assert roles[-1] == "assistant"
        assert "system" not in roles[1:]
        assert not CONTROL.search(json.dumps([case.messages, case.tools]))
        last = case.messages[-1]
        assert judge(case.check, last["content"], last.get("tool_calls", [])).ok


def test_the_same_seed_gives_the_same_cases() -> None:
    """The same seed gives the same cases, and another seed gives others."""
    assert _some(3, 5) == _some(3, 5) != _some(4, 5)


def test_held_out_facts_stand_in_the_prompt(tokenizer: Tokenizer) -> None:
    """What is to be said can be read: the answer's last word is in the text."""
    template = load_template()
    for case in far_facts(1, 20, 3000):
        prompt = render_prompt(case, template)
        assert len(tokenizer.encode(prompt).ids) > 2000
        said = case.check.texts[0]
        if said != "The text does not say.":
            assert said.rstrip(".").split()[-1] in prompt


def test_agents_bring_seventeen_tools() -> None:
    """Each with a name of its own, and one of them is called where a call is right."""
    for case in long_agents(1, 20, 3000):
        names = [tool["function"]["name"] for tool in case.tools]
        assert len(set(names)) == len(names) == 17
        assert {call.name for call in case.check.calls} <= set(names)


def test_text_of_every_kind_has_about_its_length(tokenizer: Tokenizer) -> None:
    """Text of any kinds has about the wanted length in tokens."""
    world = World("sprawl", "train")
    lengths = [len(tokenizer.encode(sprawl(world, 3000)).ids) for _ in range(40)]
    assert all(1500 < length < 4500 for length in lengths)
