#!/usr/bin/env bash
# openai 3.57.0 (PyPI), `responses.create(stream=True)`.
#
# Expected: an answer that fails in its middle ends the loop over its events with an exception, as the
# same package does for an error object in a stream of chat completions (`APIError`).
# Seen: `response.failed` is an event like any other. A program that joins `response.output_text.delta`
# has half a text and no error; it must look for the type of the last event itself.
#
# Output seen on 2026-11-28:
#   responses: 'half a te', raised nothing, last event response.failed
#   chat: 'half a te', raised APIError
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0
"$work/venv/bin/python" - <<'PY' | tee "$work/out"
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RESPONSE = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
FAILED = {**RESPONSE, "status": "failed", "error": {"code": "server_error", "message": "lost"}}

class Fails(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        if self.path.endswith("/responses"):
            self.say("response.created", {"sequence_number": 0, "response": {**RESPONSE, "status": "in_progress"}})
            self.say("response.output_text.delta", {"sequence_number": 1, "item_id": "msg_1", "output_index": 0,
                     "content_index": 0, "delta": "half a te", "logprobs": []})
            self.say("response.failed", {"sequence_number": 2, "response": FAILED})
        else:
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            delta = {"index": 0, "delta": {"content": "half a te"}, "finish_reason": None}
            self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [delta]})}\n\n".encode())
            self.wfile.write(b'data: {"error": {"message": "lost", "type": "server_error"}}\n\n')
    def say(self, kind, data):
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode())
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Fails)
threading.Thread(target=server.serve_forever, daemon=True).start()

import openai

client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="k", max_retries=0)

def read(events, text_of):
    text, raised, last = "", "raised nothing", None
    try:
        for last in events:
            text += text_of(last) or ""
    except openai.APIError as error:
        raised = f"raised {type(error).__name__}"
    return text, raised, last

text, raised, last = read(client.responses.create(model="m", input="hi", stream=True),
                          lambda event: getattr(event, "delta", ""))
print(f"responses: {text!r}, {raised}, last event {last.type}")
text, raised, _ = read(
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True),
    lambda chunk: chunk.choices[0].delta.content)
print(f"chat: {text!r}, {raised}")
PY
diff "$work/out" - <<'OUT'
responses: 'half a te', raised nothing, last event response.failed
chat: 'half a te', raised APIError
OUT
