#!/usr/bin/env bash
# llguidance 1.9.1 (PyPI), JSON schemas, beside jsonschema 4.26.0.
#
# Expected: `const` and `enum` allow exactly their values. Integers of JSON Schema are not bounded (Draft
# 2020-12, Core 4.2.3: numbers are of arbitrary precision), and ids of 64 bits are common in tools' enums.
# Seen: an integer above 2^53 goes through a double. The grammar forces the neighbour that a double can hold
# and forbids the value itself, so the id that the model writes is one that does not exist. Fractions of
# more than 15 digits may change too. Nothing is refused or logged.
#
# Output seen on 2026-11-29:
#   const 9007199254740993: the value is forbidden, 9007199254740992 is allowed
#   enum [1850000000000000123]: the value is forbidden, 1850000000000000000 is allowed
#   const 123456789.12345679: the value is forbidden, 123456789.1234568 is allowed
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check llguidance==1.9.1 jsonschema==4.26.0
"$work/venv/bin/python" - <<'PY' | tee "$work/out"
import json
import jsonschema
from llguidance import LLMatcher, LLTokenizer

def says(schema, value):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    assert not LLMatcher.validate_grammar(grammar)
    matcher, tokens = LLMatcher(LLTokenizer("byte"), grammar), list(str(value).encode())
    return "allowed" if matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting() else "forbidden"

for schema, value, other in (
    ({"const": 9007199254740993}, 9007199254740993, 9007199254740992),
    ({"enum": [1850000000000000123]}, 1850000000000000123, 1850000000000000000),
    ({"const": 123456789.12345679}, 123456789.12345679, 123456789.1234568),
):
    assert jsonschema.Draft202012Validator(schema).is_valid(value)
    assert not jsonschema.Draft202012Validator(schema).is_valid(other)
    [(keyword, named)] = schema.items()
    print(f"{keyword} {named}: the value is {says(schema, value)}, {other} is {says(schema, other)}")
PY
diff "$work/out" - <<'OUT'
const 9007199254740993: the value is forbidden, 9007199254740992 is allowed
enum [1850000000000000123]: the value is forbidden, 1850000000000000000 is allowed
const 123456789.12345679: the value is forbidden, 123456789.1234568 is allowed
OUT
