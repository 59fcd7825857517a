#!/usr/bin/env bash
# llama-index-llms-openai 0.8.3 with llama-index-core 0.14.25 and openai 2.54.0 (PyPI), `stream_chat` with tools.
#
# Expected: every call of an answer. `tool_calls` of a delta is a list whose items say their `index`
# (OpenAI's API reference, chat completion chunk), so one chunk may carry parts of two calls.
# Seen: only the first item of the list is read. A server that sends each call whole, both in one chunk,
# loses the second one without an error: the agent runs half of what the model asked for. The openai
# package itself joins both.
#
# Output seen on 2026-11-29:
#   a chunk each: f {'x': 1}, g {'y': 2}
#   one chunk: f {'x': 1}
#   one chunk, openai: f {"x": 1}, g {"y": 2}
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
  llama-index-llms-openai==0.8.3 llama-index-core==0.14.25 openai==2.54.0
"$work/venv/bin/python" -W ignore - <<'PY' | tee "$work/out"
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def call(index, name, arguments):
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call_{index}", "type": "function", "function": function}

F, G = call(0, "f", '{"x": 1}'), call(1, "g", '{"y": 2}')
DELTAS = {"each": [[F], [G]], "one": [[F, G]]}

class Calls(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for calls in DELTAS[body["model"]]:
            self.say({"role": "assistant", "content": None, "tool_calls": calls}, None)
        self.say({}, "tool_calls")
        self.wfile.write(b"data: [DONE]\n\n")
    def say(self, delta, reason):
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                 "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Calls)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"

import openai
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.openai import OpenAI

tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "fg"]
model = OpenAI(model="gpt-4o", api_base=url, api_key="k", max_retries=0)

def llama_index(script):
    *_, last = model.stream_chat([ChatMessage(role="user", content="hi")], tools=tools, model=script)
    calls = model.get_tool_calls_from_response(last, error_on_no_tool_call=False)
    return ", ".join(f"{call.tool_name} {call.tool_kwargs}" for call in calls)

print("a chunk each:", llama_index("each"))
print("one chunk:", llama_index("one"))
client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
with client.chat.completions.stream(
    model="one", messages=[{"role": "user", "content": "hi"}], tools=tools
) as stream:
    calls = stream.get_final_completion().choices[0].message.tool_calls
print("one chunk, openai:", ", ".join(f"{call.function.name} {call.function.arguments}" for call in calls))
PY
diff "$work/out" - <<'OUT'
a chunk each: f {'x': 1}, g {'y': 2}
one chunk: f {'x': 1}
one chunk, openai: f {"x": 1}, g {"y": 2}
OUT
