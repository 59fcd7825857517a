#!/usr/bin/env bash
# lm-format-enforcer 0.11.3 (PyPI), `JsonSchemaParser`, one of the grammars of vLLM, beside llguidance 1.9.1 and
# jsonschema 4.26.0.
#
# Expected: what the grammar lets through is JSON, and a value of an `enum` or `const` is exactly one that stands there
# (JSON Schema Draft 2020-12, Validation 6.1.2 and 6.1.3): a quote, a backslash or a line break in it is escaped (RFC
# 8259, section 7).
# Seen: the text of the constant is put between the quotes as it is. Of one with a quote in it the grammar demands the
# part in front: a value that is not in the enum. One with a line break becomes broken JSON, and the escaped form, which
# is right, is forbidden. Nothing is refused or logged.
#
# Output seen on 2026-11-30:
#   'plain': llguidance allows it, lm-format-enforcer allows it, writes '{"a":"plain"}': valid True
#   'say "hi"': llguidance allows it, lm-format-enforcer forbids it, writes '{"a":"say "}': valid False
#   'one\ntwo': llguidance allows it, lm-format-enforcer forbids it, writes '{"a":"one\ntwo"}': valid False
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check \
  lm-format-enforcer==0.11.3 llguidance==1.9.1 jsonschema==4.26.0
"$work/venv/bin/python" - 2>/dev/null <<'PY' | tee "$work/out"
import json
import jsonschema
from llguidance import LLMatcher, LLTokenizer
from lmformatenforcer import JsonSchemaParser

BYTES = LLTokenizer("byte")

def by_llguidance(schema, text):
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    ids = BYTES.tokenize_bytes(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

def by_enforcer(schema, text):
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()

def forced(schema, text):
    """`text` and what must follow it, without white space between the parts."""
    parser = JsonSchemaParser(schema)
    for character in text:
        parser = parser.add_character(character)
    while not parser.can_end():
        allowed = dict.fromkeys(parser.get_allowed_characters())
        (character,) = [one for one in allowed if len(allowed) == 1 or not one.isspace()]
        text, parser = text + character, parser.add_character(character)
    return text

def is_valid(schema, text):
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True

for constant in ("plain", 'say "hi"', "one\ntwo"):
    schema = {"type": "object", "properties": {"a": {"enum": [constant]}}, "required": ["a"], "additionalProperties": False}
    right = json.dumps({"a": constant}, separators=(",", ":"))
    allows = [("forbids", "allows")[judge(schema, right)] for judge in (by_llguidance, by_enforcer)]
    written = forced(schema, '{"a":"')
    print(f"{constant!r}: llguidance {allows[0]} it, lm-format-enforcer {allows[1]} it, writes {written!r}: "
          f"valid {is_valid(schema, written)}")
PY
diff "$work/out" - <<'OUT'
'plain': llguidance allows it, lm-format-enforcer allows it, writes '{"a":"plain"}': valid True
'say "hi"': llguidance allows it, lm-format-enforcer forbids it, writes '{"a":"say "}': valid False
'one\ntwo': llguidance allows it, lm-format-enforcer forbids it, writes '{"a":"one\ntwo"}': valid False
OUT
