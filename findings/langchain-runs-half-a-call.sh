#!/usr/bin/env bash
# langchain-openai 1.7.4 with langchain-core 1.8.3 (PyPI).
#
# Expected: a call whose arguments the token limit cut off (`finish_reason` "length") is in
# `invalid_tool_calls`, streamed or not: "tool calls with parsing errors associated with the message"
# (langchain-core, AIMessage). The same package puts it there for a whole answer.
# Seen: joined from a stream, the message has a valid call with the arguments as far as they came, closed
# by the parser. An agent that streams runs `rm -r /srv/data` where the model was about to write more of
# the path, and nothing but `finish_reason` says so.
#
# Output seen on 2026-11-29:
#   whole: to run [], invalid ['{"command": "rm -r /srv/data']
#   streamed: to run [{'command': 'rm -r /srv/data'}], invalid []
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check langchain-openai==1.7.4 langchain-core==1.8.3
"$work/venv/bin/python" -W ignore - <<'PY' | tee "$work/out"
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CUT = '{"command": "rm -r /srv/data'

def call(arguments):
    return {"index": 0, "id": "call_0", "type": "function", "function": {"name": "shell", "arguments": arguments}}

class Cut(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        streamed = body.get("stream")
        self.send_header("content-type", "text/event-stream" if streamed else "application/json")
        self.end_headers()
        if streamed:
            self.say(delta={"role": "assistant", "content": None, "tool_calls": [call("")]}, finish_reason=None)
            part = {"index": 0, "function": {"arguments": CUT}}
            self.say(delta={"tool_calls": [part]}, finish_reason=None)
            self.say(delta={}, finish_reason="length")
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            message = {"role": "assistant", "content": None, "tool_calls": [call(CUT)]}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
                      "usage": {"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10}}
            self.wfile.write(json.dumps(answer).encode())
    def say(self, **choice):
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [{'index': 0, **choice}]})}\n\n".encode())
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Cut)
threading.Thread(target=server.serve_forever, daemon=True).start()

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(model="m", base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="k", max_retries=0)
first, *rest = chat.stream("hi")
for chunk in rest:
    first += chunk
for how, message in (("whole", chat.invoke("hi")), ("streamed", first)):
    run = [call["args"] for call in message.tool_calls]
    print(f"{how}: to run {run}, invalid {[call['args'] for call in message.invalid_tool_calls]}")
PY
diff "$work/out" - <<'OUT'
whole: to run [], invalid ['{"command": "rm -r /srv/data']
streamed: to run [{'command': 'rm -r /srv/data'}], invalid []
OUT
