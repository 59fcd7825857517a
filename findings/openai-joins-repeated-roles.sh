#!/usr/bin/env bash
# openai 3.57.0 (PyPI) beside openai 7.59.0 (npm), `chat.completions.stream()`.
#
# Expected: a delta's `role` is the author of the message (OpenAI's API reference, chat completion chunk),
# so a server that says it in each chunk says the same thing again.
# Seen: the Python package joins it like text. The final message has the role `assistantassistantassistant`,
# and sent back as history it is refused. The npm package has `assistant`. LiteLLM met it on its own side
# in 2025 (BerriAI/litellm, pull request 9986).
#
# Output seen on 2026-11-29:
#   python: 'assistantassistantassistant' says 'hello'
#   node: 'assistant' says 'hello'
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0
npm install --silent --no-audit --no-fund --prefix "$work" openai@7.59.0
cat > "$work/client.mjs" <<'JS'
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "k", maxRetries: 0 });
const stream = client.chat.completions.stream({ model: "m", messages: [{ role: "user", content: "hi" }] });
const message = await stream.finalMessage();
console.log(`node: '${message.role}' says '${message.content}'`);
JS
"$work/venv/bin/python" - "$work" <<'PY' | tee "$work/out"
import json, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Repeats(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for content, reason in [("hel", None), ("lo", None), ("", "stop")]:
            delta = {"role": "assistant", "content": content}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                     "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Repeats)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"

import openai

client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "hi"}]) as stream:
    message = stream.get_final_completion().choices[0].message
print(f"python: {message.role!r} says {message.content!r}", flush=True)
subprocess.run(["node", f"{sys.argv[1]}/client.mjs", url], check=True)
PY
diff "$work/out" - <<'OUT'
python: 'assistantassistantassistant' says 'hello'
node: 'assistant' says 'hello'
OUT
