#!/usr/bin/env bash
# outlines-core 0.2.14 (PyPI), `build_regex_from_schema`: the grammar behind Outlines and one of vLLM's.
#
# Expected: a schema that has valid strings gives a regular expression that matches at least one of them.
# `pattern` is not anchored (JSON Schema Draft 2020-12, Validation 6.3.3), so schemas often anchor one end,
# as `^sk-` for a prefix.
# Seen: the pattern is put between the quotes as it is unless both anchors are there. A single `^` or `$`
# then stands inside the expression, where it can never match: no string at all is allowed, and nothing is
# said. llguidance and jsonschema take the schema as it is meant. Another case of the same place, a pattern
# with `|`, is dottxt-ai/outlines-core, issue 267.
#
# Output seen on 2026-11-29:
#   ^sk-: "sk-", "sk-1" are valid; llguidance allows both, outlines-core none by ("^sk-")
#   [.]py$: ".py", "a.py" are valid; llguidance allows both, outlines-core none by ("[.]py$")
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
  outlines-core==0.2.14 llguidance==1.9.1 jsonschema==4.26.0
"$work/venv/bin/python" - <<'PY' | tee "$work/out"
import json, re
import jsonschema
from llguidance import LLMatcher, LLTokenizer
from outlines_core.json_schema import build_regex_from_schema

def allowed(schema, text):
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(schema))
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

for pattern, values in (("^sk-", ["sk-", "sk-1"]), ("[.]py$", [".py", "a.py"])):
    schema = {"type": "string", "pattern": pattern}
    texts = [json.dumps(value) for value in values]
    for value in values:
        jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)
    regex = build_regex_from_schema(json.dumps(schema))
    peer = [allowed(json.dumps(schema), text) for text in texts]
    ours = [bool(re.fullmatch(regex, text)) for text in texts]
    say = lambda which: "both" if all(which) else "some" if any(which) else "none"
    print(f"{pattern}: {', '.join(texts)} are valid; llguidance allows {say(peer)}, "
          f"outlines-core {say(ours)} by {regex}")
PY
diff "$work/out" - <<'OUT'
^sk-: "sk-", "sk-1" are valid; llguidance allows both, outlines-core none by ("^sk-")
[.]py$: ".py", "a.py" are valid; llguidance allows both, outlines-core none by ("[.]py$")
OUT
