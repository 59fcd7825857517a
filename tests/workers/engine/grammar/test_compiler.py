"""Grammars of users: what is enforced, what is refused with a reason, and what it may cost."""

import json
import time
from array import array
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from protocol.messages import Grammar
from tests.workers.engine.grammar.conftest import EOS, OTHER_EOS, VOCABULARY
from workers.engine.grammar.compiler import MAX_COMPILED, LlGuidanceCompiler
from workers.engine.grammar.sequence_grammar import GrammarBroken, SequenceGrammar
from workers.loop import CompiledGrammar

KEY = (1, bytes(16), 0)
NUM_WORDS = -(-VOCABULARY // 32)
NO_OUTPUTS = array("I")
CLOSING, OPENING = 4095, 4094


def _allowed(follower: SequenceGrammar, outputs: list[int]) -> set[int]:
    row = np.empty(NUM_WORDS, np.int32)
    lone = follower.fill(array("I", outputs), row)
    found = set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())
    assert (lone is not None) == (len(found) == 1)
    assert lone is None or found == {lone}
    return found


def _wait(compiler: LlGuidanceCompiler) -> CompiledGrammar:
    while not (done := compiler.take_done()):
        time.sleep(0.001)
    return done[0]


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("json_schema", '{"type": "object"}', '{"a": [1, null, "ü"]}'),
        ("json_schema", '{"enum": ["x", 2]}', '"x"'),
        ("regex", "[0-9]{3}-[a-f]+", "123-fade"),
        ("lark", 'start: "a" NUM\nNUM: /[0-9]+/\n', "a42"),
    ],
)
def test_each_kind_allows_what_it_says(
    kind: str, text: str, answer: str, compiler: LlGuidanceCompiler, tokenizer: Tokenizer
) -> None:
    """Every token of an answer, and the end of the sequence only where it may end; ids that no
    token has, never.
    """
    follower = compiler.compile(Grammar(kind, text), NO_OUTPUTS)  # type: ignore[arg-type]
    ids = tokenizer.encode(answer, add_special_tokens=False).ids
    assert EOS not in _allowed(follower, [])
    for at, token_id in enumerate(ids):
        allowed = _allowed(follower, ids[:at])
        assert token_id in allowed
        assert max(allowed) < 4096
    assert EOS in _allowed(follower, ids)


def test_a_tokenizer_behind_a_byte_order_mark_is_read(
    model_dir: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """A tokenizer behind a byte order mark is read, as gateways read it: the model would answer,
    and refuse every grammar.
    """
    data = (model_dir / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(b"\xef\xbb\xbf" + data)
    compiler = LlGuidanceCompiler(tmp_path, VOCABULARY, frozenset({EOS}))
    follower = compiler.compile(Grammar("regex", "7"), NO_OUTPUTS)
    assert _allowed(follower, []) == {tokenizer.token_to_id("7")}


def test_a_resumed_sequence_goes_on_after_every_token(
    compiler: LlGuidanceCompiler, tokenizer: Tokenizer
) -> None:
    """The mask behind outputs of an earlier attempt is that of one engine all along."""
    grammar = Grammar("json_schema", '{"type": "object", "required": ["a", "b"]}')
    ids = tokenizer.encode('{"a": {"c": [1, 2]}, "b": "x y z"}', add_special_tokens=False).ids
    follower = compiler.compile(grammar, NO_OUTPUTS)
    for at in range(len(ids) + 1):
        resumed = compiler.compile(grammar, array("I", ids[:at]))
        assert _allowed(resumed, ids[:at]) == _allowed(follower, ids[:at])


def test_outputs_that_break_the_grammar_are_refused(
    compiler: LlGuidanceCompiler, tokenizer: Tokenizer
) -> None:
    """An earlier attempt ran where nothing was enforced."""
    ids = tokenizer.encode("hello", add_special_tokens=False).ids
    with pytest.raises(GrammarBroken, match="does not follow"):
        compiler.compile(Grammar("regex", "[0-9]+"), array("I", ids))


@pytest.mark.parametrize("gap", [True, False])
def test_it_begins_behind_reasoning(
    gap: bool, compiler: LlGuidanceCompiler, tokenizer: Tokenizer
) -> None:
    """All is allowed within but the end of the sequence; one empty line may follow it."""
    (empty_line,) = tokenizer.encode("\n\n", add_special_tokens=False).ids
    thoughts = tokenizer.encode("no digit", add_special_tokens=False).ids
    follower = compiler.compile(Grammar("regex", "[0-9]+", CLOSING), NO_OUTPUTS)
    outputs = []
    for token_id in [*thoughts, CLOSING]:
        allowed = _allowed(follower, outputs)
        assert token_id in allowed
        assert allowed.isdisjoint({EOS, OTHER_EOS})
        outputs.append(token_id)
    digits = {i for i in range(4096) if (tokenizer.decode([i]) or "x").isdecimal()}
    assert _allowed(follower, outputs) - {empty_line} <= digits
    if gap:
        outputs.append(empty_line)
        assert _allowed(follower, outputs) <= digits
    outputs.append(min(digits))
    assert _allowed(follower, outputs) <= digits | {EOS, OTHER_EOS}


def test_reasoning_may_be_left_out(compiler: LlGuidanceCompiler, tokenizer: Tokenizer) -> None:
    """Only an output that begins with the opening tag has any."""
    (seven,) = tokenizer.encode("7", add_special_tokens=False).ids
    grammar = Grammar("regex", "7+", CLOSING, OPENING)
    plain = compiler.compile(grammar, NO_OUTPUTS)
    assert OPENING in _allowed(plain, [])
    assert seven in _allowed(plain, [])
    assert OPENING not in _allowed(plain, [seven])
    thinking = compiler.compile(grammar, NO_OUTPUTS)
    assert {OPENING, seven, 5} <= _allowed(thinking, [OPENING])
    assert OPENING not in _allowed(thinking, [OPENING, 5, CLOSING])


def test_drafts_do_not_end_a_sequence_in_its_reasoning(compiler: LlGuidanceCompiler) -> None:
    """Drafts do not end a sequence in its reasoning, as the mask says, so that what is verified is
    what would have been drawn.
    """
    follower = compiler.compile(Grammar("regex", "7+", CLOSING), NO_OUTPUTS)
    assert follower.num_allowed(NO_OUTPUTS, [5, 6, OTHER_EOS, 7]) == 2


HOSTILE = {
    "an unknown keyword": ("json_schema", '{"not": {}}', "not"),
    "a foreign reference": ("json_schema", '{"$ref": "http://x.example/a"}', "x.example"),
    "a loop of references": ("json_schema", '{"$ref": "#"}', ""),
    "contradictions": ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum"),
    "not JSON": ("json_schema", "{", ""),
    "unions of unions": (
        "json_schema",
        json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"p{i}{j}": {"type": "null"}}} for j in range(12)]}
                    for i in range(6)
                ]
            }
        ),
        "",
    ),
    "a broken expression": ("regex", "(a", "regex"),
    "a large automaton": ("regex", "(.{0,2000}x){0,2000}(.{0,2000}y){0,2000}", ""),
    "no rule": ("lark", "begin: a", ""),
    "an endless rule": ("lark", "start: start", ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused_or_bounded(name: str, compiler: LlGuidanceCompiler) -> None:
    """Hostile grammars are refused in one short line that names the cause, or they are enforced
    within the bounds.
    """
    kind, text, hint = HOSTILE[name]
    compiler.begin(KEY, Grammar(kind, text), NO_OUTPUTS)  # type: ignore[arg-type]
    key, follower, error = _wait(compiler)
    assert key == KEY
    if hint:
        assert follower is None
    if follower is None:
        assert hint in error
        assert 0 < len(error) <= 500
        assert "\n" not in error
    else:
        assert isinstance(follower, SequenceGrammar)
        assert _allowed(follower, [])


def test_a_grammar_is_compiled_once(model_dir: Path) -> None:
    """Each sequence gets its own copy; the least recently used ones are dropped."""
    compiler = LlGuidanceCompiler(model_dir, VOCABULARY, frozenset({EOS}))
    first = compiler.compile(Grammar("regex", "ab"), NO_OUTPUTS)
    compiled = dict(compiler._compiled)
    second = compiler.compile(Grammar("regex", "ab"), NO_OUTPUTS)
    assert dict(compiler._compiled) == compiled
    assert first is not second
    for number in range(MAX_COMPILED):
        compiler.compile(Grammar("regex", f"x{number}"), NO_OUTPUTS)
    assert len(compiler._compiled) == MAX_COMPILED
    assert compiled.keys().isdisjoint(compiler._compiled)


def test_a_fault_of_the_compiler_is_no_fault_of_the_engine(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model without a tokenizer here: the cause stays in the engine's log."""
    compiler = LlGuidanceCompiler(tmp_path, VOCABULARY, frozenset({EOS}))
    compiler.begin(KEY, Grammar("regex", "a"), NO_OUTPUTS)
    assert _wait(compiler).error == "the engine failed to compile it; its log says why"
    assert "tokenizer.json" in capfd.readouterr().err
