#!/usr/bin/env bash
# litellm 1.110.2 (PyPI), `Router`, which its proxy is built on, with one deployment.
#
# Expected: a server that has no embeddings for a model says 404 to the client that asks for them, and goes on to
# answer chats.
# Seen: the router takes the 404 for a failure of the deployment and leaves it alone for 5 s, and everybody with it: all
# chats of that time are refused with 429, though the server is idle and well. An agent's client that looks for
# embeddings each few seconds, or asks for a path that the engine lacks, keeps the model from all others.
#
# Output seen on 2026-11-29:
#   before: chat answered
#   embeddings: NotFoundError
#   behind it: chat RouterRateLimitError, 429: No deployments available for selected model; the server got it: False
#   5 s later: chat answered
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check litellm==1.110.2
LITELLM_LOCAL_MODEL_COST_MAP=True "$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY' | tee "$work/out"
import json, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

paths = []

class Chats(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        paths.append(self.path)
        is_chat = self.path.endswith("/chat/completions")
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        error = {"message": "m has no embeddings.", "type": "not_found_error", "param": None, "code": None}
        data = json.dumps(answer if is_chat else {"error": error}).encode()
        self.send_response(200 if is_chat else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Chats)
threading.Thread(target=server.serve_forever, daemon=True).start()

import litellm

litellm.suppress_debug_info = True
params = {"model": "openai/m", "api_base": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "k"}
router = litellm.Router(model_list=[{"model_name": "m", "litellm_params": params}], num_retries=0)

def chat():
    try:
        router.completion(model="m", messages=[{"role": "user", "content": "Hi"}])
    except Exception as error:
        return f"{type(error).__name__}, {error.status_code}: {str(error).split(',')[0]}"
    return "answered"

print("before: chat", chat())
try:
    router.embedding(model="m", input=["Hi"])
except Exception as error:
    print("embeddings:", type(error).__name__)
at, said = time.monotonic(), chat()
print(f"behind it: chat {said}; the server got it: {paths[-1].endswith('/chat/completions')}")
while (said := chat()) != "answered":
    time.sleep(0.2)
print(f"{round(time.monotonic() - at)} s later: chat {said}")
PY
diff "$work/out" - <<'OUT'
before: chat answered
embeddings: NotFoundError
behind it: chat RouterRateLimitError, 429: No deployments available for selected model; the server got it: False
5 s later: chat answered
OUT
