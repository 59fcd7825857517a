"""Tool calls as a grammar, so that a model can write no other.

Owns the grammars (llguidance's Lark) of answers with calls: calls alone, or text and calls. What a
call looks like in each format is in `json_syntaxes.py` and `value_syntaxes.py`. Must not know
tokens beyond the ids of tags, nor requests.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.output.tools.parameter_grammar import UnenforcedKeyword
from gateway.output.tools.syntax_parts import CallSyntax

ARGUMENTS: Final = "arguments_"
"""The rule of a tool's arguments, with the tool's index behind it. Engines name it in errors."""

_ANY_TEXT: Final = "TEXT: /(.|\\n)*/\n"


class CallableTool(NamedTuple):
    """A tool that the model may call; `schema` is the JSON of its parameters' schema."""

    name: str
    schema: str


class CallGrammar:
    """The grammars of one format. `reads_thoughts`: they begin where the answer begins, thoughts
    included; others begin behind the thoughts.
    """

    def __init__(self, syntax: CallSyntax) -> None:
        self._syntax = syntax
        self.reads_thoughts = syntax.channels is not None

    def forced(
        self, tools: Sequence[CallableTool], begun: str, *, is_thinking: bool = False
    ) -> str:
        """One call or more and nothing else, of which the prompt has `begun` the first: not at
        all, up to where a name follows, or up to the arguments of the only tool. `is_thinking`: as
        in `optional`.
        """
        syntax = self._syntax
        if not begun:
            start = f"call {syntax.more}"
            if syntax.channels is not None:
                start = syntax.channels.calls(syntax.more, is_thinking=is_thinking)
                return self._grammar(start, tools) + _ANY_TEXT
        elif len(tools) == 1 and syntax.is_named(begun, tools[0].name):
            start = f"{syntax.rest} {ARGUMENTS}0 end {syntax.more}"
        else:
            start = f"named end {syntax.more}"
        return self._grammar(start, tools)

    def optional(
        self, tools: Sequence[CallableTool], content: str | None, *, is_thinking: bool = False
    ) -> str:
        """Text, and calls anywhere in it; or with `content`, a JSON schema, either that or calls.
        `is_thinking`: the prompt has opened thoughts that the grammar reads.
        """
        syntax = self._syntax
        rest = _ANY_TEXT if content is None else f"content: %json {content}\n"
        channels = syntax.channels
        if channels is not None and content is None:
            start = channels.answer(syntax.more, is_thinking=is_thinking)
        elif channels is not None:
            start = channels.form("content", syntax.more, is_thinking=is_thinking)
            rest += _ANY_TEXT
        elif content is not None:
            start = f"content | call {syntax.more}"
        elif syntax.is_bare:
            start = f"FREE? | call {syntax.more}"
            rest = "FREE: /[ \\n]*[^{ \\n](.|\\n)*/\n"
        else:
            start = "TEXT (call TEXT)*"
        return self._grammar(start, tools) + rest

    def no_calls(self, content: str, *, is_thinking: bool = False) -> str:
        """A text that follows a JSON schema, behind thoughts if the grammar reads them."""
        channels = self._syntax.channels
        assert channels is not None
        start = channels.form("content", None, is_thinking=is_thinking)
        return f"start: {start}\ncontent: %json {content}\n{_ANY_TEXT}"

    def limits(self, schema: str) -> tuple[UnenforcedKeyword, ...]:
        """The parts of a tool's schema that these grammars do not enforce, except those that no
        engine enforces.
        """
        form = self._syntax.arguments
        return () if form is None else form.limits(schema)

    def _grammar(self, start: str, tools: Sequence[CallableTool]) -> str:
        """The grammar of calls. What follows the key of a name is a separate rule, because a prompt
        may end there.
        """
        syntax = self._syntax
        names = " | ".join(f"tool_{at}" for at in range(len(tools)))
        lines = [
            f"start: {start}",
            f"call: {syntax.before} named end",
            f"end: {syntax.end}",
            f"named: {syntax.lead} again".replace("  ", " "),
            f"again: {names}",
        ]
        for at, tool in enumerate(tools):
            lines.append(f"tool_{at}: {syntax.head(tool.name)} {syntax.gap} {ARGUMENTS}{at}")
            if syntax.arguments is None:
                lines.append(f"{ARGUMENTS}{at}: %json {tool.schema}")
            else:
                lines += syntax.arguments.rules(f"{ARGUMENTS}{at}", tool.schema)
        return "\n".join(lines) + "\n"
