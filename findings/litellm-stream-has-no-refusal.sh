#!/usr/bin/env bash
# litellm 1.110.2 (PyPI), `completion(stream=True)` at an OpenAI-compatible server.
#
# Expected: a refusal comes through, as `delta.refusal` (OpenAI's API reference, chat completion chunk):
# the whole answer of the same server has it.
# Seen: a stream keeps the first delta, which has the role too, and drops all others without content. The
# refusal is its first token, with `finish_reason` "stop". As Anthropic's Messages the same stream of
# litellm has the whole text.
#
# Output seen on 2026-11-29:
#   whole: content None, refusal 'I cannot'
#   stream: content '', refusal 'I ', stop
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check litellm==1.110.2
LITELLM_LOCAL_MODEL_COST_MAP=True "$work/venv/bin/python" -W ignore - <<'PY' | tee "$work/out"
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Refuses(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        streamed = body.get("stream")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if streamed else "application/json")
        self.end_headers()
        answer = {"id": "c", "created": 1, "model": "m"}
        if streamed:
            answer["object"] = "chat.completion.chunk"
            for delta, reason in [({"role": "assistant", "refusal": "I "}, None), ({"refusal": "cannot"}, None),
                                  ({}, "stop")]:
                chunk = {**answer, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            message = {"role": "assistant", "content": None, "refusal": "I cannot"}
            whole = {**answer, "object": "chat.completion",
                     "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            self.wfile.write(json.dumps(whole).encode())
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
threading.Thread(target=server.serve_forever, daemon=True).start()

import litellm

litellm.suppress_debug_info = True
asked = {"model": "openai/m", "api_base": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "k",
         "messages": [{"role": "user", "content": "hi"}], "num_retries": 0}
message = litellm.completion(**asked).choices[0].message
refusal = message.to_dict().get("refusal") or (message.provider_specific_fields or {}).get("refusal")
print(f"whole: content {message.content!r}, refusal {refusal!r}")
content = refusal = ""
for chunk in litellm.completion(**asked, stream=True):
    delta = chunk.choices[0].delta
    content += delta.content or ""
    fields = getattr(delta, "provider_specific_fields", None) or {}
    refusal += delta.to_dict().get("refusal") or fields.get("refusal") or ""
    reason = chunk.choices[0].finish_reason
print(f"stream: content {content!r}, refusal {refusal!r}, {reason}")
PY
diff "$work/out" - <<'OUT'
whole: content None, refusal 'I cannot'
stream: content '', refusal 'I ', stop
OUT
