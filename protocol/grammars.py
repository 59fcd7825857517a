"""The forms of grammars, and the capabilities by which an engine reports those that it enforces.

Owns the forms and their names as capabilities. Must not know engines or requests.
"""

import json
import re
from collections.abc import Iterable
from typing import Final, Literal, get_args

from protocol.messages import ENFORCES_GRAMMARS, GrammarKind

GrammarForm = Literal["choice", "ebnf", "json_schema", "lark", "regex"]
"""`choice` is a Lark grammar of a few texts, `ebnf` one in the notation of `root ::= ...`."""

ALL_FORMS: Final = frozenset[GrammarForm](get_args(GrammarForm))

_CHOICE: Final = re.compile(r"start: (\".*\")\s*")
_RULE: Final = re.compile(r"^[^\S\n]*+[\w-]++\s*+::=", re.MULTILINE)


def form_of(kind: GrammarKind, text: str) -> GrammarForm:
    """The form of a grammar."""
    if kind != "lark":
        return kind
    if choices_of(text):
        return "choice"
    return "ebnf" if _RULE.search(text) else "lark"


def choices_of(text: str) -> list[str]:
    """The texts of a Lark grammar that allows just these; empty for any other."""
    if (match := _CHOICE.fullmatch(text)) is None:
        return []
    decoder, rest, found = json.JSONDecoder(), match[1], list[str]()
    while rest:
        try:
            one, end = decoder.raw_decode(rest)
        except ValueError:
            return []
        found.append(one)
        rest = rest[end:]
        if rest:
            if not rest.startswith(" | ") or rest == " | ":
                return []
            rest = rest[3:]
    return found if all(isinstance(one, str) for one in found) else []


def capabilities_of(forms: Iterable[GrammarForm]) -> tuple[str, ...]:
    """The capabilities of an engine that enforces these forms."""
    return tuple(f"{ENFORCES_GRAMMARS}:{form}" for form in sorted(forms))


def forms_of(capabilities: Iterable[str]) -> frozenset[GrammarForm]:
    """The forms that an engine with these capabilities enforces."""
    reported = frozenset(capabilities)
    if ENFORCES_GRAMMARS in reported:
        return ALL_FORMS
    return frozenset(form for form in ALL_FORMS if f"{ENFORCES_GRAMMARS}:{form}" in reported)
