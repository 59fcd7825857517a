#!/usr/bin/env bash
# litellm 1.110.2 (PyPI), Anthropic's Messages (`litellm.anthropic.messages.acreate`) over a chat server.
#
# Expected: the arguments of two calls whose deltas alternate stay apart. Each delta of a chat completion
# chunk says the `index` of its call for that (OpenAI's API reference), and litellm's own
# `stream_chunk_builder` puts them together rightly.
# Seen: as Messages, the block of the first call ends when the second begins, and all later arguments are
# deltas of the second block: one call without arguments, one whose input is no JSON.
#
# Output seen on 2026-11-29:
#   chat: f '{"x":1}', g '{"y":2}'
#   messages: f '', g '{"x":{"y":1}2}'
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check litellm==1.110.2
LITELLM_LOCAL_MODEL_COST_MAP=True "$work/venv/bin/python" -W ignore - <<'PY' | tee "$work/out"
import asyncio, json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def part(index, arguments, name=None):
    opened = {"id": f"call_{index}", "type": "function"} if name else {}
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"tool_calls": [{"index": index, **opened, "function": function}]}

DELTAS = [part(0, "", "f"), part(1, "", "g"), part(0, '{"x":'), part(1, '{"y":'), part(0, "1}"), part(1, "2}"), {}]

class Calls(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta in DELTAS:
            reason = None if delta else "tool_calls"
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                     "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Calls)
threading.Thread(target=server.serve_forever, daemon=True).start()

import litellm

litellm.suppress_debug_info = True
asked = {"model": "hosted_vllm/m", "api_base": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "k",
         "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True}

async def main():
    whole = litellm.stream_chunk_builder([chunk async for chunk in await litellm.acompletion(**asked)])
    calls = whole.choices[0].message.tool_calls
    print("chat:", ", ".join(f"{call.function.name} {call.function.arguments!r}" for call in calls))
    inputs, names = {}, {}
    async for event in await litellm.anthropic.messages.acreate(**asked):
        for line in event.decode().splitlines():
            data = json.loads(line[6:]) if line.startswith("data: ") else {}
            if data.get("type") == "content_block_start":
                names[data["index"]], inputs[data["index"]] = data["content_block"]["name"], ""
            if data.get("type") == "content_block_delta":
                inputs[data["index"]] += data["delta"]["partial_json"]
    print("messages:", ", ".join(f"{names[index]} {inputs[index]!r}" for index in names))

asyncio.run(main())
PY
diff "$work/out" - <<'OUT'
chat: f '{"x":1}', g '{"y":2}'
messages: f '', g '{"x":{"y":1}2}'
OUT
