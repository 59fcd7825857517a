"""An agent's turns repeat what stands before them: files that are edited, output of tools."""

from array import array
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from workers.model_dir import builtin_dir
from workers.scheduler import DraftCandidate
from workers.speculation import NUM_TEXT_SOURCES, MatchOdds, TextSource

ROOT = Path(__file__).parents[3]
FILES = ("workers/scheduler/scheduler.py", "workers/loop/pipeline.py", "gateway/api/errors.py")
LEAST = 2.5
"""Tokens of a pass."""


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(builtin_dir("builtin:herma-tiny") / "tokenizer.json"))


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _edited(text: str) -> str:
    """Names changed, lines added and taken away, one in nine."""
    lines = []
    for number, line in enumerate(text.splitlines()):
        if number % 27 == 9:
            continue
        if number % 27 == 18:
            indent = len(line) - len(line.lstrip())
            lines.append(" " * indent + f"# the case of line {number} is another one")
        lines.append(line.replace("return", "yield").replace("self._", "self.", number % 27 == 0))
    return "\n".join(lines)


def _passes(source: TextSource, seq: int, prompt: list[int], answer: list[int]) -> int:
    """How many passes an oracle takes that says `answer`, if it verifies all that is offered."""
    tokens = array("I", prompt)
    source.start(seq, tokens, len(prompt))
    passes = done = 0
    while done < len(answer):
        left = len(answer) - done
        offers = source.offers([DraftCandidate(seq, left - 1)])
        drafts = offers[0].ids if offers else ()
        right = 0
        while right < len(drafts) and drafts[right] == answer[done + right]:
            right += 1
        if offers:
            source.verified(offers[0], right)
        tokens.extend(answer[done : done + right + 1])
        done += right + 1
        passes += 1
    source.end(seq)
    return passes


@pytest.mark.parametrize("uses_fleet", [False, True], ids=["ngram", "suffix"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_written_again_with_changes(
    name: str, uses_fleet: bool, tokenizer: Tokenizer
) -> None:
    """A file in the prompt is written again with changes: the answer is all of it, edited."""
    text = (ROOT / name).read_text()[:8000]
    prompt = _ids(tokenizer, f"Edit this file:\n{text}\nWrite the new file.\n")
    answer = _ids(tokenizer, _edited(text))
    source = TextSource(MatchOdds(NUM_TEXT_SOURCES), uses_fleet=uses_fleet)
    assert len(answer) / _passes(source, 1, prompt, answer) > LEAST


def test_output_of_a_tool_that_is_quoted(tokenizer: Tokenizer) -> None:
    """A test's log comes back in the next call, with the line that matters changed."""
    log = "\n".join(
        f"tests/test_{n % 7}.py::test_case_{n * 37 % 101} PASSED [{n}%]" for n in range(90)
    )
    prompt = _ids(tokenizer, f"$ pytest\n{log}\nWhat failed?\n")
    answer = _ids(tokenizer, f"The log is:\n{log.replace('_36 PASSED', '_36 FAILED')}\nOne failed.")
    source = TextSource(MatchOdds(NUM_TEXT_SOURCES), uses_fleet=False)
    assert len(answer) / _passes(source, 1, prompt, answer) > LEAST


def test_what_another_sequence_said(tokenizer: Tokenizer) -> None:
    """Agents of a fleet write the same file; only the fleet's text knows it. What is private is
    not known to others.
    """
    text = (ROOT / FILES[1]).read_text()[:6000]
    answer = _ids(tokenizer, text)
    alone = TextSource(MatchOdds(NUM_TEXT_SOURCES), uses_fleet=False)
    num_alone = _passes(alone, 1, _ids(tokenizer, "Write it."), answer)
    fleet = TextSource(MatchOdds(NUM_TEXT_SOURCES), uses_fleet=True)
    first = array("I", _ids(tokenizer, "You are agent 1. Write it.") + answer)
    fleet.start(1, first, None)
    fleet.end(1)
    assert _passes(fleet, 2, _ids(tokenizer, "Again."), answer) > 0.8 * num_alone
    for _ in range(20):
        fleet.offers([])
    assert len(answer) / _passes(fleet, 3, _ids(tokenizer, "Write it again."), answer) > 2 * LEAST
    assert len(answer) / num_alone < LEAST
