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
    object_head,
    tag,
)
from gateway.output.tools.value_tags import quoted


def _hermes(_template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = lone(lone_id, hermes.OPEN, hermes.CLOSE)
    if tags is None:
        return None
    return CallSyntax(
        f'{tags[0]} "\\n"? {NAME_KEY}',
        object_head("arguments"),
        f'"}}" "\\n"? {tags[1]}',
        '("\\n"? call)*',
        lead=SPACE,
        gap=SPACE,
        rest=SPACE,
        named_end='"arguments":',
    )


def _list(opening: str, closing: str) -> Make:
    """Objects with a name and arguments in one array, whose last tag some models leave out."""

    def make(_template: str, lone_id: LoneId) -> CallSyntax | None:
        tags = lone(lone_id, opening)
        if tags is None:
            return None
        item = f'"," {SPACE} {NAME_KEY} named "}}"'
        return CallSyntax(
            f'{tags[0]} "[" {NAME_KEY}',
            object_head("arguments"),
            f'"}}" ({item})* "]" ({tag(lone_id, closing)})?',
            "",
            lead=SPACE,
            gap=SPACE,
            rest=SPACE,
            named_end='"arguments":',
        )

    return make


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
    return CallSyntax(
        f'{tags[0]} "\\n" {NAME_KEY}',
        object_head("arguments"),
        f'"}}" ("\\n" {NAME_KEY} named "}}")* "\\n" {tag(lone_id, minimax.CLOSE_1)}',
        "",
        lead=SPACE,
        gap=SPACE,
        rest=SPACE,
        named_end='"arguments":',
    )


def _llama(_template: str, _lone_id: LoneId) -> CallSyntax:
    return CallSyntax(
        NAME_KEY,
        object_head("parameters"),
        '"}"',
        f'(";" {SPACE} call)*',
        lead=SPACE,
        gap=SPACE,
        rest=SPACE,
        named_end='"parameters":',
        is_bare=True,
    )


def _mistral(template: str, lone_id: LoneId) -> CallSyntax | None:
    tags = lone(lone_id, mistral.MARKER)
    if tags is None:
        return None
    if mistral.ARGS not in template:
        item = f'"," {SPACE} {NAME_KEY} named "}}"'
        return CallSyntax(
            f'{tags[0]} {SPACE} "[" {NAME_KEY}',
            object_head("arguments"),
            f'"}}" ({item})* "]"',
            "",
            lead=SPACE,
            gap=SPACE,
            rest=SPACE,
            named_end='"arguments":',
        )
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
    return CallSyntax(
        f"{tags[0]} {NAME_KEY}",
        object_head("arguments"),
        f'"}}" ({tag(lone_id, phi.GIGACHAT_CLOSE)})?',
        "",
        lead=SPACE,
        gap=SPACE,
        rest=SPACE,
        named_end='"arguments":',
    )


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
