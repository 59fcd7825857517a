"""What calls look like in each format, in llguidance's Lark.

Owns which formats have grammars, and the text around names and arguments. White space that models
write or leave out is optional. Must not know schemas or requests.

A tag that begins a call must be one token: one of several could not be told from text. So a format
whose tags the tokenizer does not know has no grammar.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from gateway.output.tools import (
    apertus,
    deepseek,
    gemma,
    glm,
    harmony,
    hermes,
    kimi,
    minimax,
    mistral,
    phi,
    pythonic,
    qwen_coder,
)
from gateway.output.tools.formats import ToolFormat
from gateway.output.tools.notation import Notation, ObjectNotation, Quotes
from gateway.output.tools.parameter_grammar import ParameterTags, UnenforcedKeyword, quoted

LoneId = Callable[[str], int | None]
"""The token that is a text, if there is one."""


class Channels(NamedTuple):
    """Answers of several messages: a `thought`, a `preamble` before calls, the `final` text before
    what it says, `between` two messages, and the `end` of a thought that the prompt has opened.
    """

    thought: str
    preamble: str
    final: str
    between: str
    end: str

    def answer(self, content: str, more: str, *, is_thinking: bool) -> str:
        """All messages of an answer; `content` is the rule of the text, `more` of further calls."""
        rest = f"({self.thought} | {self.preamble})* ({self.final} {content} | call {more})"
        return f"TEXT {self.end} {rest}" if is_thinking else rest


class Arguments(Protocol):
    """Arguments that are no JSON."""

    def rules(self, rule: str, schema: str) -> Sequence[str]:
        """The lines of `rule` for arguments of the schema, which is JSON."""
        ...

    def limits(self, schema: str) -> tuple[UnenforcedKeyword, ...]:
        """What the rules of such a schema leave out."""
        ...


class CallSyntax(NamedTuple):
    """Around a call: `before` what names it, `lead` and then `head` of the name, `gap`, the
    arguments, `end`; `more` are further calls. `rest` stands before the arguments where the prompt
    has the name, and `named_end` is how such a prompt ends. `is_bare`: calls have no tag before
    them, and begin an answer. `arguments`: they are no JSON. Rules may be `call`, `named` (a call
    from `lead` to its arguments) and `again` (the same without `lead`).
    """

    before: str
    head: Callable[[str], str]
    end: str
    more: str
    lead: str = ""
    gap: str = ""
    rest: str = ""
    named_end: str = ""
    is_bare: bool = False
    channels: Channels | None = None
    arguments: Arguments | None = None

    def is_named(self, begun: str, name: str) -> bool:
        """Whether a call that is `begun` has the name already."""
        return begun.rstrip().endswith(self.named_end.replace("NAME", name))


def call_syntax(
    tool_format: ToolFormat | None, template: str, lone_id: LoneId
) -> CallSyntax | None:
    """The syntax of the format in the version of the template; None if it has no grammar, or the
    tokenizer has no token for a tag that it needs.
    """
    make = _FORMATS.get(tool_format.name) if tool_format is not None else None
    return None if make is None else make(template, lone_id)


def _hermes(_template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = _lone(lone_id, hermes.OPEN, hermes.CLOSE)
    if tags is None:
        return None
    return CallSyntax(
        f'{tags[0]} "\\n"? {_NAME_KEY}',
        _object_head("arguments"),
        f'"}}" "\\n"? {tags[1]}',
        '("\\n"? call)*',
        lead=_SPACE,
        gap=_SPACE,
        rest=_SPACE,
        named_end='"arguments":',
    )


def _list(opening: str, closing: str) -> "_Make":
    """Objects with a name and arguments in one array, whose last tag some models leave out."""

    def make(_template: str, lone_id: LoneId) -> CallSyntax | None:
        tags = _lone(lone_id, opening)
        if tags is None:
            return None
        item = f'"," {_SPACE} {_NAME_KEY} named "}}"'
        return CallSyntax(
            f'{tags[0]} "[" {_NAME_KEY}',
            _object_head("arguments"),
            f'"}}" ({item})* "]" ({_tag(lone_id, closing)})?',
            "",
            lead=_SPACE,
            gap=_SPACE,
            rest=_SPACE,
            named_end='"arguments":',
        )

    return make


def _apertus(_template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = _lone(lone_id, apertus.OPEN)
    if tags is None:
        return None
    key = quoted('{"')
    return CallSyntax(
        f'{tags[0]} "[" {key}',
        lambda name: quoted(f'{json.dumps(name, ensure_ascii=False)[1:-1]}":'),
        f'"}}" ("," {_SPACE} {key} named "}}")* "]" ({_tag(lone_id, apertus.CLOSE)})?',
        "",
        gap=_SPACE,
        rest=_SPACE,
        named_end='":',
    )


def _minimax_1(_template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = _lone(lone_id, minimax.OPEN_1)
    if tags is None:
        return None
    return CallSyntax(
        f'{tags[0]} "\\n" {_NAME_KEY}',
        _object_head("arguments"),
        f'"}}" ("\\n" {_NAME_KEY} named "}}")* "\\n" {_tag(lone_id, minimax.CLOSE_1)}',
        "",
        lead=_SPACE,
        gap=_SPACE,
        rest=_SPACE,
        named_end='"arguments":',
    )


def _llama(_template: str, _lone_id: LoneId) -> CallSyntax:
    return CallSyntax(
        _NAME_KEY,
        _object_head("parameters"),
        '"}"',
        f'(";" {_SPACE} call)*',
        lead=_SPACE,
        gap=_SPACE,
        rest=_SPACE,
        named_end='"parameters":',
        is_bare=True,
    )


def _mistral(template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = _lone(lone_id, mistral.MARKER)
    if tags is None:
        return None
    if mistral.ARGS not in template:
        item = f'"," {_SPACE} {_NAME_KEY} named "}}"'
        return CallSyntax(
            f'{tags[0]} {_SPACE} "[" {_NAME_KEY}',
            _object_head("arguments"),
            f'"}}" ({item})* "]"',
            "",
            lead=_SPACE,
            gap=_SPACE,
            rest=_SPACE,
            named_end='"arguments":',
        )
    args = _tag(lone_id, mistral.ARGS)
    return CallSyntax(
        tags[0], quoted, '""', "call*", gap=args, rest=args, named_end=f"{mistral.MARKER}NAME"
    )


def _kimi(_template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = _lone(lone_id, kimi.SECTION, kimi.CALL, kimi.ARGUMENTS, kimi.END_CALL, kimi.END_SECTION)
    if tags is None:
        return None
    section, call, arguments, end_call, end_section = tags
    prefix = quoted(kimi.PREFIX[:-1])

    def head(name: str) -> str:
        before = quoted(f".{name}:")
        return f"{before} /[0-9]+/ {arguments}"

    return CallSyntax(
        f"{section} {call} {prefix}",
        head,
        f"{end_call} ({call} {prefix} named {end_call})* {end_section}",
        "",
        named_end=kimi.ARGUMENTS,
    )


def _harmony(_template: str, lone_id: LoneId) -> CallSyntax | None:
    """`<|call|>` ends an answer in most settings, so it may be missing in the text."""
    tags = _lone(
        lone_id, harmony.START, harmony.CHANNEL, harmony.MESSAGE, harmony.END, harmony.CONSTRAIN
    )
    if tags is None:
        return None
    start, channel, message, end, constrain = tags
    between = f'{start} "assistant"'
    last = f"{end} {between}"
    recipient = quoted(f"commentary to={harmony.PREFIX[:-1]}")

    def head(name: str) -> str:
        written = quoted(f".{name} ")
        return f'{written} {constrain} "json" {message}'

    return CallSyntax(
        f"{channel} {recipient}",
        head,
        f"({_tag(lone_id, harmony.CALL)})?",
        f"({between} call)*",
        named_end=harmony.MESSAGE,
        channels=Channels(
            f'{channel} "analysis" {message} TEXT {last}',
            f'{channel} "commentary" {message} TEXT {last}',
            f'{channel} "final" {message}',
            between,
            last,
        ),
    )


def _qwen_coder(template: str, lone_id: LoneId) -> CallSyntax | None:
    is_seed = qwen_coder.SEED_OPEN in template
    opening = qwen_coder.SEED_OPEN if is_seed else hermes.OPEN
    closing = qwen_coder.SEED_CLOSE if is_seed else hermes.CLOSE
    tags = _lone(lone_id, opening, closing)
    if tags is None or opening not in template:
        return None
    function, end = quoted(f"\n{qwen_coder.FUNCTION[:-1]}"), quoted(f"{qwen_coder.END_FUNCTION}\n")
    gap = "" if is_seed else "\n"  # on both sides of a value
    return CallSyntax(
        f"{tags[0]} {function}",
        lambda name: quoted(f"={name}>\n"),
        f"{end} {tags[1]}",
        '("\\n"? call)*',
        named_end="=NAME>",
        arguments=ParameterTags(
            qwen_coder.PARAMETER, f">{gap}", f"{gap}{qwen_coder.END_PARAMETER}\n"
        ),
    )


def _deepseek(template: str, lone_id: LoneId) -> CallSyntax | None:
    """V3.1's, and that of V3 and R1, which put the arguments in a fence."""
    tags = deepseek.V3
    lone = _lone(lone_id, tags.section, tags.call, tags.sep, tags.end_call, tags.end_section)
    if lone is None:
        return None
    section, call, sep, end_call, end_section = lone
    if "```json" not in template:
        return CallSyntax(
            f"{section} {call}",
            lambda name: f"{quoted(name)} {sep}",
            f"{end_call} ({call} named {end_call})* {end_section}",
            "",
            named_end=f"NAME{tags.sep}",
        )
    begin, end = f'{call} "function" {sep}', f'"\\n```" {end_call}'
    return CallSyntax(
        f"{section} {begin}",
        lambda name: quoted(f"{name}\n```json\n"),
        f'{end} ("\\n"? {begin} named {end})* {end_section}',
        "",
        named_end="NAME\n```json",
    )


def _glm(_template: str, lone_id: LoneId) -> CallSyntax | None:
    """GLM 4.5 and 4.6 break lines between the tags, 4.7 does not."""
    tags = _lone(lone_id, *glm.GLM[:-1])
    if tags is None:
        return None
    opening, closing, key, end_key, value, end_value = tags
    return CallSyntax(
        opening,
        quoted,
        closing,
        f"({_LINE} call)*",
        gap=_LINE,
        rest=_LINE,
        named_end=f"{glm.GLM.open}NAME",
        arguments=ParameterTags(
            key,
            f"{end_key} {_LINE} {value}",
            f"{end_value} {_LINE}",
            are_tokens=True,
            never=re.escape(glm.GLM.end_value),
        ),
    )


def _gemma(tags: gemma.GemmaTags) -> "_Make":
    """The names of parameters come in alphabetical order: so templates write them."""

    def make(_template: str, lone_id: LoneId) -> CallSyntax | None:
        lone = _lone(lone_id, *tags)
        if lone is None:
            return None
        opening, closing, escape = lone
        quotes = Quotes(escape, escape, "(.|\\n)", "(.|\\n)", re.escape(tags.escape))
        names = ObjectNotation('"{"', '"}"', '":"', _GEMMA_NAME, (quotes,))
        return CallSyntax(
            f"{opening} {quoted(gemma.PREFIX[:-1])}",
            lambda name: quoted(f":{name}"),
            closing,
            "call*",
            named_end=f"{gemma.PREFIX}NAME",
            arguments=Notation(
                names, names, (quotes,), (("null",), ("true",), ("false",)), '","', is_sorted=True
            ),
        )

    return make


def _lfm2(_template: str, lone_id: LoneId) -> CallSyntax | None:
    """Python's literals, or JSON's: models write both."""
    tags = _lone(lone_id, pythonic.OPEN, pythonic.CLOSE)
    if tags is None:
        return None
    comma = f'"," {_SPACE}'
    return CallSyntax(
        tags[0],
        quoted,
        f'({comma} again)* "]" {tags[1]}',
        "",
        lead='"["',
        named_end=f"{pythonic.OPEN}[NAME",
        arguments=Notation(
            ObjectNotation('"("', '")"', '"="', _PYTHON_NAME),
            ObjectNotation('"{"', '"}"', f'":" {_SPACE}', quotes=_PYTHON_QUOTES),
            _PYTHON_QUOTES,
            (("None", "null"), ("True", "true"), ("False", "false")),
            comma,
        ),
    )


def _tag(lone_id: LoneId, text: str) -> str:
    found = lone_id(text)
    return quoted(text) if found is None else f"<[{found}]>"


def _lone(lone_id: LoneId, *texts: str) -> list[str] | None:
    """The tags as tokens; None if one of them is no token."""
    ids = [lone_id(text) for text in texts]
    return None if None in ids else [f"<[{one}]>" for one in ids]


def _object_head(arguments: str) -> Callable[[str], str]:
    return lambda name: quoted(f'{json.dumps(name, ensure_ascii=False)}, "{arguments}":')


_SPACE: Final = '" "?'
_LINE: Final = '"\\n"?'
_GEMMA_NAME: Final = r"[^\s,:{}\[\]<>\"']([^,:{}\[\]<>\"'\n]*[^\s,:{}\[\]<>\"'])?"
_PYTHON_NAME: Final = r"[^\s<>{}\[\]()\"'`\\,;=|:]+"
"""Names as the readers of these formats take them."""


def _python_quotes(mark: str) -> Quotes:
    escapes = (("\\", "\\\\"), (mark, f"\\{mark}"), ("\n", "\\n"))
    plain = f"[^{mark}\\\\]"
    return Quotes(
        quoted(mark), quoted(mark), f"({plain}|\\\\[\"'\\\\nrtbf])", plain, escapes=escapes
    )


_PYTHON_QUOTES: Final = (_python_quotes("'"), _python_quotes('"'))
_NAME_KEY: Final = quoted('{"name":')
_Make = Callable[[str, LoneId], CallSyntax | None]
_FORMATS: Final[Mapping[str, _Make]] = {
    "hermes": _hermes,
    "qwen3_coder": _qwen_coder,
    "llama3_json": _llama,
    "mistral": _mistral,
    "deepseek_v3": _deepseek,
    "kimi_k2": _kimi,
    "glm": _glm,
    "phi4_mini": _list(phi.OPEN, phi.CLOSE),
    "nemotron": _list(phi.NEMOTRON_OPEN, phi.NEMOTRON_CLOSE),
    "harmony": _harmony,
    "minimax_m1": _minimax_1,
    "apertus": _apertus,
    "function_gemma": _gemma(gemma.V3),
    "gemma4": _gemma(gemma.V4),
    "lfm2": _lfm2,
}
