#!/usr/bin/env bash
# mirascope 2.8.2 (PyPI, `mirascope[openai]`), a streamed call with tools through `openai/...:completions`.
#
# Expected: `streams()`, by which its README prints a streamed answer, has a stream for each part of the response, and
# `text_stream()` the text: whatever the model calls. In one piece both calls of an answer are there, and by
# `chunk_stream()` too.
# Seen: both end in a bare `RuntimeError` at an answer with two calls. The decoder of chat completions ends its calls
# at the end of the answer, and these two want one call to end before the next one begins. So an agent that streams
# stops at the first parallel calls, from any server with OpenAI's chat completions.
#
# Output seen on 2026-11-30:
#   in one piece, two calls: look {"x":1}, look {"x":2}
#   streams, one call: look {"x":1}
#   streams, two calls: RuntimeError('Expected start chunk, got: tool_call_chunk')
#   text_stream, two calls: RuntimeError('Expected start chunk, got: tool_call_chunk')
#   chunk_stream, two calls: look {"x":1}, look {"x":2}
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check "mirascope[openai]==2.8.2"
"$work/venv/bin/python" -W ignore - <<'PY' | tee "$work/out"
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def call(number):
    return {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": f'{{"x":{number}}}'}}

def deltas(count):
    yield {"role": "assistant", "content": None}
    for index in range(count):
        begun = call(index + 1)
        arguments, begun["function"]["arguments"] = begun["function"]["arguments"], ""
        yield {"tool_calls": [{"index": index, **begun}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}

class Calls(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        count = {"one": 1, "two": 2}[body["model"]]
        head = {"id": "c", "created": 1, "model": "m"}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if body.get("stream") else "application/json")
        self.end_headers()
        if not body.get("stream"):
            message = {"role": "assistant", "content": None, "tool_calls": [call(index + 1) for index in range(count)]}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            self.wfile.write(json.dumps({**head, "object": "chat.completion", "choices": [choice]}).encode())
            return
        for delta in (*deltas(count), {}):
            choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "tool_calls"}
            chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Calls)
threading.Thread(target=server.serve_forever, daemon=True).start()

from mirascope import llm

llm.register_provider("openai", scope="openai/", base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="k")

@llm.tool
def look(x: int) -> str:
    """Looks."""
    return "nothing"

def asked(model):
    @llm.call(f"openai/{model}:completions", tools=[look])
    def ask():
        return "hi"
    return ask

def shown(response):
    return ", ".join(f"{one.name} {one.args}" for one in response.tool_calls)

def streamed(model, how):
    response = asked(model).stream()
    try:
        for _ in getattr(response, how)():
            pass
    except RuntimeError as error:
        return repr(error)
    return shown(response)

print("in one piece, two calls:", shown(asked("two")()))
print("streams, one call:", streamed("one", "streams"))
for how in ("streams", "text_stream", "chunk_stream"):
    print(f"{how}, two calls:", streamed("two", how))
PY
diff "$work/out" - <<'OUT'
in one piece, two calls: look {"x":1}, look {"x":2}
streams, one call: look {"x":1}
streams, two calls: RuntimeError('Expected start chunk, got: tool_call_chunk')
text_stream, two calls: RuntimeError('Expected start chunk, got: tool_call_chunk')
chunk_stream, two calls: look {"x":1}, look {"x":2}
OUT
