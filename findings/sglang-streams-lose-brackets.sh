#!/usr/bin/env bash
# sglang 0.5.23 (PyPI), its parsers of calls `mistral` and `llama3`.
#
# Expected: an answer without a call reaches the client as the model wrote it, streamed as in one piece.
# Seen: in a stream of a request with tools `mistral` takes every `]` out of the text, and `llama3` everything from
# the first `{` on that begins no call. Agents send tools with each request, and such answers are mostly code. In
# one piece both are whole. The first one was reported with a change (sgl-project/sglang, pull request 32086, closed).
#
# Sglang's own start imports torch and is left out; the modules of the parsers are as they are, and called as the
# server calls them.
#
# Output seen on 2026-11-29:
#   hermes: whole True, streamed Sort it: `rows[0] = {"n": 1}`, then read `rows[1]`.
#   mistral: whole True, streamed Sort it: `rows[0 = {"n": 1}`, then read `rows[1`.
#   llama3: whole True, streamed Sort it: `rows[0] = 
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip="$work/venv/bin/pip"
"$pip" install -q --disable-pip-version-check openai==3.57.0 msgspec==0.23.0 orjson==3.13.0 pydantic==2.14.4 \
  partial-json-parser==0.2.1.1.post7 pybase64 IPython tqdm requests numpy==2.3.5
"$pip" download -q --disable-pip-version-check --no-deps --dest "$work" sglang==0.5.23
"$work/venv/bin/python" -m zipfile -e "$work"/sglang-*.whl "$work/sglang"
"$work/venv/bin/python" - "$work/sglang" <<'PY' | tee "$work/out"
import logging, re, sys, types

logging.disable(logging.CRITICAL)
for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai", "sglang.srt.function_call"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [f"{sys.argv[1]}/{name.replace('.', '/')}"]

from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.hermes_detector import HermesDetector
from sglang.srt.function_call.llama32_detector import Llama32Detector
from sglang.srt.function_call.mistral_detector import MistralDetector

TOOLS = [Tool(type="function", function=Function(name="look", parameters={"type": "object"}))]
ANSWER = 'Sort it: `rows[0] = {"n": 1}`, then read `rows[1]`.'

for name, kind in (("hermes", HermesDetector), ("mistral", MistralDetector), ("llama3", Llama32Detector)):
    whole, detector, streamed = kind(), kind(), ""
    text = whole.detect_and_parse(ANSWER, TOOLS).normal_text if whole.has_tool_call(ANSWER) else ANSWER
    for piece in re.findall(r"\w+|\s+|[^\w\s]", ANSWER):
        streamed += detector.parse_streaming_increment(piece, TOOLS).normal_text
    streamed += detector.finish(TOOLS).normal_text
    print(f"{name}: whole {text == ANSWER}, streamed {streamed}")
PY
diff "$work/out" - <<'OUT'
hermes: whole True, streamed Sort it: `rows[0] = {"n": 1}`, then read `rows[1]`.
mistral: whole True, streamed Sort it: `rows[0 = {"n": 1}`, then read `rows[1`.
llama3: whole True, streamed Sort it: `rows[0] = 
OUT
