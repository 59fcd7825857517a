"""The syntax of calls whose values are written one by one or in a notation of their own, by format.
Must not know schemas or requests.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.output.tools import gemma, glm, hermes, kimi3, minicpm, pythonic, qwen_coder
from gateway.output.tools.notation import Notation, ObjectNotation, Quotes
from gateway.output.tools.parameter_grammar import Parameters
from gateway.output.tools.syntax_parts import (
    LINE,
    SPACE,
    CallSyntax,
    Channels,
    LoneId,
    Make,
    lone,
    tag,
)
from gateway.output.tools.value_tags import (
    QuotedTags,
    TextTags,
    TokenTags,
    TypedTags,
    literally,
    quoted,
)

_GEMMA_NAME: Final = r"[^\s,:{}\[\]<>\"']([^,:{}\[\]<>\"'\n]*[^\s,:{}\[\]<>\"'])?"


_PYTHON_NAME: Final = r"[^\s<>{}\[\]()\"'`\\,;=|:]+"
"""Names as the readers of these formats take them."""


def _qwen_coder(template: str, lone_id: LoneId) -> CallSyntax | None:
    is_seed = qwen_coder.SEED_OPEN in template
    opening = qwen_coder.SEED_OPEN if is_seed else hermes.OPEN
    closing = qwen_coder.SEED_CLOSE if is_seed else hermes.CLOSE
    tags = lone(lone_id, opening, closing)
    if tags is None or opening not in template:
        return None
    function, end = quoted(f"\n{qwen_coder.FUNCTION[:-1]}"), quoted(f"{qwen_coder.END_FUNCTION}\n")
    gap = "" if is_seed else "\n"  # line breaks on both sides of a value
    return CallSyntax(
        f"{tags[0]} {function}",
        lambda name: quoted(f"={name}>\n"),
        f"{end} {tags[1]}",
        '("\\n"? call)*',
        named_end="=NAME>",
        arguments=Parameters(
            TextTags(
                qwen_coder.PARAMETER,
                f">{gap}",
                f"{gap}{qwen_coder.END_PARAMETER}\n",
                qwen_coder.END_PARAMETER,
                (qwen_coder.PARAMETER, qwen_coder.END_FUNCTION, closing),
            )
        ),
    )


def _glm(_template: str, lone_id: LoneId) -> CallSyntax | None:
    """GLM 4.5 and 4.6 break lines between the tags, 4.7 does not."""
    tags = lone(lone_id, *glm.GLM[:-1])
    if tags is None:
        return None
    opening, closing, *inner = tags
    return CallSyntax(
        opening,
        quoted,
        closing,
        f"({LINE} call)*",
        gap=LINE,
        rest=LINE,
        named_end=f"{glm.GLM.open}NAME",
        arguments=_glm_parameters(glm.GLM, inner),
    )


def _hy(_template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = lone(lone_id, *glm.HY, glm.HY_SECTION, glm.HY_END_SECTION)
    if tags is None:
        return None
    opening, closing, *inner, behind_name, section, end_section = tags
    return CallSyntax(
        f"{section} {LINE} {opening}",
        lambda name: f"{quoted(name)} {behind_name}",
        f"{closing} ({LINE} {opening} named {closing})* {LINE} {end_section}",
        "",
        gap=LINE,
        rest=LINE,
        named_end=f"NAME{glm.HY.behind_name}",
        arguments=_glm_parameters(glm.HY, inner),
    )


def _glm_parameters(known: glm.GlmTags, tags: Sequence[str]) -> Parameters:
    key, end_key, value, end_value = tags
    never = literally(known.end_value)
    between = f"{end_key} {LINE} {value}"
    return Parameters(TokenTags(key, between, f"{end_value} {LINE}", never))


def _kimi_3(_template: str, lone_id: LoneId) -> CallSyntax | None:
    """Thoughts, text and calls are parts of one message. The prompt has opened the first of these,
    and each is there, if only with nothing in it.
    """
    tags = lone(lone_id, kimi3.OPEN, kimi3.CLOSE, kimi3.SEP)
    if tags is None:
        return None
    opening, closing, sep = tags

    def head(name: str) -> str:
        before = quoted(f' tool="{kimi3.escaped(name)}" index="')
        return f"{before} /[1-9][0-9]*/ {quoted(chr(34))} {sep}"

    end_call = f'{closing} "call" {sep}'
    end_text, over = f'{closing} "response" {sep}', f'({closing} "message" {sep})?'
    never = literally(kimi3.END_ARGUMENT)
    return CallSyntax(
        f'{opening} "tools" {sep} {opening} "call"',
        head,
        f'{end_call} ({opening} "call" named {end_call})* {closing} "tools" {sep} {over}',
        "",
        named_end=kimi3.SEP,
        channels=Channels(
            f'{closing} "think" {sep} {opening} "response" {sep}',
            "",
            "",
            to_call=f"TEXT {end_text}",
            at_once=end_text,
            over=f"{end_text} {over}",
        ),
        arguments=Parameters(TypedTags(opening, closing, sep, never)),
    )


def _minicpm(_template: str, lone_id: LoneId) -> CallSyntax | None:
    """`<function` and the closing tags are tokens of its vocabulary."""
    tags = lone(lone_id, minicpm.FUNCTION_TAG)
    if tags is None:
        return None
    behind = minicpm.FUNCTION.removeprefix(minicpm.FUNCTION_TAG)
    parameter = minicpm.PARAMETER.removeprefix(minicpm.PARAMETER_TAG)
    return CallSyntax(
        f"{tags[0]} {quoted(behind)}",
        quoted,
        tag(lone_id, minicpm.END_FUNCTION),
        f"({LINE} call)*",
        gap=quoted('">'),
        rest=quoted('">'),
        named_end=f"{minicpm.FUNCTION}NAME",
        arguments=Parameters(
            QuotedTags(
                f"{tag(lone_id, minicpm.PARAMETER_TAG)} {quoted(parameter)}",
                '">',
                tag(lone_id, minicpm.QUOTED),
                minicpm.END_QUOTED,
                tag(lone_id, minicpm.END_PARAMETER),
                minicpm.END_PARAMETER,
            )
        ),
    )


def _gemma(tags: gemma.GemmaTags) -> Make:
    """The names of parameters come in alphabetical order: so templates write them."""

    def make(_template: str, lone_id: LoneId) -> CallSyntax | None:
        found = lone(lone_id, *tags)
        if found is None:
            return None
        opening, closing, escape = found
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


def _python_quotes(mark: str) -> Quotes:
    escapes = (("\\", "\\\\"), (mark, f"\\{mark}"), ("\n", "\\n"))
    plain = f"[^{mark}\\\\]"
    return Quotes(
        quoted(mark), quoted(mark), f"({plain}|\\\\[\"'\\\\nrtbf])", plain, escapes=escapes
    )


_PYTHON_QUOTES: Final = (_python_quotes("'"), _python_quotes('"'))


def _lfm2(_template: str, lone_id: LoneId) -> CallSyntax | None:
    """Values are literals of Python or of JSON: models write both."""
    tags = lone(lone_id, pythonic.OPEN, pythonic.CLOSE)
    if tags is None:
        return None
    comma = f'"," {SPACE}'
    return CallSyntax(
        tags[0],
        quoted,
        f'({comma} again)* "]" {tags[1]}',
        "",
        lead='"["',
        named_end=f"{pythonic.OPEN}[NAME",
        arguments=Notation(
            ObjectNotation('"("', '")"', '"="', _PYTHON_NAME),
            ObjectNotation('"{"', '"}"', f'":" {SPACE}', quotes=_PYTHON_QUOTES),
            _PYTHON_QUOTES,
            (("None", "null"), ("True", "true"), ("False", "false")),
            comma,
        ),
    )


VALUE_SYNTAXES: Final[Mapping[str, Make]] = {
    "qwen3_coder": _qwen_coder,
    "glm": _glm,
    "hy3": _hy,
    "kimi_k3": _kimi_3,
    "minicpm5": _minicpm,
    "function_gemma": _gemma(gemma.V3),
    "gemma4": _gemma(gemma.V4),
    "lfm2": _lfm2,
}
