#!/usr/bin/env bash
# llguidance 1.9.1 (PyPI), JSON schemas.
#
# Expected: a keyword that rules nothing out changes nothing. `"uniqueItems": false` is the default of
# JSON Schema (Draft 2020-12, Validation 6.4.3), and zod 4.6.7 writes `maximum` 1.7976931348623157e308,
# the largest double, for a number without a bound. Both schemas are valid and common in tools of MCP
# servers.
# Seen: each is an error of the whole grammar, so a request with twenty tools fails for one of them.
# An engine that enforces tool arguments by llguidance has to leave such keywords out before.
#
# Output seen on 2026-11-28:
#   plain: taken
#   uniqueItems false: refused
#   bound of the largest double: refused
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check llguidance==1.9.1
"$work/venv/bin/python" - <<'PY' | tee "$work/out"
import json
from llguidance import LLMatcher

def said(schema):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    return "refused" if LLMatcher.validate_grammar(grammar) else "taken"

print("plain:", said({"type": "array", "items": {"type": "integer"}}))
print("uniqueItems false:", said({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}))
print("bound of the largest double:", said({"type": "number", "maximum": 1.7976931348623157e308}))
PY
diff "$work/out" - <<'OUT'
plain: taken
uniqueItems false: refused
bound of the largest double: refused
OUT
