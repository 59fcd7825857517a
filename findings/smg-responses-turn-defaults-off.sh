#!/usr/bin/env bash
# smg 1.13.0 (PyPI), the router of SGLang and vLLM, with a server behind it.
#
# Expected: sampling that a client leaves to the engine stays with the engine. vLLM (0.33.0,
# `entrypoints/openai/responses/protocol.py`) and SGLang take what is absent from the model's generation_config.json,
# as a temperature of 0.6 and a `top_k` of 20 of Qwen3.
# Seen: so it is for chat completions. To a request of the Responses API the router adds a temperature of 1 and
# `top_k` -1, `min_p` 0 and `repetition_penalty` 1, which mean "off". They win over the model's own values, so codex
# samples from the whole vocabulary where the same model answers chats as its makers advise.
#
# Output seen on 2026-11-29:
#   /v1/chat/completions: added logprobs False
#   /v1/responses: added min_p 0.0, priority 0, repetition_penalty 1.0, store True, temperature 1.0, top_k -1
set -euo pipefail
work=$(mktemp -d); router=
trap 'kill $router 2>/dev/null; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check smg==1.13.0
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free); server=$(free)
cat > "$work/ask.py" <<'PY'
import json, sys, threading, time, urllib.error, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked = []

class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        model = {"id": "m", "object": "model", "created": 1, "owned_by": "vllm"}
        self.answer({"object": "list", "data": [model]})
    def do_POST(self):
        asked.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
        if self.path.endswith("/responses"):
            self.answer({"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed",
                         "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []})
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
            self.answer({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *_):
        pass

threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Server).serve_forever, daemon=True).start()
own = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]}, "/v1/responses": {"input": "Hi"}}
for path, fields in own.items():
    body = {"model": "m", "stream": False, **fields}
    request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}{path}", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    for _ in range(600):
        try:
            urllib.request.urlopen(request, timeout=60).read()
            break
        except urllib.error.URLError:  # it starts, and has not found the server yet
            time.sleep(0.1)
    given = next(one for at, one in reversed(asked) if at == path)
    added = ", ".join(f"{name} {given[name]}" for name in sorted(given.keys() - body.keys()))
    print(f"{path}: added {added or 'nothing'}", flush=True)
PY
"$work/venv/bin/smg" launch --host 127.0.0.1 --port "$port" --worker-urls "http://127.0.0.1:$server" \
  --prometheus-port "$(free)" > "$work/log" 2>&1 &
router=$!
"$work/venv/bin/python" "$work/ask.py" "$port" "$server" | tee "$work/out"
diff "$work/out" - <<'OUT'
/v1/chat/completions: added logprobs False
/v1/responses: added min_p 0.0, priority 0, repetition_penalty 1.0, store True, temperature 1.0, top_k -1
OUT
