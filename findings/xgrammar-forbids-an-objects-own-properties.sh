#!/usr/bin/env bash
# xgrammar 0.2.8 (PyPI), the grammars of vLLM and SGLang by default, beside llguidance 1.9.1 and jsonschema 4.26.0.
#
# Expected: what a schema demands beside `allOf`, `oneOf` or `$ref` holds together with it (JSON Schema Draft 2020-12,
# Core 10.2 and 8.2.3.1). So OpenAPI writes inheritance, and tools their alternatives.
# Seen: an object's own properties beside one of these are dropped without a word, required ones too. As objects are
# closed by default (`strict_mode`), the grammar then forbids every valid value, and demands one without the properties
# that the model was asked for: a call that must name a `path` cannot. A warning comes for the alternatives that may
# both hold, and for none of this. That a schema so allows too much is mlc-ai/xgrammar, issue 858.
#
# xgrammar's own start imports torch and transformers, which it does not need here; they are left out.
#
# Output seen on 2026-11-30, in any order of the properties:
#   allOf, valid: {"path": "a", "mode": "r"}: llguidance True, xgrammar False
#   allOf, invalid: {"mode": "r"}: llguidance False, xgrammar True
#   oneOf, valid: {"path": "a", "mode": "r"}: llguidance True, xgrammar False
#   oneOf, invalid: {"mode": "r"}: llguidance False, xgrammar True
#   $ref, valid: {"path": "a", "mode": "r"}: llguidance True, xgrammar False
#   $ref, invalid: {"mode": "r"}: llguidance False, xgrammar True
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check \
  apache-tvm-ffi==0.1.15.post2 pydantic==2.14.4 numpy==2.4.6 llguidance==1.9.1 jsonschema==4.26.0
"$work/venv/bin/pip" install -q --no-compile --no-deps --disable-pip-version-check xgrammar==0.2.8
"$work/venv/bin/python" - 2>"$work/log" <<'PY' | tee "$work/out"
import json, sys
from itertools import permutations
from unittest.mock import MagicMock

import jsonschema
import tvm_ffi  # which looks for a real torch
from llguidance import LLMatcher, LLTokenizer

for name in ("torch", "transformers"):
    sys.modules[name] = MagicMock()
import xgrammar
from xgrammar.testing import _is_grammar_accept_string

MODE = {"type": "object", "properties": {"mode": {"enum": ["r", "w"]}}, "required": ["mode"]}
WRITE = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
OWN = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "$defs": {"mode": MODE}}
SCHEMAS = {
    "allOf": {**OWN, "allOf": [{"$ref": "#/$defs/mode"}]},
    "oneOf": {**OWN, "oneOf": [MODE, WRITE]},
    "$ref": {**OWN, "$ref": "#/$defs/mode"},
}
GOOD, BAD = {"path": "a", "mode": "r"}, {"mode": "r"}

def orders(value):
    return [json.dumps(dict(items)) for items in permutations(value.items())]

def ours(schema, text):
    return _is_grammar_accept_string(xgrammar.Grammar.from_json_schema(json.dumps(schema)), text)

def peer(schema, text):
    schema = {"x-guidance": {"coerce_one_of": True}, **schema}
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

for name, schema in SCHEMAS.items():
    check = jsonschema.Draft202012Validator(schema)
    assert check.is_valid(GOOD) and not check.is_valid(BAD)
    for word, value in (("valid", GOOD), ("invalid", BAD)):
        allowed = [any(library(schema, text) for text in orders(value)) for library in (peer, ours)]
        print(f"{name}, {word}: {json.dumps(value)}: llguidance {allowed[0]}, xgrammar {allowed[1]}")
PY
diff "$work/out" - <<'OUT'
allOf, valid: {"path": "a", "mode": "r"}: llguidance True, xgrammar False
allOf, invalid: {"mode": "r"}: llguidance False, xgrammar True
oneOf, valid: {"path": "a", "mode": "r"}: llguidance True, xgrammar False
oneOf, invalid: {"mode": "r"}: llguidance False, xgrammar True
$ref, valid: {"path": "a", "mode": "r"}: llguidance True, xgrammar False
$ref, invalid: {"mode": "r"}: llguidance False, xgrammar True
OUT
