"""Messages -> the text of the prompt, by the model's own Jinja template.

Owns the variables of a template, the meaning of its refusals, and Jinja's environment, which is
compatible with transformers' `apply_chat_template`, because model authors test with it: sandboxed,
trimmed blocks, loop controls, plain `tojson`. A compiled template keeps no state, so several
threads may render at once. Must not know tokenizers: control tokens come as strings.
"""

import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from json.encoder import encode_basestring
from types import GeneratorType
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from gateway.api import JsonForm, Message, ToolSchema, invalid, json_text, shown_tool
from gateway.output.tools import detect_tool_format
from gateway.prompt.control_tokens import MARK, ControlTokens, tools_without_mark, without_mark
from gateway.prompt.efforts import EFFORT, other_efforts
from gateway.prompt.filled_tools import filled_tools, typed_tools
from gateway.prompt.strict_turns import (
    alternating_turns,
    answered_turns,
    instructed_turns,
    settled_turns,
    spoken_turns,
)
from gateway.prompt.template_traits import Traits, find_parts, find_traits, shows_said
from gateway.prompt.text_beside_calls import TextBesideCalls
from gateway.prompt.turns import THOUGHTS, with_parts
from gateway.prompt.written_calls import call_writer
from protocol.errors import ConfigError

# What a template raises on purpose, and what its expressions raise on unexpected shapes.
_REFUSALS: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)

_METHODS: Final = frozenset(name for kind in (dict, list, str, LoopContext) for name in dir(kind))
_WRAPPED: Final = frozenset({"format", "format_map"})
_IMMUTABLE_TYPES: Final = frozenset({str, LoopContext})

_decode: Final = json.JSONDecoder().raw_decode

_PROBE_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
_PROBE_TURNS: Final = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
)


_COMPILED: Final = "<template>"
"""The file of a compiled template, by Jinja."""
_REMEDY: Final = "Send them in another form, or set 'chat_template' in [[models]]."

_TOOLS_IN_SYSTEM: Final = "'tools' in message"
"""A part of Phi-4-mini's template, which looks for tools only in a field of the system turn."""


class ChatTemplate:
    """A compiled template (4.5 ms; keep it).

    `variables` are the tokens that templates name (bos_token, eos_token, ...). Raises `ConfigError`
    for a source that is not a template.
    """

    def __init__(
        self, source: str, control: ControlTokens, variables: Mapping[str, str] | None = None
    ) -> None:
        self._control = control
        self._knows_developer = "developer" in source
        self._finds_tools_in_system = _TOOLS_IN_SYSTEM in source
        try:
            self._template = compile_template(control.mark(source))
            self._variables = {k: control.mark(v) for k, v in (variables or {}).items()}
            self._builds_tokens = self._has_unmarked_tokens()
            if self._builds_tokens:
                self._template = compile_template(source)
                self._variables = dict(variables or {})
            self._constants = {
                **self._template.globals,
                "add_generation_prompt": True,
                "documents": None,  # as transformers defines them
                **self._variables,
            }
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the chat template, line {error.lineno}: {error.message}") from error
        self._traits = Traits()
        self._in_parts: frozenset[str] = frozenset()
        self._text_beside_calls: TextBesideCalls | None = None
        self._refusal: Exception | None = None
        tools = detect_tool_format(source)
        self._in_parts = find_parts(self._shown)
        self._traits = find_traits(self._shown, call_writer(tools.name, control.mark))
        if self._traits.shows_calls and not shows_said(self._shown, self._traits.forms):
            self._text_beside_calls = TextBesideCalls(control.mark(tools.markers[0]))
            if not shows_said(self._shown, self._traits.forms):
                self._text_beside_calls = None
        if self._traits.loses_developers:
            self._knows_developer = False

    @property
    def remarks(self) -> list[str]:
        """Remarks about the template for operators, a line each."""
        if not self._traits.is_usable:
            place = "" if self._refusal is None else self._place_of(self._refusal)
            return [f"it refuses every question: {self._refusal}{place}"]
        remarks = []
        if not self._traits.shows_tools:
            remarks.append("it does not show the tools of a request")
        if not self._traits.shows_calls:
            remarks.append("it does not show calls of earlier turns, or their results")
        elif self._traits.spells_calls:
            remarks.append(
                "it does not show calls of earlier turns: they are text of the assistant"
            )
        return remarks

    @property
    def shows_questions(self) -> bool:
        """Whether all that users say is in the prompt."""
        return self._traits.shows_questions

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        now: datetime,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """The segments of the prompt, which ends where the assistant's answer begins; `now` is for
        `strftime_now`.

        A conversation that the template refuses is rendered in stricter forms. Raises `ApiError`
        400 when it refuses these too.
        """
        given = self._given(messages, tools, template_kwargs)
        try:
            return self._segments(given, now)
        except _REFUSALS as error:
            # Only the first refusal is about the conversation as the client wrote it.
            refusal = error
        for form in self._stricter(given):
            try:
                return self._segments(form, now)
            except _REFUSALS:
                continue
        told = f"{refusal}{self._place_of(refusal)}"
        text = f"The chat template of the model cannot use these messages: {told}. {_REMEDY}"
        raise invalid("messages", text, code="template_refused") from refusal

    def _place_of(self, refusal: BaseException) -> str:
        """The line of the template that raised the refusal, in words; empty if no line did."""
        lines = [
            line
            for frame, line in traceback.walk_tb(refusal.__traceback__)
            if frame.f_code.co_filename == _COMPILED
        ]
        if not lines:
            return ""
        return f" (line {self._template.get_corresponding_lineno(lines[-1])} of the template)"

    def _segments(self, given: dict[str, Any], now: datetime) -> list[str]:
        if self._builds_tokens:
            return self._control.split_broken(self._run(self._control.break_up(given), now))
        return self._run(given, now).split(MARK)

    def _stricter(self, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The forms to try instead of `given`, the mildest one first. The effort and the tools
        change only if it is them that the template refuses.
        """
        if EFFORT in given and not self._takes(given):
            given = next(filter(self._takes, other_efforts(given)), given)
            yield given
        for form in (filled_tools, typed_tools) if given["tools"] else ():
            if not self._takes(given):
                given = {**given, "tools": form(given["tools"])}
                yield given
        for stricter in (settled_turns, answered_turns, alternating_turns, spoken_turns):
            yield {**given, "messages": stricter(given["messages"])}
        yield {**given, "messages": instructed_turns(given["messages"])}

    def _takes(self, given: dict[str, Any]) -> bool:
        """Whether the template accepts a single question with the given variables and tools."""
        try:
            self._run({**given, "messages": list(_PROBE_TURNS[:1])}, _PROBE_TIME)
        except _REFUSALS:
            return False
        return True

    def _shown(
        self, turns: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None
    ) -> str | None:
        """What `find_traits` reads: the rendered prompt, or None for a refusal. The first refusal
        is kept in case all conversations are refused.
        """
        try:
            text = self._run({"messages": list(turns), "tools": tools}, _PROBE_TIME)
        except _REFUSALS as error:
            self._refusal = self._refusal or error
            return None
        return text

    def _run(self, given: dict[str, Any], now: datetime) -> str:
        """What Jinja's `render` does, without collecting the globals again (8 us)."""
        template = self._template
        words: list[str] = []
        if self._text_beside_calls is not None:
            turns, words = self._text_beside_calls.hidden(given["messages"])
            given = {**given, "messages": turns}
        if self._in_parts:
            given = {**given, "messages": with_parts(given["messages"], self._in_parts)}
        names = {**self._constants, **given, "strftime_now": now.strftime}
        context = Context(template.environment, names, template.name, template.blocks)
        text = "".join(template.root_render_func(context))
        return (
            text if self._text_beside_calls is None else self._text_beside_calls.shown(text, words)
        )

    def _given(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        template_kwargs: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The variables that come from the client, without marks."""
        given = without_mark(dict(template_kwargs)) if template_kwargs else {}
        called = {call.id: call.name for message in messages for call in message.tool_calls}
        if "" in called and len({one.name for m in messages for one in m.tool_calls}) > 1:
            del called[""]  # it would be the name of the last call without an id
        given["messages"] = [
            {"role": message.role, "content": message.content}
            # Nearly all messages: 0.3 us each; a call and a look at every field takes 3 us.
            if message.content is not None
            and MARK not in message.content
            and not message.tool_calls
            and message.name is message.tool_call_id is message.reasoning_content is None
            and message.role != "developer"
            else self._message(message, called)
            for message in messages
        ]
        for form in self._traits.forms:
            given["messages"] = form(given["messages"])
        no_tools = self._traits.no_tools
        given["tools"] = tools_without_mark(map(shown_tool, tools)) if tools else no_tools
        if tools and self._finds_tools_in_system:
            given["messages"] = _with_tools(given["messages"], given["tools"])
        return given

    def _message(self, message: Message, called: Mapping[str, str]) -> dict[str, Any]:
        """`called` are the names of functions by the ids of their calls: some templates show them
        with the results, where no API has them.
        """
        role: str = message.role
        if role == "developer" and not self._knows_developer:
            role = "system"
        plain: dict[str, Any] = {"role": role, "content": message.content or ""}
        name = message.name or called.get(message.tool_call_id or "")
        if name is not None:
            plain["name"] = name
        if message.tool_call_id is not None:
            plain["tool_call_id"] = message.tool_call_id
        if message.reasoning_content is not None:
            plain |= dict.fromkeys(THOUGHTS, message.reasoning_content)
        if message.tool_calls:
            plain["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _arguments(call.arguments)},
                }
                for call in message.tool_calls
            ]
        is_marked = _may_be_marked(message) or MARK in (name or "")
        return without_mark(plain) if is_marked else plain

    def _has_unmarked_tokens(self) -> bool:
        """Whether the template builds control tokens from parts: a harmless conversation shows
        them.
        """
        for turns in (_PROBE_TURNS, ({"role": "system", "content": "s"}, *_PROBE_TURNS)):
            try:
                rendered = self._template.render(
                    messages=turns,
                    tools=None,
                    add_generation_prompt=True,
                    strftime_now=lambda _: "",
                    **self._variables,
                )
            except _REFUSALS:
                # A template may refuse the system turn of this probe; then the other decides.
                continue
            if self._control.read(rendered.split(MARK)).pieces is not None:
                return True
        return False


def compile_template(source: str) -> jinja2.Template:
    """A template in an environment of its own. Raises `jinja2.TemplateSyntaxError`."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    parsed = _FieldsFirst().visit(environment.parse(source))
    if _APPENDS in source:
        environment.globals[_NEW_LIST] = _OwnList
        parsed = _OwnLists().visit(parsed)
    return environment.from_string(parsed)


class _FieldsFirst(NodeTransformer):
    """Turns `message.role` of a template into `message['role']`, which Jinja looks up as a field
    first and as an attribute second, because templates mostly read fields of dicts. Names of
    methods stay: no plain value has a field and an attribute under any other name.
    """

    def visit_Getattr(self, node: jinja2.nodes.Getattr) -> jinja2.nodes.Node:  # noqa: N802
        """`NodeTransformer` calls it for every node of this type."""
        self.generic_visit(node)
        if node.attr in _METHODS or node.ctx != "load":
            return node
        name = jinja2.nodes.Const(node.attr, lineno=node.lineno)
        return jinja2.nodes.Getitem(node.node, name, node.ctx, lineno=node.lineno)


_APPENDS: Final = ".append("
_NEW_LIST: Final = "_new_list"
_OWN_METHODS: Final = frozenset({"append", "extend", "insert", "pop"})


class _OwnList(list[Any]):
    """A list that a template has begun itself. It may change it, as the templates of Kimi-K2 do; in
    the sandbox of transformers every list is immutable.
    """


class _OwnLists(NodeTransformer):
    """Turns every `[]` of a template into a call that makes an `_OwnList`."""

    def visit_List(self, node: jinja2.nodes.List) -> jinja2.nodes.Node:  # noqa: N802
        """`NodeTransformer` calls it for every node of this type."""
        self.generic_visit(node)
        if node.items:
            return node
        name = jinja2.nodes.Name(_NEW_LIST, "load", lineno=node.lineno)
        return jinja2.nodes.Call(name, [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a shorter check of what templates read most."""

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401
        """See Jinja's sandbox. On immutable values this forbids only names with an underscore, and
        wraps only the methods that format.
        """
        if type(obj) in _IMMUTABLE_TYPES and attribute[:1] != "_" and attribute not in _WRAPPED:
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass  # then Jinja looks for an item of that name
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        """See Jinja's sandbox."""
        if type(obj) is _OwnList and attr in _OWN_METHODS:
            return True
        return super().is_safe_attribute(obj, attr, value)


def _with_tools(
    messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The messages, the first one a system turn that has the functions as JSON."""
    has_system = messages[0]["role"] == "system"
    system = messages[0] if has_system else {"role": "system", "content": ""}
    functions = [tool.get("function", tool) for tool in tools]
    return [{**system, "tools": json_text(functions)}, *messages[has_system:]]


def _may_be_marked(message: Message) -> bool:
    """Whether `_message` may put out a mark; in arguments it may be escaped."""
    content, reasoning = message.content, message.reasoning_content
    if (content is not None and MARK in content) or (reasoning is not None and MARK in reasoning):
        return True
    if MARK in (message.name or "") or MARK in (message.tool_call_id or ""):
        return True
    for call in message.tool_calls:
        if "\\u" in call.arguments or MARK in call.arguments or MARK in call.name + call.id:
            return True
    return False


def _arguments(text: str) -> str | dict[str, Any]:
    """Arguments as the object that templates pass to `tojson`; as text if they are not one."""
    try:
        # Half the cost of `json.loads`, which also skips white space around.
        value, end = _decode(text)
    except (ValueError, RecursionError):
        value, end = None, -1
    if end < len(text):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text if text.strip() else {}
    return value if isinstance(value, dict) else text


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks text for training; rendering ignores the tag. What is set within it
    ends with it, as in transformers.
    """

    tags = {"generation"}  # noqa: RUF012 (the base class declares an instance variable)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes for HTML; a faster encoder would write other characters."""
    if type(value) is str and not ensure_ascii:
        return encode_basestring(value)
    if isinstance(value, GeneratorType):  # the result of `tools | map(...)`, for instance
        value = list(value)
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        return value.text_in() if type(value) is ToolSchema else json_text(value)
    form = JsonForm(ensure_ascii, indent, separators, sort_keys)
    return value.text_in(form) if type(value) is ToolSchema else json_text(value, form)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
