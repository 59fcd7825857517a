#!/usr/bin/env bash
# mistral-common 1.13.1 (PyPI): its encoder beside the chat template that it makes for the same tokenizer.
#
# Expected: the same prompt. `integrations.chat_templates` makes "a matching chat template" of a tokenizer
# file, and transformers 5.24 gives it to every tekken checkpoint without a template of its own.
# Seen: they differ wherever a result or an argument is JSON, which most are. The encoder parses a tool's
# result and writes the value; the template writes it as a string with escapes. The encoder writes arguments
# anew, the template as the model wrote them; and the encoder cuts spaces at the end of an answer. A server
# that renders by mistral-common and one that renders by the template share no prefix behind the first call.
#
# Output seen on 2026-11-29:
#   result {"n":1}: encoder "content": {"n": 1}, template "content": "{\"n\":1}"
#   result [1,2]: encoder "content": [1, 2], template "content": "[1,2]"
#   arguments {"x":1e2}: encoder "arguments": {"x": 100.0}, template "arguments": {"x":1e2}
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check mistral-common==1.13.1 jinja2==3.1.6
"$work/venv/bin/python" -W ignore - <<'PY' | tee "$work/out"
import json, re
from pathlib import Path

import mistral_common
from jinja2.sandbox import ImmutableSandboxedEnvironment
from mistral_common.integrations.chat_templates import chat_templates
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

file = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
encoder = MistralTokenizer.from_file(file)
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
environment.globals["raise_exception"] = lambda message: (_ for _ in ()).throw(ValueError(message))
template = environment.from_string(chat_templates.convert_tokenizer_to_chat_template(str(file)))
tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]

def both(arguments, result):
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": result}]
    request = ChatCompletionRequest.from_openai(messages=messages, tools=tools, model="m")
    yield "encoder", encoder.encode_chat_completion(request).text
    yield "template", template.render(messages=messages, tools=tools, bos_token="<s>", eos_token="</s>")

def shown(pattern, arguments, result):
    return ", ".join(f"{who} {re.search(pattern, text)[0]}" for who, text in both(arguments, result))

for result in ('{"n":1}', "[1,2]"):
    print(f"result {result}:", shown(r'"content": .*(?=, "call_id")', "{}", result))
print('arguments {"x":1e2}:', shown(r'"arguments": [^}]*}', '{"x":1e2}', "done"))
PY
diff "$work/out" - <<'OUT'
result {"n":1}: encoder "content": {"n": 1}, template "content": "{\"n\":1}"
result [1,2]: encoder "content": [1, 2], template "content": "[1,2]"
arguments {"x":1e2}: encoder "arguments": {"x": 100.0}, template "arguments": {"x":1e2}
OUT
