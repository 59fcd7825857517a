"""A grammar with schemas that cannot be enforced -> a relaxed grammar that can.

Owns which schemas may be relaxed: those with the option `lenient`, whose client can do without.
Must not know the library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from protocol.messages import Grammar
from workers.engine.grammar.sequence_grammar import GrammarBroken

_RULE: Final = re.compile(r"^(\w+): %json (\{.*\})$", re.MULTILINE)
"""A rule of a Lark grammar that is one JSON schema, on one line."""

_OPTIONS: Final = "x-guidance"


class RelaxedGrammar(NamedTuple):
    """The `grammar`, and the relaxed rules with the reasons; "" is a whole grammar."""

    grammar: Grammar
    rules: tuple[tuple[str, str], ...]


def without_broken(grammar: Grammar, fault: Callable[[Grammar], str]) -> RelaxedGrammar | None:
    """The grammar with any object instead of each lenient schema for which `fault` gives a reason;
    None if no schema is at fault. Raises `GrammarBroken`, which names the rule of a strict one.
    """
    if grammar.kind == "json_schema":
        reason = fault(grammar)
        any_value = _relaxed(grammar.text)
        if not reason or any_value is None:
            return None
        return RelaxedGrammar(Grammar("json_schema", any_value), (("", reason),))
    relaxed: list[tuple[str, str]] = []

    def checked(found: re.Match[str]) -> str:
        rule, schema = found.groups()
        reason = fault(Grammar("json_schema", schema))
        if not reason:
            return found[0]
        any_value = _relaxed(schema)
        if any_value is None:
            raise GrammarBroken(f"{rule}: {reason}")
        relaxed.append((rule, reason))
        return f"{rule}: %json {any_value}"

    text = _RULE.sub(checked, grammar.text)
    return RelaxedGrammar(Grammar(grammar.kind, text), tuple(relaxed)) if relaxed else None


def _relaxed(text: str) -> str | None:
    """The schema of any object (of any value, if the given one is no object's); None if the given
    one is strict.
    """
    schema: dict[str, Any] = json.loads(text)
    options = schema.get(_OPTIONS)
    if not isinstance(options, dict) or options.get("lenient") is not True:
        return None
    is_object = schema.get("type", "object") == "object"
    return json.dumps({"type": "object", _OPTIONS: options} if is_object else {_OPTIONS: options})
