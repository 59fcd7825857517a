#!/usr/bin/env bash
# opencode-ai 1.18.33 (npm).
#
# Expected: `opencode run` ends with status 0 when its turn ends well. A prompt that is larger than the
# window (400, `context_length_exceeded`) is met by a summary, and the turn goes on behind it.
# Seen: it makes the summary, goes on and prints the answer, then ends with status 1: the refusal that it
# has recovered from still counts as the run's error. A script that runs it takes the turn for failed.
#
# Output seen on 2026-11-29:
#   asked: turn 200, turn 400, summary 200, turn 200
#   answer: It is done.
#   status: 1
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" opencode-ai@1.18.33
python3 - "$work" <<'PY' | tee "$work/out"
import json, os, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WORDS = ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. "
         "Please reduce the length of the messages.")
CALL = {"index": 0, "id": "call_0", "type": "function",
        "function": {"name": "bash", "arguments": json.dumps({"command": "echo hi", "description": "Says hi"})}}
asked = []

class Small(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = json.dumps(body["messages"])
        if not body.get("tools"):
            title = "title generator" in text
            asked.append("title 200" if title else "summary 200")
            return self.answer({"content": "A title" if title else "SUMMARY: hi was said."}, "stop")
        if "SUMMARY: hi" in text:
            asked.append("turn 200")
            return self.answer({"content": "It is done."}, "stop")
        if '"role": "tool"' not in text:
            asked.append("turn 200")
            return self.answer({"content": None, "tool_calls": [CALL]}, "tool_calls")
        asked.append("turn 400")
        error = {"message": WORDS, "type": "invalid_request_error", "param": "messages",
                 "code": "context_length_exceeded"}
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"error": error}).encode())
    def answer(self, delta, reason):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, reason in (({"role": "assistant", **delta}, None), ({}, reason)):
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                     "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Small)
threading.Thread(target=server.serve_forever, daemon=True).start()
home = Path(sys.argv[1], "home")
home.mkdir()
(home / "opencode.json").write_text(json.dumps({"model": "own/m", "small_model": "own/m", "autoupdate": False, "provider": {
    "own": {"npm": "@ai-sdk/openai-compatible", "models": {"m": {"limit": {"context": 200000, "output": 20000}}},
            "options": {"apiKey": "k", "baseURL": f"http://127.0.0.1:{server.server_port}/v1"}}}}))
closed = "http://127.0.0.1:9"  # it knows no other address
env = {"PATH": os.environ["PATH"], "HOME": str(home), "OPENCODE_CONFIG": str(home / "opencode.json"),
       "OPENCODE_DISABLE_MODELS_FETCH": "1", "HTTP_PROXY": closed, "HTTPS_PROXY": closed, "NO_PROXY": "127.0.0.1"}
done = subprocess.run([f"{sys.argv[1]}/node_modules/.bin/opencode", "run", "Say hi"], cwd=home, env=env,
                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
print("asked:", ", ".join(one for one in asked if not one.startswith("title")))
print("answer:", done.stdout.strip().splitlines()[-1])
print("status:", done.returncode)
PY
diff "$work/out" - <<'OUT'
asked: turn 200, turn 400, summary 200, turn 200
answer: It is done.
status: 1
OUT
