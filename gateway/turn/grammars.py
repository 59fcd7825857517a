"""Which grammar an engine enforces for a request.

Owns the choice between the client's grammar, a grammar of its tools' calls, and both; and whether
it applies from the first token or after the model's reasoning. Must not know how a grammar is
enforced.
"""

import logging
from typing import Any, Final

import msgspec

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
from gateway.output import AnswerFormat, ReasoningFormat
from gateway.output.tools import TOOL_FORMATS, CallableTool, CallGrammar, call_syntax
from gateway.prompt import ModelText
from gateway.schemas import LeftOut
from protocol.messages import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

_log = logging.getLogger(__name__)
_MOST_TOLD: Final = 1024
_AS_TEXT: Final = "this model writes the parameters of a call as plain text"
_told: set[tuple[str, tuple[LeftOut, ...]]] = set()
"""Keys of the lines that were logged: agents repeat their tools with every turn, and each line
is logged once.
"""


class Beginning(msgspec.Struct, frozen=True, gc=False):
    """How the answer begins: `end` is the end of the prompt's text, `is_thinking` says whether the
    prompt ends inside reasoning, `opening` is the beginning of a call in the prompt.
    """

    end: str
    is_thinking: bool
    opening: str


def grammar_of(
    request: ChatRequest,
    text: ModelText,
    form: AnswerFormat,
    beginning: Beginning,
    *,
    takes_lark: bool = True,
) -> Grammar | None:
    """The grammar for an engine; None if there is nothing to enforce. Raises `ApiError` 400 for a
    grammar that is too large or cannot be combined with tools.
    """
    calls = calls_of(request, text, form, takes_lark=takes_lark)
    found = _content_or_calls(request, calls, form, beginning)
    if found is None:
        return None
    kind, source = found
    if len(source.encode("utf-8", "replace")) > MAX_GRAMMAR_BYTES:
        wanted = request.grammar
        raise grammar_too_large("tools" if request.tools or wanted is None else wanted.field)
    reasoning = form.reasoning
    if beginning.opening or reasoning is None or (calls is not None and calls.reads_thoughts):
        return Grammar(kind, source)
    if (around := _around(reasoning, text)) is None:
        return Grammar(kind, source)
    closing_id, opening_id = around
    if beginning.is_thinking:
        return Grammar(kind, source, closing_id)
    if not form.past_reasoning(beginning.end):
        return Grammar(kind, source)
    return Grammar(kind, source, closing_id, opening_id)


def calls_of(
    request: ChatRequest, text: ModelText, form: AnswerFormat, *, takes_lark: bool
) -> CallGrammar | None:
    """How the request's calls are enforced; None without tools, and in a format without grammar. A
    schema of the answer needs it too in formats whose grammars read the thoughts.
    """
    if not request.tools:
        return _messages_of(request, text, form) if takes_lark else None
    syntax = call_syntax(form.tools, text.chat_template or "", text.lone_id)
    return None if syntax is None else CallGrammar(syntax)


def _messages_of(request: ChatRequest, text: ModelText, form: AnswerFormat) -> CallGrammar | None:
    wanted, reasoning = request.grammar, form.reasoning
    if wanted is None or wanted.kind != "json_schema" or reasoning is None or request.answer_start:
        return None
    tools = TOOL_FORMATS.get(reasoning.name)
    syntax = call_syntax(tools, text.chat_template or "", text.lone_id)
    return CallGrammar(syntax) if syntax is not None and syntax.channels is not None else None


def skips_reasoning(
    request: ChatRequest, text: ModelText, form: AnswerFormat, *, takes_lark: bool
) -> bool:
    """Whether the answer must start without reasoning for a grammar to apply: the engine finds the
    end of the reasoning only if the tag is one token, and few grammars read the reasoning.
    """
    reasoning = form.reasoning
    if reasoning is None:
        return False
    calls = calls_of(request, text, form, takes_lark=takes_lark)
    if calls is not None and calls.reads_thoughts:
        return False
    return _around(reasoning, text) is None


def _around(reasoning: ReasoningFormat, text: ModelText) -> tuple[int, int] | None:
    """The closing and the opening token of reasoning; None if an engine cannot tell the answer by
    them, which may be behind further tags.
    """
    closing_id, opening_id = text.lone_id(reasoning.close), text.lone_id(reasoning.first)
    if closing_id is None or opening_id is None or reasoning.answer:
        return None
    return closing_id, opening_id


def not_served(wanted: OutputGrammar) -> ApiError:
    """The error when no engine of the model enforces such a grammar."""
    text = f"'{wanted.field}' cannot be enforced for this model; send the request without it."
    return invalid(wanted.field, text, code="grammar_not_served")


def _content_or_calls(
    request: ChatRequest, calls: CallGrammar | None, form: AnswerFormat, beginning: Beginning
) -> tuple[GrammarKind, str] | None:
    wanted = request.grammar
    if wanted is not None and wanted.left_out:
        owner = "the answer"
        _tell_of(wanted.left_out, owner, wanted.field, is_required=wanted.is_required)
    is_thinking = calls is not None and calls.reads_thoughts and form.is_opened_by(beginning.end)
    if not request.tools:
        if wanted is not None and calls is not None:
            return "lark", calls.no_calls(wanted.text, is_thinking=is_thinking)
        return None if wanted is None else (wanted.kind, wanted.text)
    if calls is None:
        if wanted is not None and wanted.is_required and request.tool_choice != "required":
            raise not_served(wanted)
        _tell_of_format(request, form)
        return None
    if request.tool_choice == "required":
        tools = _callable(request, calls)
        return "lark", calls.forced(tools, beginning.opening, is_thinking=is_thinking)
    if wanted is not None and wanted.kind != "json_schema":
        raise invalid(wanted.field, f"'{wanted.field}' cannot go with 'tools'.")
    if request.answer_start and calls.reads_thoughts:
        # The prompt has begun the text, behind which these formats have no calls.
        return None if wanted is None else (wanted.kind, wanted.text)
    content = None if wanted is None else wanted.text
    return "lark", calls.optional(_callable(request, calls), content, is_thinking=is_thinking)


def _tell_of_format(request: ChatRequest, form: AnswerFormat) -> None:
    """Write a line for the operator, once, if strict tools cannot be enforced."""
    name = form.tools.name if form.tools is not None else "none"
    key = f"the calls of {request.model!r}", ()
    if not any(map(is_strict_tool, request.tools)) or not _is_news(key):
        return
    _log.warning(
        "%s are not enforced: the format %s has no grammar, or a tag of it is no token",
        key[0],
        name,
    )


def _callable(request: ChatRequest, calls: CallGrammar) -> list[CallableTool]:
    tools = []
    for at, tool in enumerate(request.tools):
        function, is_strict = tool["function"], is_strict_tool(tool)
        field = f"tools[{at}].function.parameters"
        source = _source_of(function, field, is_strict=is_strict)
        owner = f"tool {function['name']!r}"
        limits = tuple(LeftOut(*one, _AS_TEXT) for one in calls.limits(source.text))
        _tell_of(source.left_out + limits, owner, field, is_required=is_strict)
        tools.append(CallableTool(function["name"], source.text))
    return tools


def _source_of(function: dict[str, Any], field: str, *, is_strict: bool) -> SchemaSource:
    """The schema of a function's parameters; that of a tool that was sent before is known."""
    known = function.sources if isinstance(function, ToolSchema) else {}
    source = known.get(is_strict)
    if not isinstance(source, SchemaSource):
        schema = function.get("parameters")
        given = _of_objects(schema if isinstance(schema, dict) else {})
        source = schema_source(given, field, is_strict=is_strict, is_lenient=not is_strict)
        known[is_strict] = source
    return source


def _of_objects(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of parameters with the type object, because arguments are always an object."""
    kind = schema.get("type")
    if kind == "object" and "nullable" not in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "nullable"}
    if kind is None or (isinstance(kind, list) and "object" in kind):
        return {**rest, "type": "object"}
    return rest


def _tell_of(left_out: tuple[LeftOut, ...], owner: str, field: str, *, is_required: bool) -> None:
    """Refuse what must be enforced and cannot be; else write a line for the operator, once."""
    if not left_out:
        return
    if is_required:
        pointer, keyword, why = left_out[0]
        text = f"'{field}' of {owner}: '{keyword}' at {pointer} cannot be enforced: {why}."
        raise invalid(field, text, code="invalid_grammar")
    key = owner, left_out
    if not _is_news(key):
        return
    words = "; ".join(f"{keyword!r} at {pointer} ({why})" for pointer, keyword, why in left_out)
    _log.info("the schema of %s is enforced without %s", owner, words)


def _is_news(key: tuple[str, tuple[LeftOut, ...]]) -> bool:
    """Whether this was not logged before; from now on it counts as logged. Names in it are a
    client's.
    """
    if key in _told:
        return False
    if len(_told) >= _MOST_TOLD:
        _told.clear()
    _told.add(key)
    return True


def is_strict_tool(tool: dict[str, Any]) -> bool:
    """Whether the arguments of a call of this tool must follow its schema."""
    return tool["function"].get("strict") is True
