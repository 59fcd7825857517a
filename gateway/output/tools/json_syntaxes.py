"""The syntax of calls whose arguments are JSON, by format. Must not know schemas or requests."""

import json
from collections.abc import Mapping
from typing import Final

from gateway.output.tools import (
    apertus,
    deepseek,
    harmony,
    hermes,
    kimi,
    minimax,
    mistral,
    phi,
    solar,
)
from gateway.output.tools.syntax_parts import (
    NAME_KEY,
    SPACE,
    CallSyntax,
    Channels,
    LoneId,
    Make,
    lone,
    tag,
)
from gateway.output.tools.value_tags import quoted


def _of_objects(
    begin: str,
    end: str,
    again: str = "",
    *,
    key: str = "arguments",
    is_bare: bool = False,
) -> CallSyntax:
    """Calls that are objects with a name and, below `key`, arguments. `begin` stands before the
    object, `end` behind it, and `again` says how another call follows.
    """
    return CallSyntax(
        f"{begin} {NAME_KEY}",
        lambda name: quoted(f'{json.dumps(name, ensure_ascii=False)}, "{key}":'),
        f'"}}" {end}',
        again,
        lead=SPACE,
        gap=SPACE,
        rest=SPACE,
        named_end=f'"{key}":',
        is_bare=is_bare,
    )


def _hermes(_template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = lone(lone_id, hermes.OPEN, hermes.CLOSE)
    if tags is None:
        return None
    return _of_objects(f'{tags[0]} "\\n"?', f'"\\n"? {tags[1]}', '("\\n"? call)*')


def _list(opening: str, closing: str) -> Make:
    """Objects with a name and arguments in one array, whose last tag some models leave out."""

    def make(_template: str, lone_id: LoneId) -> CallSyntax | None:
        tags = lone(lone_id, opening)
        if tags is None:
            return None
        return _of_objects(f'{tags[0]} "["', f'{_ITEMS} "]" ({tag(lone_id, closing)})?')

    return make


_ITEMS: Final = f'("," {SPACE} {NAME_KEY} named "}}")*'
"""The further calls of an array."""


def _apertus(_template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = lone(lone_id, apertus.OPEN)
    if tags is None:
        return None
    key = quoted('{"')
    return CallSyntax(
        f'{tags[0]} "[" {key}',
        lambda name: quoted(f'{json.dumps(name, ensure_ascii=False)[1:-1]}":'),
        f'"}}" ("," {SPACE} {key} named "}}")* "]" ({tag(lone_id, apertus.CLOSE)})?',
        "",
        gap=SPACE,
        rest=SPACE,
        named_end='":',
    )


def _minimax_1(_template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = lone(lone_id, minimax.OPEN_1)
    if tags is None:
        return None
    more = f'("\\n" {NAME_KEY} named "}}")* "\\n"'
    return _of_objects(f'{tags[0]} "\\n"', f"{more} {tag(lone_id, minimax.CLOSE_1)}")


def _llama(_template: str, _lone_id: LoneId) -> CallSyntax:
    return _of_objects("", "", f'(";" {SPACE} call)*', key="parameters", is_bare=True)


def _mistral(template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = lone(lone_id, mistral.MARKER)
    if tags is None:
        return None
    if mistral.ARGS not in template:
        return _of_objects(f'{tags[0]} {SPACE} "["', f'{_ITEMS} "]"')
    args = tag(lone_id, mistral.ARGS)
    return CallSyntax(
        tags[0], quoted, '""', "call*", gap=args, rest=args, named_end=f"{mistral.MARKER}NAME"
    )


def _kimi(_template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = lone(lone_id, kimi.SECTION, kimi.CALL, kimi.ARGUMENTS, kimi.END_CALL, kimi.END_SECTION)
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
    tags = lone(
        lone_id, harmony.START, harmony.CHANNEL, harmony.MESSAGE, harmony.END, harmony.CONSTRAIN
    )
    if tags is None:
        return None
    start, channel, message, end, constrain = tags
    between = f'{start} "assistant"'
    last = f"{end} {between}"
    thought = f'{channel} "analysis" {message} TEXT {last}'
    recipient = quoted(f"commentary to={harmony.PREFIX[:-1]}")

    def head(name: str) -> str:
        written = quoted(f".{name} ")
        return f'{written} {constrain} "json" {message}'

    return CallSyntax(
        f"{channel} {recipient}",
        head,
        f"({tag(lone_id, harmony.CALL)})?",
        f"({between} call)*",
        named_end=harmony.MESSAGE,
        channels=Channels(
            last,
            f"({thought})*",
            f'({thought} | {channel} "commentary" {message} TEXT {last})*',
            final=f'{channel} "final" {message}',
        ),
    )


def _deepseek(template: str, lone_id: LoneId) -> CallSyntax | None:
    """V3.1's, and that of V3 and R1, which put the arguments in a fence."""
    tags = deepseek.V3
    found = lone(lone_id, tags.section, tags.call, tags.sep, tags.end_call, tags.end_section)
    if found is None:
        return None
    section, call, sep, end_call, end_section = found
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


def _solar(_template: str, lone_id: LoneId) -> CallSyntax | None:
    """Thoughts, text and calls are messages of their own."""
    tags = lone(
        lone_id,
        solar.CALLS,
        solar.CALL,
        solar.NAME,
        solar.ARGUMENTS,
        solar.END_CALL,
        solar.BEGIN,
        solar.THINK,
        solar.CONTENT,
        solar.END,
    )
    if tags is None:
        return None
    calls, call, name_tag, arguments, end_call, begin, think, text, end = tags
    last = f'{end} {begin} "assistant"'
    thought = f"{think} TEXT {last}"
    return CallSyntax(
        f"{calls} {call}",
        lambda name: f"/[A-Za-z0-9_-]{{1,64}}/ {name_tag} {quoted(name)} {arguments}",
        f"{end_call} ({call} named {end_call})* ({tag(lone_id, solar.END_CALLS)})?",
        "",
        named_end=solar.ARGUMENTS,
        channels=Channels(
            last,
            f"({thought})*",
            f"({thought} | {text} TEXT {last})*",
            final=text,
            over=f"({end})?",
        ),
    )


def _gigachat(_template: str, lone_id: LoneId) -> CallSyntax | None:
    """One call, which ends the answer."""
    tags = lone(lone_id, phi.GIGACHAT_OPEN)
    if tags is None:
        return None
    return _of_objects(tags[0], f"({tag(lone_id, phi.GIGACHAT_CLOSE)})?")


JSON_SYNTAXES: Final[Mapping[str, Make]] = {
    "hermes": _hermes,
    "llama3_json": _llama,
    "mistral": _mistral,
    "deepseek_v3": _deepseek,
    "kimi_k2": _kimi,
    "solar_open": _solar,
    "gigachat": _gigachat,
    "phi4_mini": _list(phi.OPEN, phi.CLOSE),
    "nemotron": _list(phi.NEMOTRON_OPEN, phi.NEMOTRON_CLOSE),
    "harmony": _harmony,
    "minimax_m1": _minimax_1,
    "apertus": _apertus,
}
