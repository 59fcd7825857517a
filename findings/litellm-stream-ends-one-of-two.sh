#!/usr/bin/env bash
# litellm 1.110.2 beside openai 3.57.0 (PyPI), `completion(stream=True, n=2)` from a server with OpenAI's API.
#
# Expected: each choice of a stream ends with its own `finish_reason`, as the server says.
# Seen: only the first choice that ends does. The reason of the other one is lost, be it `length` or `tool_calls`: an
# agent that draws two answers takes one that was cut for a whole one, or does not make its calls. In one piece
# both reasons are there.
#
# Output seen on 2026-11-29:
#   openai streamed: {0: 'stop', 1: 'length'}
#   litellm streamed: {0: 'stop'}
#   litellm in one piece: {0: 'stop', 1: 'length'}
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check litellm==1.110.2 openai==3.57.0
LITELLM_LOCAL_MODEL_COST_MAP=True "$work/venv/bin/python" -W ignore - <<'PY' | tee "$work/out"
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Two(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answers = [(0, "one", "stop"), (1, "two", "length")]
        answer = {"id": "chatcmpl-1", "created": 1, "model": "m"}
        self.send_response(200)
        if not asked.get("stream"):
            answer |= {"object": "chat.completion", "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
            answer["choices"] = [{"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
                                 for index, text, reason in answers]
            body = json.dumps(answer).encode()
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for index, text, reason in answers:
            for delta, end in (({"role": "assistant", "content": text}, None), ({}, reason)):
                choice = {"index": index, "delta": delta, "finish_reason": end}
                chunk = {**answer, "object": "chat.completion.chunk", "choices": [choice]}
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Two)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"

import litellm, openai

litellm.suppress_debug_info = True

def reasons(chunks):
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {choice.index: choice.finish_reason for choice in choices if choice.finish_reason}

asked = {"messages": [{"role": "user", "content": "Hi"}], "n": 2}
client = openai.OpenAI(base_url=url, api_key="k")
print("openai streamed:", reasons(client.chat.completions.create(model="m", stream=True, **asked)))
asked |= {"model": "openai/m", "api_base": url, "api_key": "k"}
print("litellm streamed:", reasons(litellm.completion(stream=True, **asked)))
print("litellm in one piece:", reasons([litellm.completion(**asked)]))
PY
diff "$work/out" - <<'OUT'
openai streamed: {0: 'stop', 1: 'length'}
litellm streamed: {0: 'stop'}
litellm in one piece: {0: 'stop', 1: 'length'}
OUT
