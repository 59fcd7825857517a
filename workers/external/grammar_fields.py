"""The request fields of external engines for a grammar.

Owns the field names (vLLM's `structured_outputs`, SGLang's sampling parameters, llama-server's
`json_schema` and `grammar`) and the forms that each engine takes. Must not know the rest of a
request.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from protocol.grammars import GrammarForm, choices_of, form_of
from protocol.messages import Grammar

VLLM_FORMS: Final = frozenset[GrammarForm](("choice", "ebnf", "json_schema", "regex"))
SGLANG_FORMS: Final = frozenset[GrammarForm](("choice", "ebnf", "json_schema", "regex"))
LLAMA_CPP_FORMS: Final = frozenset[GrammarForm](("choice", "ebnf", "json_schema"))

_OPTIONS: Final = "x-guidance"


def vllm_fields(grammar: Grammar) -> dict[str, Any]:
    """The fields of the body; since vLLM 0.11."""
    match form_of(grammar.kind, grammar.text):
        case "json_schema":
            inner: dict[str, Any] = {"json": _schema(grammar)}
        case "choice":
            inner = {"choice": choices_of(grammar.text)}
        case "regex":
            inner = {"regex": grammar.text}
        case _:
            inner = {"grammar": grammar.text}
    return {"structured_outputs": inner}


def sglang_fields(grammar: Grammar) -> dict[str, Any]:
    """The fields of `sampling_params`. SGLang has no field for a choice, which becomes a regular
    expression.
    """
    match form_of(grammar.kind, grammar.text):
        case "json_schema":
            return {"json_schema": json.dumps(_schema(grammar), ensure_ascii=False)}
        case "choice":
            return {"regex": f"({'|'.join(map(re.escape, choices_of(grammar.text)))})"}
        case "regex":
            return {"regex": grammar.text}
        case _:
            return {"ebnf": grammar.text}


def llama_cpp_fields(grammar: Grammar) -> dict[str, Any]:
    """The fields of the body. A choice becomes a grammar with one rule."""
    match form_of(grammar.kind, grammar.text):
        case "json_schema":
            return {"json_schema": _schema(grammar)}
        case "choice":
            return {"grammar": f"root ::= {' | '.join(map(json.dumps, choices_of(grammar.text)))}"}
        case _:
            return {"grammar": grammar.text}


def is_lenient(grammar: Grammar) -> bool:
    """Whether the client prefers an answer without the grammar to no answer."""
    if grammar.kind != "json_schema":
        return False
    options = msgspec.json.decode(grammar.text).get(_OPTIONS)
    return isinstance(options, dict) and options.get("lenient") is True


def _schema(grammar: Grammar) -> dict[str, Any]:
    """The schema without the options for llguidance."""
    schema: dict[str, Any] = msgspec.json.decode(grammar.text)
    return {key: value for key, value in schema.items() if key != _OPTIONS}
