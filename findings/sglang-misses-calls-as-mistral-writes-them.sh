#!/usr/bin/env bash
# sglang 0.5.23 (PyPI), its parser of calls `mistral`, beside mistral-common 1.13.1 (PyPI), Mistral's own encoder.
#
# Expected: the parser finds the calls in what Mistral's models are trained to write, which is how mistral-common
# encodes an answer with calls, and it finds as many in a stream as in one piece.
# Seen: in a stream, whose tokens come one by one, the second of two calls is no call: it arrives as text. Of
# models with a Tekken vocabulary (Nemo, Ministral, Small) no call is found at all, and the text is gone too: their
# marker is followed by `[` without a space, and the parser looks for one. The client gets an empty answer.
#
# Sglang's own start imports torch and is left out; the modules of the parser are as they are.
#
# Output seen on 2026-11-29:
#   v3: '[TOOL_CALLS] [{"name": "'...
#     in one piece: calls ['{"city": "Athens"}', '{"city": "Berlin"}'], text ''
#     streamed: calls ['{"city": "Athens"}'], text ', {"name": "look", "arguments": {"city": "Berlin"}, "id": "call00001"}'
#   v3 Tekken: '[TOOL_CALLS][{"name": "l'...
#     in one piece: calls [], text ''
#     streamed: calls [], text ''
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip="$work/venv/bin/pip"
"$pip" install -q --disable-pip-version-check mistral-common==1.13.1 sentencepiece==0.2.3 openai==3.57.0 \
  msgspec==0.23.0 orjson==3.13.0 pydantic==2.14.4 partial-json-parser==0.2.1.1.post7 pybase64 IPython tqdm requests numpy==2.3.5
"$pip" download -q --disable-pip-version-check --no-deps --dest "$work" sglang==0.5.23
"$work/venv/bin/python" -m zipfile -e "$work"/sglang-*.whl "$work/sglang"
"$work/venv/bin/python" - "$work/sglang" <<'PY' | tee "$work/out"
import json, logging, sys, types

logging.disable(logging.CRITICAL)
for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai", "sglang.srt.function_call"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [f"{sys.argv[1]}/{name.replace('.', '/')}"]

from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.mistral_detector import MistralDetector

TOOLS = [Tool(type="function", function=Function(name="look", parameters={"type": "object"}))]

def written(tokenizer, cities):
    """The text of each token of an answer with a call for each city."""
    def encoded(*messages):
        request = ChatCompletionRequest(messages=[UserMessage(content="Hi"), *messages])
        return tokenizer.encode_chat_completion(request).tokens
    calls = [ToolCall(id=f"call{at:05}", function=FunctionCall(name="look", arguments=json.dumps({"city": city})))
             for at, city in enumerate(cities)]
    results = [ToolMessage(content="sun", tool_call_id=call.id, name="look") for call in calls]
    vocabulary = tokenizer.instruct_tokenizer.tokenizer
    ids = encoded(AssistantMessage(content=None, tool_calls=calls), *results)[len(encoded()):]
    ids = ids[:ids.index(vocabulary.eos_id)]
    texts = [vocabulary.decode(ids[:at], special_token_policy=SpecialTokenPolicy.KEEP).replace("▁", " ")
             for at in range(len(ids) + 1)]
    return [text[len(before):] for before, text in zip(texts, texts[1:])]

for name, tokenizer in (("v3", MistralTokenizer.v3()), ("v3 Tekken", MistralTokenizer.v3(is_tekken=True))):
    pieces = written(tokenizer, ("Athens", "Berlin"))
    print(f"{name}: {''.join(pieces)[:24]!r}...")
    whole = MistralDetector().detect_and_parse("".join(pieces), TOOLS)
    print(f"  in one piece: calls {[call.parameters for call in whole.calls]}, text {whole.normal_text!r}")
    detector, text, calls = MistralDetector(), "", {}
    for piece in pieces:
        found = detector.parse_streaming_increment(piece, TOOLS)
        text += found.normal_text
        for call in found.calls:
            calls[call.tool_index] = calls.get(call.tool_index, "") + (call.parameters or "")
    print(f"  streamed: calls {list(calls.values())}, text {text!r}")
PY
diff "$work/out" - <<'OUT'
v3: '[TOOL_CALLS] [{"name": "'...
  in one piece: calls ['{"city": "Athens"}', '{"city": "Berlin"}'], text ''
  streamed: calls ['{"city": "Athens"}'], text ', {"name": "look", "arguments": {"city": "Berlin"}, "id": "call00001"}'
v3 Tekken: '[TOOL_CALLS][{"name": "l'...
  in one piece: calls [], text ''
  streamed: calls [], text ''
OUT
