#!/usr/bin/env bash
# anthropic 2.14.0 (PyPI) beside openai 3.57.0 (PyPI).
#
# Expected: a client bounds the time that a server may ask it to wait by `Retry-After`, as openai's does:
# it gives up at once where that is a day.
# Seen: anthropic for Python sleeps a whole day inside `messages.create` when a 429 says so, without a
# log line at the default level. A gateway that names the end of a spending day there stops its client in
# silence; Herma names at most 60 s and says the rest in the text.
#
# The clients' own `time.sleep` is recorded instead of slept. Output seen on 2026-11-28:
#   anthropic 2.14.0 would sleep: [86400.0]
#   openai 3.57.0 would sleep: []
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check anthropic==2.14.0 openai==3.57.0
"$work/venv/bin/python" - <<'PY' | tee "$work/out"
import json, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Busy(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"error": {"type": "rate_limit_error", "message": "busy"}}).encode()
        self.send_response(429)
        self.send_header("retry-after", "86400")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
slept = []
time.sleep = slept.append

import anthropic, openai

messages = [{"role": "user", "content": "hi"}]
try:
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=1)
    client.messages.create(model="m", max_tokens=5, messages=messages)
except anthropic.RateLimitError:
    pass
print(f"anthropic {anthropic.__version__} would sleep: {[s for s in slept if s > 100]}")
slept.clear()
try:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=1)
    client.chat.completions.create(model="m", messages=messages)
except openai.RateLimitError:
    pass
print(f"openai {openai.__version__} would sleep: {[s for s in slept if s > 100]}")
PY
diff "$work/out" - <<'OUT'
anthropic 2.14.0 would sleep: [86400.0]
openai 3.57.0 would sleep: []
OUT
