"""Which grammar an engine enforces for a request.

Owns the choice between the client's grammar, a grammar of its tools' calls, and both; and whether
it applies from the first token or after the model's reasoning. Must not know how a grammar is
enforced.
"""

import logging
from typing import Any, Final, NamedTuple

from gateway.api import (
    ApiError,
    ChatRequest,
    OutputGrammar,
    SchemaSource,
    ToolSchema,
    grammar_too_large,
    invalid,
    schema_source,
)
from gateway.output import AnswerFormat
from gateway.output.tools import CallableTool, call_tags, forced_calls, optional_calls
from gateway.prompt import ModelText
from gateway.schemas import LeftOut
from protocol.messages import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

_log = logging.getLogger(__name__)
_MOST_TOLD: Final = 1024
_told: set[tuple[str, tuple[LeftOut, ...]]] = set()
"""What the log has been told of: agents repeat their tools with every turn."""


class Beginning(NamedTuple):
    """How the answer begins: `end` is the end of the prompt's text, `is_thinking` says whether the
    prompt ends inside reasoning, `opening` is the beginning of a call in the prompt.
    """

    end: str
    is_thinking: bool
    opening: str


def grammar_of(
    request: ChatRequest, text: ModelText, form: AnswerFormat, beginning: Beginning
) -> Grammar | None:
    """The grammar for an engine; None if there is nothing to enforce. Raises `ApiError` 400 for a
    grammar that is too large or cannot be combined with tools.
    """
    found = _content_or_calls(request, text, form, beginning.opening)
    if found is None:
        return None
    kind, source = found
    if len(source.encode("utf-8", "replace")) > MAX_GRAMMAR_BYTES:
        raise grammar_too_large("tools")
    reasoning = form.reasoning
    if beginning.opening or reasoning is None:
        return Grammar(kind, source)
    closing_id, opening_id = text.lone_id(reasoning.close), text.lone_id(reasoning.open)
    if closing_id is None or opening_id is None:
        return Grammar(kind, source)
    if beginning.is_thinking:
        return Grammar(kind, source, closing_id)
    if not form.past_reasoning(beginning.end):
        return Grammar(kind, source)
    return Grammar(kind, source, closing_id, opening_id)


def skips_reasoning(text: ModelText, form: AnswerFormat) -> bool:
    """Whether the answer must start without reasoning for a grammar to apply: the engine finds the
    end of the reasoning only if the tag is one token.
    """
    reasoning = form.reasoning
    if reasoning is None:
        return False
    return text.lone_id(reasoning.close) is None or text.lone_id(reasoning.open) is None


def not_served(wanted: OutputGrammar) -> ApiError:
    """The error when no engine of the model enforces such a grammar."""
    text = f"'{wanted.field}' cannot be enforced for this model; send the request without it."
    return invalid(wanted.field, text, code="grammar_not_served")


def _content_or_calls(
    request: ChatRequest, text: ModelText, form: AnswerFormat, opening: str
) -> tuple[GrammarKind, str] | None:
    wanted = request.grammar
    if wanted is not None and wanted.left_out:
        owner = "the answer"
        _tell_of(wanted.left_out, owner, wanted.field, is_required=wanted.is_required)
    if not request.tools:
        return None if wanted is None else (wanted.kind, wanted.text)
    tags = call_tags(form.tools, text.lone_id)
    if tags is None:
        if wanted is not None and wanted.is_required and request.tool_choice != "required":
            raise not_served(wanted)
        return None
    if request.tool_choice == "required":
        return "lark", forced_calls(_callable(request), tags, opening)
    if wanted is None:
        return "lark", optional_calls(_callable(request), tags, None)
    if wanted.kind != "json_schema":
        raise invalid(wanted.field, f"'{wanted.field}' cannot go with 'tools'.")
    return "lark", optional_calls(_callable(request), tags, wanted.text)


def _callable(request: ChatRequest) -> list[CallableTool]:
    tools = []
    for at, tool in enumerate(request.tools):
        function, is_strict = tool["function"], is_strict_tool(tool)
        field = f"tools[{at}].function.parameters"
        source = _source_of(function, field, is_strict=is_strict)
        owner = f"tool {function['name']!r}"
        _tell_of(source.left_out, owner, field, is_required=is_strict)
        tools.append(CallableTool(function["name"], source.text))
    return tools


def _source_of(function: dict[str, Any], field: str, *, is_strict: bool) -> SchemaSource:
    """The schema of a function's parameters; that of a tool that was sent before is known."""
    known = function.sources if isinstance(function, ToolSchema) else {}
    source = known.get(is_strict)
    if not isinstance(source, SchemaSource):
        schema = function.get("parameters")
        given = schema if isinstance(schema, dict) and schema else {"type": "object"}
        source = schema_source(given, field, is_strict=is_strict, is_lenient=not is_strict)
        known[is_strict] = source
    return source


def _tell_of(left_out: tuple[LeftOut, ...], owner: str, field: str, *, is_required: bool) -> None:
    """Refuse what must be enforced and cannot be; else write a line for the operator, once."""
    if not left_out:
        return
    if is_required:
        pointer, keyword, why = left_out[0]
        text = f"'{field}' of {owner}: '{keyword}' at {pointer} cannot be enforced: {why}."
        raise invalid(field, text, code="invalid_grammar")
    key = owner, left_out
    if key in _told:
        return
    if len(_told) >= _MOST_TOLD:
        _told.clear()
    _told.add(key)
    words = "; ".join(f"{keyword!r} at {pointer} ({why})" for pointer, keyword, why in left_out)
    _log.info("the schema of %s is enforced without %s", owner, words)


def is_strict_tool(tool: dict[str, Any]) -> bool:
    return tool["function"].get("strict") is True
