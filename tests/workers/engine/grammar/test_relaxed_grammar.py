"""Schemas that the library cannot follow, in grammars of several tools."""

import json
from array import array

import pytest

from gateway.api import schema_source
from gateway.output.tools import TOOL_FORMATS, CallableTool, CallGrammar, call_syntax
from protocol.messages import Grammar
from workers.engine.grammar.compiler import LlGuidanceCompiler
from workers.engine.grammar.sequence_grammar import GrammarBroken

GOOD = {"type": "object", "properties": {"a": {"type": "integer"}}}
HARD = {"type": "object", "properties": {"a": {"enum": [1], "type": "string"}}, "required": ["a"]}
"""No value is valid, which only the library finds out."""


def _grammar(*, is_strict: bool) -> Grammar:
    tools = [
        CallableTool(
            name, schema_source(one, "f", is_strict=is_strict, is_lenient=not is_strict).text
        )
        for name, one in (("good", GOOD), ("hard", HARD))
    ]
    ids = {"<tool_call>": 4090, "</tool_call>": 4091}
    syntax = call_syntax(TOOL_FORMATS["hermes"], "", ids.get)
    assert syntax is not None
    return Grammar("lark", CallGrammar(syntax).optional(tools, None))


def test_one_tool_does_not_refuse_the_others(
    compiler: LlGuidanceCompiler, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tool whose schema cannot be followed does not refuse the others: its arguments are any
    object, and the log says so.
    """
    compiler.compile(_grammar(is_strict=False), array("I"))
    said = capsys.readouterr().err
    assert "'arguments_1' allows any object" in said
    assert "arguments_0" not in said


def test_a_strict_tool_is_named(compiler: LlGuidanceCompiler) -> None:
    """The error names the rule of a strict tool, from which the gateway finds the tool."""
    with pytest.raises(GrammarBroken, match=r"^arguments_1: .*nsatisfiable"):
        compiler.compile(_grammar(is_strict=True), array("I"))


def test_a_form_of_the_answer_may_be_looser_too(
    compiler: LlGuidanceCompiler, capsys: pytest.CaptureFixture[str]
) -> None:
    """A form of the answer may be looser too, unless it is strict."""
    text = schema_source(HARD, "f", is_strict=False, is_lenient=True).text
    compiler.compile(Grammar("json_schema", text), array("I"))
    assert "any object" in capsys.readouterr().err
    strict = json.loads(text)
    strict["x-guidance"]["lenient"] = False
    with pytest.raises(GrammarBroken):
        compiler.compile(Grammar("json_schema", json.dumps(strict)), array("I"))


def test_a_grammar_of_a_client_stays_as_it_is(compiler: LlGuidanceCompiler) -> None:
    """A client's grammar that is broken is not relaxed."""
    with pytest.raises(GrammarBroken):
        compiler.compile(Grammar("lark", "start: missing"), array("I"))
