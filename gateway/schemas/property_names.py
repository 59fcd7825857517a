"""What a `propertyNames` says of a name.

Owns the rules that a grammar can follow: lists of names, lengths and patterns. The rules are parts
of schemas of `enforceable`; must not know other drafts' words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gateway.schemas.json_types import named_types

Json = dict[str, Any]


def rule_of_names(mended: Json | bool) -> Json | None:
    """The rule without types, since each name is a text; None where no name is allowed."""
    if isinstance(mended, bool):
        return {} if mended else None
    if "string" not in named_types(mended.get("type", "string")):
        return None
    return {key: value for key, value in mended.items() if key != "type"}


def name_test(rule: Json | None) -> Callable[[str], bool] | None:
    """Whether a name is one that the rule allows; None where that is not known."""
    if rule is None:
        return lambda _: False
    if rule.keys() <= {"enum", "const"}:
        return names_in(rule).__contains__
    if rule.keys() <= {"minLength", "maxLength"}:
        least, most = rule.get("minLength", 0), rule.get("maxLength", math.inf)
        return lambda name: least <= len(name) <= most
    return None


def names_in(rule: Json) -> list[str]:
    """The names of a list."""
    only = rule.get("const")
    values = rule.get("enum", [only])
    return [name for name in values if isinstance(name, str) and only in (None, name)]


def pattern_of_names(rule: Json) -> str:
    """The pattern of the whole name."""
    if "pattern" in rule:
        pattern: str = rule["pattern"]
        return pattern
    return f"^[\\s\\S]{{{rule.get('minLength', 0)},{rule.get('maxLength', '')}}}$"
